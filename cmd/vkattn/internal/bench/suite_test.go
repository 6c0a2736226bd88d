package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func suiteProblems(t *testing.T, name string, dtypes ...attention.DType) []Problem {
	s, err := ParseSuite(name)
	require.NoError(t, err)
	list := s.Problems(dtypes)
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
				require.Contains(t, forward, Problem{Shape: attention.Shape{B: 16, Hq: 8, Hkv: 8, Sq: s, Sk: s},
					Config: attention.Config{HeadDim: d, HeadDimV: d, Causal: c}})
			}
		}
	}
	require.Len(t, suiteProblems(t, "forward", f16, attention.BF16), 40)
	require.Len(t, suiteProblems(t, "dims", f16), 10)
	require.Contains(t, suiteProblems(t, "dims", f16), Problem{Shape: attention.Shape{B: 1, Hq: 16,
		Hkv: 16, Sq: 4096, Sk: 4096}, Config: attention.Config{HeadDim: 192, HeadDimV: 128}})
	require.Len(t, suiteProblems(t, "ablation", f16), 12)
	require.Len(t, suiteProblems(t, "depth", f16), 2*7)
	require.Len(t, suiteProblems(t, "small", f16), 5*2*2*(4+1)+2*2*2*3*(1+2*3))
	require.Len(t, suiteProblems(t, "ladder", f16), 2+20)
	require.Len(t, suiteProblems(t, "cuda", f16), 24)
	require.Len(t, suiteProblems(t, "alone", attention.F32), 4*7)
	require.Len(t, suiteProblems(t, "plain", attention.BF16, attention.F32), 2*4*10)
	require.Len(t, suiteProblems(t, "models", attention.BF16), 3)
	require.Len(t, suiteProblems(t, "modifiers", f16), 13*2*2+2)
	// Problems that are compared per flop have the same flops.
	for _, p := range suiteProblems(t, "gqa", f16) {
		if p.Config.Causal == attention.CausalNone {
			require.EqualValues(t, 4096*4096, uint64(p.Shape.B)*p.Shape.Cells(p.Config.Causal))
		}
	}
	_, err := ParseSuite("everything")
	require.ErrorContains(t, err, "forward, dims, gqa, ablation, cuda, decode, depth, small, alone, plain, models, ceilings, "+
		"ladder, serving, training, gqa-grid, presets, modifiers")
}

func TestASweepNarrows(t *testing.T) {
	p := suiteProblems(t, "gqa", attention.F16)[0]
	for text, want := range map[string]bool{
		"":                 true,
		"batch-size=1":     true,
		"batch-size=2":     false,
		"nheads=32,1":      true,
		"nheads-kv=4":      false,
		"seqlen=1024":      false,
		"seqlen-k=1024":    false,
		"headdim=64,128":   true,
		"headdim-v=32":     false,
		"causal=none":      p.Config.Causal == attention.CausalNone,
		"causal=top-left":  false,
		"dtype=bf16":       false,
		"page-size=0,16":   true,
		"page-size=16":     false,
		"kv-dtype=int8":    false,
		"sparse-ratio=0.5": false,
		"pass=bwd":         true,
	} {
		require.Equal(t, want, Lists(text).Has(p), text)
	}
}

// Each option is one row of Axes. The row gives the flag, the name of the option in rows, and whether peers take the
// problem.
func TestEachOptionHasARow(t *testing.T) {
	for text, want := range map[string]string{
		"kv-dtype=int8": "kv int8", "kv-dtype=int8 kv-block=head": "kv int8, a scale per head", "window=5,-1": "window 5,-1", "softcap=30": "softcap 30", "dropout=0.1": "dropout 0.1",
		"fixed-split=2": "split 2",
		"varlen=3*1/9":  "packed 3*1/9", "varlen=7 padded=true": "lengths 7/7", "page-size=16": "pages of 16",
		"page-size=16 kv-layout=hnd": "pages of 16 hnd",
		"sparse-ratio=0.02":          "sparse 0.02", "sparse-topk=64": "topk 64", "block-ratio=0.5": "0.5 of blocks 64x64",
		"block-ratio=0.5 block-size=16,32": "0.5 of blocks 16x32",
		"shared-kv=true":                   "V in K", "sinks=true": "sinks", "alibi=true": "alibi", "lse=true": "LSE",
		"alibi=true window=1,2 page-size=8 kv-dtype=fp8": "kv fp8, window 1,2, pages of 8, alibi",
	} {
		list, err := Lists("batch-size=1 nheads=2 seqlen=9 headdim=32 " + text).Problems()
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, want, list[0].OptionText())
		require.Equal(t, text == "fixed-split=2" || text == "lse=true", list[0].Plain(), text)
	}
}
