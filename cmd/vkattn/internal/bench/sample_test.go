package bench

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/operands"
	"vkattn/internal/problem"
)

func TestSampledRowsAreDistinctAndInRange(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, sq := range []int{1, 2, 15, 16, 17, 100, 4096} {
		for _, n := range []int{1, 2, 3, 5, 8, 40} {
			seen := map[int]bool{}
			for turn := range 20 {
				rows := sampleRows(sq, min(n, sq), turn, r)
				require.NotEmpty(t, rows)
				require.LessOrEqual(t, len(rows), n)
				require.True(t, slices.IsSorted(rows))
				require.Len(t, slices.Compact(slices.Clone(rows)), len(rows))
				require.GreaterOrEqual(t, rows[0], 0)
				require.Less(t, rows[len(rows)-1], sq)
				for _, row := range rows {
					seen[row] = true
				}
				if n >= sq {
					require.Len(t, rows, sq)
				}
			}
			require.True(t, seen[0] && seen[sq-1], "first and last row of %d, %d a head", sq, n)
		}
	}
}

func TestTheBudgetBoundsTheSample(t *testing.T) {
	small := Problem{Shape: attention.Shape{B: 1, Hq: 2, Sq: 128, Sk: 128}, Config: attention.Config{HeadDim: 64}}
	require.Equal(t, 128, rowsPerHead(small, verifyBudget))
	large := Problem{Shape: attention.Shape{B: 16, Hq: 8, Sq: 4096, Sk: 4096}, Config: attention.Config{HeadDim: 128}}
	require.Equal(t, 8, rowsPerHead(large, verifyBudget))
	huge := Problem{Shape: attention.Shape{B: 64, Hq: 64, Sq: 131072, Sk: 131072}, Config: attention.Config{HeadDim: 128}}
	require.Equal(t, 1, rowsPerHead(huge, verifyBudget))
}

func TestProblemsAreTheCrossProduct(t *testing.T) {
	s := Lists("batch-size=1,2 nheads=8 seqlen=64,128 headdim=32,64 causal=none,top-left dtype=f16")
	list, err := s.Problems()
	require.NoError(t, err)
	require.Len(t, list, 16)
	require.Equal(t, Problem{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 64, Sk: 64}, Config: attention.Config{HeadDim: 32, HeadDimV: 32}}, list[0])
	require.Equal(t, 128, list[1].Shape.Sk, "lengths vary fastest, and Sk follows Sq")
	s = s.With(Lists("nheads-kv=1,2 seqlen-k=256 headdim-v=16"))
	list, err = s.Problems()
	require.NoError(t, err)
	require.Len(t, list, 32)
	require.Equal(t, Problem{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 64, Sk: 256}, Config: attention.Config{HeadDim: 32, HeadDimV: 16}}, list[0])
	for range 10 {
		s["seqlen"] = append(s["seqlen"], s["seqlen"]...)
	}
	_, err = s.Problems()
	require.ErrorContains(t, err, "over 10000")
}

func TestTFLOPsCountsUnmaskedCells(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 16, Hq: 8, Sq: 4096, Sk: 4096}, Config: attention.Config{HeadDim: 128}}
	require.InDelta(t, 2*16*8*256*4096.*4096/1e12, TFLOPs(p, 1000), 1e-9)
	p.Config.Causal = attention.TopLeft
	require.InDelta(t, 2*16*8*256*4096.*4097/2/1e12, TFLOPs(p, 1000), 1e-9)
	require.Zero(t, TFLOPs(p, 0))
}

func TestSetsAreAlignedAndFillTheRotation(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 1, Hq: 1, Sq: 100, Sk: 7}, Config: attention.Config{HeadDim: 33, DType: attention.F16}}
	d := newData(p, 1)
	list := operands.List(problem.Config(p.Config), &d.args)
	s := newSets(list, 1<<20)
	require.Equal(t, []uint64{6600, 462, 462, 6600}, s.size)
	require.Equal(t, []uint64{8192, 4096, 4096, 8192}, s.stride)
	require.Equal(t, 43, s.count)
	require.Equal(t, 43, countSets(p, 1<<20), "as many as a peer is told")
	require.EqualValues(t, 42*8192+6600, s.bytes(0))
	for i, o := range list {
		o.OnHost(make([]byte, s.bytes(i)))
	}
	a := s.args(p.Config, d.all(), 42)
	require.NoError(t, attention.CheckArgs(p.Config, a.Args))
	require.EqualValues(t, 42*4096, a.Q.Offset)
	require.Equal(t, 1, func() int { s := newSets(list, 1); return s.count }())
}

func TestTheSampleIsOfEverySequence(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 9, Hq: 8, Hkv: 2, Sq: 1, Sk: 100}, Config: attention.Config{HeadDim: 16}, Options: Options{Lengths: "40*1/100,0/50,3*2/10"}}
	p.Lengths.bound(&p.Shape)
	d := newData(p, 1)
	for budget, count := range map[uint64]int{1 << 30: 43 * 8, 100 * 32 * 60: 0, 1: 43} {
		list := d.sample(budget, rand.New(rand.NewPCG(1, 1)))
		seen, heads := map[int]bool{}, map[[2]int]bool{}
		var spent uint64
		for _, x := range list {
			require.NotEmpty(t, x.Rows)
			require.Less(t, x.Rows[len(x.Rows)-1], d.rows[x.B])
			require.False(t, heads[[2]int{x.B, x.H}])
			seen[x.B], heads[[2]int{x.B, x.H}] = true, true
			spent += uint64(len(x.Rows)) * uint64(d.keys[x.B]) * 32
		}
		require.Len(t, seen, 43, "of every sequence with rows")
		if count > 0 {
			require.Len(t, list, count)
		} else {
			require.LessOrEqual(t, spent, budget)
			require.Greater(t, spent, budget*3/4)
		}
	}
}

// Tensors of these shapes fit a large machine; the product of all sizes passes 64 bits.
func TestRowsOfHugeProblemsAreOneOfEachHead(t *testing.T) {
	for _, s := range []attention.Shape{
		{B: 1 << 20, Hq: 1 << 13, Hkv: 1, Sq: 1, Sk: 1 << 22},
		{B: 1, Hq: 1<<31 - 1, Hkv: 1, Sq: 2, Sk: 1<<31 - 1},
		{B: 1 << 10, Hq: 1 << 10, Sq: 1 << 10, Sk: 1<<31 - 1},
	} {
		p := Problem{Shape: s, Config: attention.Config{HeadDim: 256, HeadDimV: 256}}
		require.Equal(t, 1, rowsPerHead(p, verifyBudget), "%v", s)
	}
}
