package plan

import (
	"cmp"
	"fmt"
	"strings"

	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// WithoutBands puts the causal mask, a window and chunks in place of the parts of a Config's mask modifier that say the
// same. Kernels skip what those exclude without asking for tiles, and calls without other options stay dense.
func WithoutBands(given problem.Config) problem.Config {
	if !given.MaskMod.Given() {
		return given
	}
	cfg := given
	align, left, right := problem.Alignment(&cfg), cfg.Window.Left(), cfg.Window.Right()
	causal := cfg.Causal != problem.CausalNone
	// The nearer of two bounds. Chunks and windows exclude each other.
	nearer := func(x, y int) int {
		if x < 0 || y >= 0 && y < x {
			return y
		}
		return x
	}
	rest := cfg.MaskMod.TakeBands(func(b score.Band) bool {
		switch {
		case b.Chunk != 0 || b.Left >= 0 && cfg.AttentionChunk != 0:
			return false
		case b.Right == 0 || b.Right > 0 && causal:
			causal = true
		}
		left, right = nearer(left, b.Left), nearer(right, b.Right)
		return true
	})
	if rest.Given() && causal && left < 0 {
		rest = rest.TakeBands(func(b score.Band) bool {
			if b.Chunk == 0 || b.Chunk > problem.MaxLength || cfg.AttentionChunk != 0 {
				return false
			}
			cfg.AttentionChunk = b.Chunk
			return true
		})
	}
	if rest == given.MaskMod {
		return given
	}
	if causal {
		cfg.Causal, right = align, -1
	}
	cfg.MaskMod, cfg.Align, cfg.Window = rest, align, problem.Window{}
	if left >= 0 || right >= 0 {
		cfg.Window = problem.WindowOf(left, right)
	}
	return cfg
}

// InPlaceOf says what a Config has in place of the mask modifier of another one; "" if that is the same.
func InPlaceOf(given, cfg *problem.Config) string {
	if given.MaskMod == cfg.MaskMod {
		return ""
	}
	var list []string
	if cfg.Causal != problem.CausalNone {
		list = append(list, cfg.Causal.String())
	}
	if cfg.Window.Given() {
		list = append(list, "window "+cfg.Window.String())
	}
	if cfg.AttentionChunk != 0 {
		list = append(list, fmt.Sprintf("chunk %d", cfg.AttentionChunk))
	}
	if cfg.MaskMod.Given() {
		list = append(list, "mask-mod "+cfg.MaskMod.String())
	}
	return "the mask modifier is computed as " + cmp.Or(strings.Join(list, ", "), "no mask")
}
