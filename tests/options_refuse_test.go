package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// Every tier refuses combinations that no tier computes, with an error that names them, and
// writes nothing.
func TestOptionsRefusals(t *testing.T) {
	s := openTiers(t)
	c := cases.Case{
		Name: "refused", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, Seqs: []cases.Seq{{ID: 0, Rows: 3, Keys: 40}},
		SparseRatio: 0.5, BlockQ: 16, BlockK: 16,
	}
	for _, tt := range s.available() {
		if tt.DType != attention.F16 {
			continue
		}
		t.Run(c.String()+"/"+tt.String(), func(t *testing.T) {
			p, err := cases.NewProblem(c, tt.DType)
			require.NoError(t, err)
			e := s.newEngine(tt)
			err = e.run([]*job{{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Image}})
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorContains(t, err, "SparseTokens is given together with Blocks")
			require.NoError(t, e.close())
		})
	}
}

// A mask and a bias together with blocks or sparse tokens: tier cpu computes them, the others refuse them by name.
func TestMaskAndBiasBesideLists(t *testing.T) {
	s := openTiers(t)
	for _, sparse := range []bool{false, true} {
		c := cases.Case{Name: "three", D: 16, Dv: 16, Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 40, Sk: 90}, LSE: true,
			Mask: cases.Spread{On: true, Heads: true, Rows: true}, Bias: cases.BiasKind{Spread: cases.Spread{On: true, Rows: true}, DType: attention.F32}}
		if sparse {
			c.SparseRatio, c.Shuffled = 0.5, true
		} else {
			c.BlockQ, c.BlockK, c.Blocks = 16, 32, cases.Spread{On: true, Heads: true}
		}
		for _, tt := range s.available() {
			if tt.DType != attention.F16 || !computesGradients(tt.Tier) {
				continue
			}
			b, err := cases.NewBackward(c, tt.DType)
			require.NoError(t, err)
			e, cfg := s.newEngine(tt), attention.Config(c.Config(tt))
			err = conformBackward(e, b, cfg)
			if tt.Tier == attention.TierCPU {
				require.NoError(t, err)
			} else {
				_, noPlan := e.plan(&job{Problem: b.Problem, cfg: cfg, before: b.Image}) // nothing is compiled for it
				for _, err := range []error{err, noPlan} {
					require.ErrorIs(t, err, attention.ErrUnsupported, tt)
					require.ErrorContains(t, err, "only the CPU tier takes all three", tt)
				}
			}
			require.NoError(t, e.close())
		}
	}
}
