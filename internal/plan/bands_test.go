package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// Bands of a mask modifier become the options that say the same, and the options that a Config has stay.
func TestWithoutBands(t *testing.T) {
	doc := score.Documents(score.IntTable("doc", 1))
	for name, c := range map[string]struct {
		given, want problem.Config
		says        string
	}{
		"causal": {problem.Config{MaskMod: score.Causal()}, problem.Config{Causal: problem.BottomRight},
			"the mask modifier is computed as bottom-right"},
		"top-left": {problem.Config{MaskMod: score.Causal(), Align: problem.TopLeft}, problem.Config{Causal: problem.TopLeft},
			"the mask modifier is computed as top-left"},
		"documents": {problem.Config{MaskMod: score.And(score.Causal(), doc)}, problem.Config{Causal: problem.BottomRight, MaskMod: doc},
			"the mask modifier is computed as bottom-right, mask-mod doc[i] == doc[j]"},
		"window": {problem.Config{MaskMod: score.SlidingWindow(100, 7)}, problem.Config{Window: problem.WindowOf(100, 7)},
			"the mask modifier is computed as window 100,7"},
		"window of a Config": {problem.Config{Causal: problem.TopLeft, Window: problem.WindowOf(50, 3), MaskMod: score.SlidingWindow(100, 2)},
			problem.Config{Causal: problem.TopLeft, Window: problem.WindowOf(50, -1)}, "the mask modifier is computed as top-left, window 50,-1"},
		"chunks": {problem.Config{MaskMod: score.And(score.Chunked(64), score.Causal())}, problem.Config{Causal: problem.BottomRight, AttentionChunk: 64},
			"the mask modifier is computed as bottom-right, chunk 64"},
		"chunks without a causal mask": {problem.Config{MaskMod: score.Chunked(64)}, problem.Config{MaskMod: score.Chunked(64)}, ""},
		"a window with chunks": {problem.Config{Causal: problem.BottomRight, AttentionChunk: 32, MaskMod: score.SlidingWindow(100, 2)},
			problem.Config{Causal: problem.BottomRight, AttentionChunk: 32, MaskMod: score.Le(score.Sub(score.I, score.Int(100)), score.J)},
			"the mask modifier is computed as bottom-right, chunk 32, mask-mod i - 100 <= j"},
		"everything": {problem.Config{MaskMod: score.Lt(score.Int(0), score.Int(1))}, problem.Config{}, "the mask modifier is computed as no mask"},
		"nothing":    {problem.Config{Softcap: 3}, problem.Config{Softcap: 3}, ""},
	} {
		if c.says != "" {
			c.want.Align = problem.Alignment(&c.given)
		}
		cfg := WithoutBands(c.given)
		require.Equal(t, c.want, cfg, name)
		require.Equal(t, c.says, InPlaceOf(&c.given, &cfg), name)
		cfg.HeadDim = 64
		require.NoError(t, cfg.Validate(), name)
	}
}
