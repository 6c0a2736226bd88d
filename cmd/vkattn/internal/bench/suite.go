package bench

import (
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
)

// Suite is a named table of problems.
type Suite struct {
	Name  string
	About string
	list  []Problem // in each storage type
	typed bool      // problems of the list have storage types; --dtype replaces them
	// Baselines, DTypes and Passes apply unless --against, --dtype or --pass name others.
	// Without them: none, f16, the forward pass.
	Baselines []Baseline
	DTypes    []attention.DType
	Passes    []Pass
	// Ablations apply unless --ablate names others.
	Ablations []attention.Ablation
	// Shrinks says that problems are cut down to what a CPU computes in a minute, unless
	// lists select some of them.
	Shrinks bool
}

var everyPass = []Pass{PassForward, PassBackward, PassBoth}

// Suites lists them in the order of the help text.
var Suites = []Suite{
	{Name: "forward", About: "batch 16, 8 heads, head dims 64 and 128, lengths 1024 to 16384, full and causal",
		list: named("", "batch-size=16 nheads=8 seqlen=1024-16384*2 headdim=64,128 causal=none,top-left")},
	// The numbers of heads keep the work of a row near the work of a row of the forward suite.
	{Name: "dims", About: "head dims 32, 96, 192, 256 and 192/128 at length 4096, full and causal", list: named("",
		"batch-size=1 nheads=32 seqlen=4096 headdim=32,96 causal=none,top-left",
		"batch-size=1 nheads=16 seqlen=4096 headdim=192,256 causal=none,top-left",
		"batch-size=1 nheads=16 seqlen=4096 headdim=192 headdim-v=128 causal=none,top-left")},
	// A square and a rectangle of the same size, each with and without grouping:
	// their TFLOP/s are to be compared with one another.
	{Name: "gqa", About: "32 query heads over 32 and 8, square and 1024 x 4096, full and bottom-right", list: named("",
		"batch-size=1 nheads=32 nheads-kv=32,8 seqlen=4096 headdim=64,128 causal=none,bottom-right",
		"batch-size=4 nheads=32 nheads-kv=32,8 seqlen=1024 seqlen-k=4096 headdim=64,128 causal=none,bottom-right")},
	{Name: "ablation", About: "the shapes of gqa-grid, for --ablate", list: gqaGrid()},
	{Name: "cuda", About: "batch 16, 8 heads, head dims 64, 128 and (batch 8) 256, lengths 2048 to 16384, full and " +
		"causal", list: named("", "batch-size=16 nheads=8 seqlen=2048-16384*2 headdim=64,128 causal=none,top-left",
		"batch-size=8 nheads=8 seqlen=2048-16384*2 headdim=256 causal=none,top-left")},
	{Name: "decode", About: "one row over 128 MiB to 1 GiB of K and V: contiguous, paged, quantized, sparse, of " +
		"different lengths",
		list: decode(), Baselines: []Baseline{BaselineContiguous, BaselineSeparate, BaselineCopy}},
	{Name: "alone", About: "batch 8 of one head, head dims 16 to 128, lengths 256 to 65536, in f32: forward, " +
		"backward and both",
		list:   named("", "batch-size=8 nheads=1 seqlen=256,1024-4096*4,8192-65536*2 headdim=16-128*2 causal=none"),
		DTypes: []attention.DType{attention.F32}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "plain", About: "one causal head, head dims 16 to 128, lengths 128 to 65536, in bf16 and f32: forward, " +
		"backward and both",
		list:   named("", "batch-size=1 nheads=1 seqlen=128-65536*2 headdim=16-128*2 causal=top-left"),
		DTypes: []attention.DType{attention.BF16, attention.F32}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "models",
		About: "attention of all layers of transformers with 12, 24 and 36 layers, batch 4, length 1024, in bf16: " +
			"forward, backward and both",
		list: models(), DTypes: []attention.DType{attention.BF16}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "ceilings", About: "what the device reaches at most: a copy, products from registers, launches, " +
		"dispatches and barriers",
		list: ceilings(), typed: true},
	{Name: "ladder", About: "steps v1 to v8 of the kernel's development on one shape, and the problems of forward",
		list: ladder(), Shrinks: true},
	{Name: "serving", About: "grouped prefill and decode: padded, packed, paged and sparse, each compared with a " +
		"reference",
		list: serving(), Baselines: []Baseline{BaselineByMask, BaselineCUDARef, BaselineSeparate}, Shrinks: true},
	{Name: "training", About: "forward, backward and both: problems of models, alone and plain",
		list: training(), typed: true, Passes: everyPass, Shrinks: true, Baselines: []Baseline{BaselinePlain}},
	{Name: "gqa-grid", About: "batch 16, 4 and 1 of 1024 x 1024, 1024 x 4096 and 4096 x 4096, 32 heads over 32 and " +
		"8, head dim 128, " +
		"also without barriers and softmax",
		list: gqaGrid(), Shrinks: true, Ablations: []attention.Ablation{attention.AblateNone, attention.AblateBarrier,
			attention.AblateSoftmax}},
	{Name: "presets", About: "forward passes of GPT, BERT and short to very long sequences", list: presetSuite(),
		Shrinks: true},
}

// ParseSuite finds one of Suites. An error also offers the names of other suites that the
// command has.
func ParseSuite(name string, others ...string) (*Suite, error) {
	var names []string
	for i := range Suites {
		if Suites[i].Name == name {
			return &Suites[i], nil
		}
		names = append(names, Suites[i].Name)
	}
	return nil, fmt.Errorf("unknown suite %q%s", name, flagtext.Hint(name, append(names, others...)))
}

// Types are the storage types of the suite, given the types of --dtype. None: problems
// have types of their own.
func (s *Suite) Types(given []attention.DType) []attention.DType {
	switch {
	case len(given) > 0 || s.typed:
		return given
	case len(s.DTypes) > 0:
		return s.DTypes
	}
	return []attention.DType{attention.F16}
}

// Problems lists the problems of the suite in each storage type.
func (s *Suite) Problems(dtypes []attention.DType) (out []Problem) {
	if len(dtypes) == 0 {
		out = append(out, s.list...)
	}
	for _, dtype := range dtypes {
		for _, p := range s.list {
			if p.Ceiling == "" {
				p.Config.DType = dtype
			} else if p.Ceiling.typed() && p.Config.DType != dtype { // dtypes select some of them
				continue
			}
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	for i := range out {
		out[i].Suite = s.Name
	}
	return out
}
