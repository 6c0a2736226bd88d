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
	base := cases.Case{
		Name: "refused", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, Seqs: []cases.Seq{{ID: 0, Rows: 3, Keys: 40}},
	}
	lists, mask, blocks := base, base, base
	lists.SparseRatio, mask.Mask.On, blocks.BlockQ, blocks.BlockK = 0.5, true, 16, 16
	both := func(a, b cases.Case) cases.Case {
		a.SparseRatio = max(a.SparseRatio, b.SparseRatio)
		a.Mask.On = a.Mask.On || b.Mask.On
		a.BlockQ, a.BlockK = max(a.BlockQ, b.BlockQ), max(a.BlockK, b.BlockK)
		return a
	}
	for _, x := range []struct {
		c     cases.Case
		names []string
	}{
		{both(lists, blocks), []string{"SparseTokens", "Blocks"}},
		{both(lists, mask), []string{"SparseTokens", "Mask"}},
		{both(mask, blocks), []string{"Mask", "Blocks"}},
	} {
		for _, tt := range s.available() {
			if tt.DType != attention.F16 {
				continue
			}
			t.Run(x.c.String()+"/"+tt.String(), func(t *testing.T) {
				p, err := cases.NewProblem(x.c, tt.DType)
				require.NoError(t, err)
				e := s.newEngine(tt)
				err = e.run([]*job{{Problem: p, cfg: attention.Config(x.c.Config(tt)), before: p.Image}})
				require.ErrorIs(t, err, attention.ErrUnsupported)
				for _, name := range x.names {
					require.ErrorContains(t, err, name)
				}
				require.NoError(t, e.close())
			})
		}
	}
}
