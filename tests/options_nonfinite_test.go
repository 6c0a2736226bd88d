package tests

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// nonFiniteCases have rows that see only some of the keys. Together they have every way in
// which O is stored: rows in whole vectors of eight and odd rows, states of three splits
// with rows in whole vectors of four and without, and a few decode rows.
func nonFiniteCases() []cases.Case {
	base := cases.Case{
		Name: "nonfinite", D: 32, Dv: 32, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, Causal: attention.BottomRight,
		PackedQ: true, PackedK: true, Data: cases.Uniform,
		Seqs: []cases.Seq{{ID: 0, Rows: 40, Keys: 70}, {ID: 1, Rows: 33, Keys: 33}, {ID: 2, Rows: 70, Keys: 133}},
	}
	odd, split, window, paged, decode := base, base, base, base, base
	odd.D, odd.Dv, odd.Layout, odd.Causal = 20, 20, cases.Odd, attention.TopLeft
	split.D, split.Dv, split.FixedSplit = 30, 30, 3
	window.FixedSplit, window.Causal, window.Align, window.Window = 3, 0, attention.TopLeft, attention.WindowOf(20, 30)
	paged.PackedK, paged.PageSize, paged.SparseRatio, paged.Shuffled = false, 16, 0.5, true
	decode.Seqs = []cases.Seq{{ID: 0, Rows: 2, Keys: 70}, {ID: 1, Rows: 4, Keys: 33}}
	float8 := base
	float8.KeyType, float8.ValueType, float8.Data = attention.KVFP8, attention.KVFP8, cases.Normal
	return []cases.Case{odd, split, base, window, paged, decode, float8}
}

// An Inf or NaN in V reaches the rows that attend to its key, and no others.
func TestOptionsNonFiniteValues(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if fewPipelines() && tt.DType != attention.F16 {
			continue // the rows that they reach do not depend on the type
		}
		for n, c := range nonFiniteCases() {
			if fewPipelines() && slowToCompile(tt) && (n > 1 && c.ValueType == attention.KVSame || (tt.Tier == attention.TierCoopMat2) != (n == 0)) {
				continue // one tier computes rows without splits, the other with splits
			}
			t.Run(c.String()+"/"+tt.String(), func(t *testing.T) {
				t.Parallel()
				p, err := cases.NewProblem(c, tt.DType)
				require.NoError(t, err)
				r := rand.New(rand.NewPCG(uint64(n), 0))
				after := s.withValues(t, p, tt, func(values []float32) {
					for range len(values)/100 + 1 {
						values[r.IntN(len(values))] = [...]float32{nan, inf, -inf}[r.IntN(3)]
					}
				})
				require.NoError(t, p.Trespass(p.Image, after))
				var truth cases.Truth
				require.NoError(t, truth.Judge(p, after))
				kinds := map[bool]int{}
				for _, x := range truth.Ref {
					kinds[math.IsNaN(x) || math.IsInf(x, 0)]++
				}
				require.Truef(t, kinds[true] > 99 && kinds[false] > 99, "the reference has %d finite elements and %d others", kinds[false], kinds[true])
			})
		}
	}
}
