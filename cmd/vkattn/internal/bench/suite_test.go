package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func suiteProblems(t *testing.T, name string, dtypes ...attention.DType) []Problem {
	s, err := ParseSuite(name)
	require.NoError(t, err)
	list, err := s.Problems(dtypes)
	require.NoError(t, err)
	for _, p := range list {
		require.NoError(t, p.Shape.Validate())
		require.NoError(t, p.Config.Validate())
	}
	return list
}

func TestSuites(t *testing.T) {
	f16 := attention.F16
	forward := suiteProblems(t, "forward", f16)
	require.Len(t, forward, 20)
	for _, d := range []int{64, 128} {
		for _, s := range []int{1024, 2048, 4096, 8192, 16384} {
			for _, c := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
				require.Contains(t, forward, Problem{Suite: "forward", Shape: attention.Shape{B: 16, Hq: 8, Hkv: 8, Sq: s, Sk: s}, Config: attention.Config{HeadDim: d, HeadDimV: d, Causal: c}})
			}
		}
	}
	require.Len(t, suiteProblems(t, "forward", f16, attention.BF16), 40)
	require.Len(t, suiteProblems(t, "dims", f16), 10)
	require.Contains(t, suiteProblems(t, "dims", f16), Problem{Suite: "dims", Shape: attention.Shape{B: 1, Hq: 16, Hkv: 16, Sq: 4096, Sk: 4096}, Config: attention.Config{HeadDim: 192, HeadDimV: 128}})
	require.Len(t, suiteProblems(t, "ablation", f16), 12)
	require.Len(t, suiteProblems(t, "ladder", f16), 2+20)
	require.Len(t, suiteProblems(t, "cuda", f16), 24)
	require.Len(t, suiteProblems(t, "alone", attention.F32), 4*7)
	require.Len(t, suiteProblems(t, "plain", attention.BF16, attention.F32), 2*4*10)
	require.Len(t, suiteProblems(t, "models", attention.BF16), 3)
	// Problems that are compared per flop have the same flops.
	for _, p := range suiteProblems(t, "gqa", f16) {
		if p.Config.Causal == attention.CausalNone {
			require.EqualValues(t, 4096*4096, uint64(p.Shape.B)*p.Shape.Cells(p.Config.Causal))
		}
	}
	_, err := ParseSuite("everything")
	require.ErrorContains(t, err, "forward, dims, gqa, ablation, cuda, decode, alone, plain, models, ceilings, ladder, serving, training, gqa-grid, presets")
}

func TestASweepNarrows(t *testing.T) {
	p := suiteProblems(t, "gqa", attention.F16)[0]
	for s, want := range map[*Sweep]bool{
		{}:                        true,
		{Batch: []int{1}}:         true,
		{Batch: []int{2}}:         false,
		{Heads: []int{32, 1}}:     true,
		{HeadsKV: []int{4}}:       false,
		{SeqLen: []int{1024}}:     false,
		{SeqLenK: []int{1024}}:    false,
		{HeadDim: []int{64, 128}}: true,
		{HeadDimV: []int{32}}:     false,
		{Causal: []attention.Causal{attention.CausalNone}}: p.Config.Causal == attention.CausalNone,
		{Causal: []attention.Causal{attention.TopLeft}}:    false,
		{DType: []attention.DType{attention.BF16}}:         false,
	} {
		require.Equal(t, want, s.Has(p), "%+v", *s)
	}
}
