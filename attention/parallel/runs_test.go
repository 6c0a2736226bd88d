package parallel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// drawSplit cuts n rows into random pieces, or into pieces of a row or two, and deals them to ranks.
func drawSplit(t *rapid.T, label string, n, ranks int) Split {
	s := make(Split, ranks)
	most := rapid.SampledFrom([]int{n, 1, 2}).Draw(t, label+" piece")
	for first := 0; first < n; {
		size := rapid.IntRange(1, min(most, n-first)).Draw(t, label)
		s.add(rapid.IntRange(0, ranks-1).Draw(t, label+" rank"), Span{first, size})
		first += size
	}
	return s
}

// drawSequences draws one sequence, or packed ones.
func drawSequences(t *rapid.T) (list []sequence, rows, keys int) {
	for range rapid.IntRange(1, 4).Draw(t, "sequences") {
		q := sequence{rows, rapid.IntRange(0, 12).Draw(t, "rows"), keys, rapid.IntRange(0, 12).Draw(t, "keys")}
		list = append(list, q)
		rows, keys = rows+q.rows, keys+q.keys
	}
	return list, rows, keys
}

// The runs of a rank over all ranks cover exactly what the mask allows.
func TestRunsCoverTheMask(t *testing.T) {
	testlevel.HostOnly(t)
	rapid.Check(t, func(t *rapid.T) {
		sequences, rows, keys := drawSequences(t)
		cfg := attention.Config{HeadDim: 8, Causal: rapid.SampledFrom([]attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}).Draw(t, "causal")}
		if rapid.Bool().Draw(t, "window") {
			cfg.Window = attention.WindowOf(rapid.IntRange(-1, 8).Draw(t, "left"), rapid.IntRange(-1, 8).Draw(t, "right"))
			if cfg.Causal == attention.CausalNone {
				cfg.Align = rapid.SampledFrom([]attention.Causal{attention.TopLeft, attention.BottomRight}).Draw(t, "align")
			}
		}
		ranks := rapid.IntRange(1, 4).Draw(t, "ranks")
		qs, ks := drawSplit(t, "q", rows, ranks), drawSplit(t, "k", keys, ranks)
		see := sightOf(&cfg)
		var got [64][64]int
		var cells uint64
		for r := range ranks {
			var global []int
			for _, s := range qs[r] {
				for i := range s.N {
					global = append(global, s.First+i)
				}
			}
			cuts := []int{rapid.IntRange(0, 20).Draw(t, "cut")}
			for s := range ranks {
				var key []int
				for _, x := range ks[s] {
					for i := range x.N {
						key = append(key, x.First+i)
					}
				}
				for _, u := range cutAt(runsOf(see, sequences, qs[r], ks[s]), cuts) {
					cells += u.cells()
					for i := range u.rows {
						for j := range u.keys {
							ok := true
							switch u.shape {
							case lower:
								ok = j <= i+u.keys-u.rows
							case upper:
								ok = j >= i
							case band:
								ok = j >= i && j < i+u.width
							}
							if ok {
								got[global[u.row+i]][key[u.key+j]]++
							}
						}
					}
				}
			}
		}
		var total uint64
		for _, q := range sequences {
			for i := range q.rows {
				position := i
				if see.align == attention.BottomRight {
					position += q.keys - q.rows
				}
				for j := range q.keys {
					want := 1
					if see.right >= 0 && j > position+see.right || see.left >= 0 && j < position-see.left {
						want = 0
					}
					require.Equal(t, want, got[q.row+i][q.key+j], "row %d key %d of %+v", i, j, q)
					total += uint64(want)
				}
			}
		}
		require.Equal(t, total, cells)
	})
}

// Zigzag order needs one ordinary call a step, and gives every rank the same work.
func TestZigzagStepsAreSingleBalancedCalls(t *testing.T) {
	testlevel.HostOnly(t)
	const ranks, n = 4, 64
	split := Zigzag(n, ranks)
	cfg := attention.Config{HeadDim: 8, Causal: attention.TopLeft}
	all := []sequence{{0, n, 0, n}}
	for r := range ranks {
		var cells uint64
		for s := range ranks {
			runs := runsOf(sightOf(&cfg), all, split[r], split[s])
			require.Len(t, runs, 1)
			cells += runs[0].cells()
			require.Equal(t, r == s, runs[0].shape == lower)
		}
		require.Equal(t, uint64(n*(n+1)/2/ranks), cells)
	}
}

func TestSplitsHoldEveryRowOnce(t *testing.T) {
	testlevel.HostOnly(t)
	for n := range 40 {
		for ranks := 1; ranks <= 9; ranks++ {
			require.NoError(t, Contiguous(n, ranks).check("Rows", n, ranks))
			require.NoError(t, Zigzag(n, ranks).check("Rows", n, ranks))
			require.NoError(t, Striped(n, ranks).check("Rows", n, ranks))
			if ranks%3 == 0 {
				require.NoError(t, Zigzag(n, ranks).by(3).check("Rows", n, ranks/3))
			}
		}
	}
	for _, bad := range []Split{nil, {{{0, 4}}}, {{{0, 4}}, {{5, 1}}}, {{{0, 4}}, {{3, 3}}}, {{{0, 4}}, {{4, 1}}}, {{{0, 4}}, {{4, 3}}}, {{{3, 3}, {0, 3}}, nil}, {{{0, 6}}, {{1, 0}}}, {{{-1, 7}}, nil}} {
		require.ErrorIs(t, bad.check("Rows", 6, 2), attention.ErrInvalid, "%v", bad)
	}
	require.Nil(t, Contiguous(3, 0))
	require.Nil(t, Zigzag(-1, 2))
	require.Nil(t, Striped(MaxStriped+1, 2))
	require.Equal(t, striped(10, 3, 1), Striped(10, 3))
	require.Equal(t, Split{{{0, 5}}}, Striped(5, 1))
}
