package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/operands"
	"vkattn/internal/problem"
)

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
	list := operands.List(problem.Config(p.Config), &d.args.Args)
	s := newSets(list, 1<<20)
	require.Equal(t, []uint64{6600, 462, 462, 6600}, s.size)
	require.Equal(t, []uint64{8192, 4096, 4096, 8192}, s.stride)
	require.Equal(t, 43, s.count)
	require.Equal(t, 43, countSets(p, 1<<20), "as many as a peer is told")
	require.EqualValues(t, 42*8192+6600, s.bytes(0))
	for i, o := range list {
		o.OnHost(make([]byte, s.bytes(i)))
	}
	a := s.args(p.Config, d.args, 42)
	require.NoError(t, attention.CheckArgs(p.Config, a.Args))
	require.EqualValues(t, 42*4096, a.Q.Offset)
	require.Equal(t, 1, func() int { s := newSets(list, 1); return s.count }())
}

func TestTheBudgetBoundsTheSample(t *testing.T) {
	dense := Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 100, Sk: 64}, Config: attention.Config{HeadDim: 16}}
	mixed := dense
	mixed.Lengths = "40*1/100,0/50,3*2/10"
	mixed.Lengths.bound(&mixed.Shape)
	for _, p := range []Problem{dense, mixed} {
		d := newData(p, 1)
		sequences, heads := map[int]bool{}, map[int]bool{}
		sample, err := accuracy.SampleRows(d.args.Args, d.affordable(100*32*60), 1, attention.CausalNone, 1)
		require.NoError(t, err)
		var spent uint64
		for _, x := range sample {
			sequences[x.B], heads[x.H] = true, true
			spent += uint64(len(x.Rows)) * uint64(d.call.Sequences[x.B].Keys) * 32
		}
		require.LessOrEqual(t, spent, uint64(100*32*60))
		require.Greater(t, spent, uint64(100*32*60)*3/4)
		require.Len(t, heads, 8)
		require.Len(t, sequences, map[bool]int{false: 2, true: 43}[p.Lengths != ""], "all with rows")
	}
}
