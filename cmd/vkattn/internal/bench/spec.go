package bench

import (
	"fmt"

	"vkattn/attention"
)

// Spec says what one row of each problem runs.
type Spec struct {
	Tier       attention.Tier
	Kernel     string // family of tier cuda; "": its own choice
	Experiment attention.Experiment
	Baseline   Baseline // what the others are compared with; "": one of these
}

// Specs is the cross product of tiers, variants and ablations, and for tier cuda of
// kernel families. Without variants and ablations it is the kernel as shipped, without
// families the best family for each problem.
func Specs(tiers []attention.Tier, kernels []string, variants []int, ablations []attention.Ablation) []Spec {
	if len(variants) == 0 {
		variants = []int{0}
	}
	if len(ablations) == 0 {
		ablations = []attention.Ablation{attention.AblateNone}
	}
	var out []Spec
	for _, t := range tiers {
		families := []string{""}
		if t == attention.TierCUDA && len(kernels) > 0 {
			families = kernels
		}
		for _, k := range families {
			for _, v := range variants {
				for _, a := range ablations {
					out = append(out, Spec{Tier: t, Kernel: k, Experiment: attention.Experiment{Variant: v, Ablate: a}})
				}
			}
		}
	}
	return out
}

// ladderSpecs are all steps of the kernel's development on each tier that has them, unless
// a Spec names some. Tiers without SPIR-V run the kernel as shipped.
func ladderSpecs(specs []Spec) (out []Spec) {
	for _, s := range specs {
		if s.Experiment.Variant > 0 || s.Tier.WithoutSPIRV() {
			out = append(out, s)
			continue
		}
		for v := 1; v <= attention.Variants; v++ {
			s.Experiment.Variant = v
			out = append(out, s)
		}
	}
	return out
}

// cudaBaselines lists the names of the rows of tier cuda, with which other rows are
// compared.
func cudaBaselines(specs []Spec) (names []string) {
	for _, s := range specs {
		if s.Tier == attention.TierCUDA && s.Experiment == (attention.Experiment{}) {
			names = append(names, kernelName(s.Tier.String(), s.Kernel))
		}
	}
	return names
}

// kernelName is the name of a tier with its kernel family, such as "coopmat" or "cuda fa2".
func kernelName(tier, family string) string {
	if family == "" {
		return tier
	}
	return tier + " " + family
}

// WithTile runs every Spec once with each of the given tiles of the forward kernel, see
// attention.Experiment. An empty text stands for the tile that calls take.
func WithTile(specs []Spec, tiles []string) []Spec {
	return withEach(specs, tiles, func(s *Spec, tile string) { s.Experiment.Tile = tile })
}

// WithTiles runs every Spec once with each of the given tiles of the backward kernels, see
// attention.Experiment. An empty text stands for the tiles that calls take.
func WithTiles(specs []Spec, tiles []string) []Spec {
	return withEach(specs, tiles, func(s *Spec, tiles string) { s.Experiment.BackwardTiles = tiles })
}

// withEach runs every Spec once with each value, or as it is if there are none.
func withEach(specs []Spec, values []string, set func(s *Spec, value string)) []Spec {
	if len(values) == 0 {
		return specs
	}
	var out []Spec
	for _, s := range specs {
		for _, v := range values {
			set(&s, v)
			out = append(out, s)
		}
	}
	return out
}

// variantLabel is the name of a variant, such as "v3", and empty for the kernel as shipped.
func variantLabel(v int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("v%d", v)
}

// ParseVariant parses "v1" to "v8", or "1" to "8".
func ParseVariant(s string) (int, error) {
	for v := 1; v <= attention.Variants; v++ {
		if s == variantLabel(v) || "v"+s == variantLabel(v) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown variant %q, want v1 to v%d, or all", s, attention.Variants)
}
