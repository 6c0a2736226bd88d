package bench

import (
	"fmt"
	"strings"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/sweep"
	"vkattn/internal/problem"
	"vkattn/vk"
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
	Ablations []problem.Ablation
	// Shrinks says that problems are cut down to what a CPU computes in a minute, unless
	// lists select some of them.
	Shrinks bool
}

var everyPass = []Pass{PassForward, PassBackward, PassBoth}

// Suites lists them in the order of the help text.
var Suites = []*Suite{
	{Name: "forward", About: "batch 16, 8 heads, head dims 64 and 128, lengths 1024 to 16384",
		list: named("", "batch-size=16 nheads=8 seqlen=1024-16384*2 headdim=64,128 causal=none,top-left")},
	// The numbers of heads keep the work of a row near the work of a row of the forward suite.
	{Name: "dims", About: "head dims 32, 96, 192, 256 and 192/128 at length 4096, full and causal", list: named("",
		"batch-size=1 nheads=32 seqlen=4096 headdim=32,96 causal=none,top-left",
		"batch-size=1 nheads=16 seqlen=4096 headdim=192,256 causal=none,top-left",
		"batch-size=1 nheads=16 seqlen=4096 headdim=192 headdim-v=128 causal=none,top-left")},
	// A square and a rectangle of the same size, each with and without grouping:
	// their TFLOP/s are to be compared with one another.
	{Name: "gqa", About: "32 heads over 32 and 8, square and 1024 x 4096, full and bottom-right", list: named("",
		"batch-size=1 nheads=32 nheads-kv=32,8 seqlen=4096 headdim=64,128 causal=none,bottom-right",
		"batch-size=4 nheads=32 nheads-kv=32,8 seqlen=1024 seqlen-k=4096 headdim=64,128 causal=none,bottom-right")},
	{Name: "ablation", About: "the shapes of gqa-grid, for --ablate", list: gqaGrid()},
	{Name: "cuda", About: "batch 16, 8 heads, head dims 64, 128, 256 (batch 8), lengths 2048 to 16384",
		list: named("", "batch-size=16 nheads=8 seqlen=2048-16384*2 headdim=64,128 causal=none,top-left",
			"batch-size=8 nheads=8 seqlen=2048-16384*2 headdim=256 causal=none,top-left")},
	{Name: "decode", About: "one row over 128 MiB to 1 GiB of K and V: paged, quantized, sparse, mixed",
		list: decode(), Baselines: []Baseline{BaselineContiguous, BaselineSeparate, BaselineCopy}},
	{Name: "depth", About: "512 rows and 1 row after 0 to 128k cached keys, 32 heads over 8",
		list: depth(), Shrinks: true},
	{Name: "small", About: "batch 1 to 4, 8 to 32 heads, lengths 64 to 1024, 1 to 64 rows over 512 to 8192 keys",
		list: small(), Shrinks: true},
	{Name: "alone", About: "batch 8 of one head, head dims 16 to 128, to length 65536, f32, all passes",
		list:   named("", "batch-size=8 nheads=1 seqlen=256,1024-4096*4,8192-65536*2 headdim=16-128*2 causal=none"),
		DTypes: []attention.DType{attention.F32}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "plain", About: "one causal head, head dims 16 to 128, to length 65536, all passes",
		list:   named("", "batch-size=1 nheads=1 seqlen=128-65536*2 headdim=16-128*2 causal=top-left"),
		DTypes: []attention.DType{attention.BF16, attention.F32}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "models", About: "layers of transformers with 12, 16 and 20 heads, bf16, all passes",
		list: models(), DTypes: []attention.DType{attention.BF16}, Passes: everyPass, Baselines: []Baseline{BaselinePlain}},
	{Name: "ceilings", About: "what the device reaches at most: copy, products, launches, barriers",
		list: ceilings(), typed: true},
	{Name: "ladder", About: "steps v1 to v8 of the kernel on one shape, and the problems of forward",
		list: ladder(), Shrinks: true},
	{Name: "serving", About: "prefill and decode: padded, packed, paged and sparse, with references",
		list: serving(), Baselines: []Baseline{BaselineByMask, BaselineCUDARef, BaselineSeparate}, Shrinks: true},
	{Name: "training", About: "problems of models, alone and plain, all passes",
		list: training(), typed: true, Passes: everyPass, Shrinks: true, Baselines: []Baseline{BaselinePlain}},
	{Name: "gqa-grid", About: "32 heads over 32 and 8, head dim 128, also without barriers and softmax",
		list: gqaGrid(), Shrinks: true, Ablations: []problem.Ablation{problem.AblateNone, problem.AblateBarrier,
			problem.AblateSoftmax}},
	{Name: "presets", About: "forward passes of GPT, BERT and short to very long sequences", list: presetSuite(),
		Shrinks: true},
	{Name: "modifiers", About: "options, and score and mask modifiers that say the same or more", list: modifiers(), Shrinks: true},
}

func (s *Suite) String() string { return s.Name }

// ParseSuite finds one of Suites. An error also offers the names of other suites that the
// command has.
func ParseSuite(name string, others ...string) (*Suite, error) {
	return flagtext.Find("suite", name, Suites, others...)
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
			out = sweep.Union(out, p)
		}
	}
	return out
}

// serving has the shapes of a published table of results of Triton kernels. Lengths and
// heads that the table does not tell are chosen here.
func serving() (list []Problem) {
	const prefill = "nheads=64 nheads-kv=16 headdim=64 causal=top-left "
	const lengths = prefill + "varlen=1024/1024,468/468,631/631,258/258,353/353,599/599,732/732,94/94 "
	const sparse = "nheads=32 nheads-kv=8 headdim=256 sparse-ratio=0.02 "
	for _, x := range [][2]string{
		{"prefill", prefill + "batch-size=8 seqlen=1024"},
		{"prefill, lengths, padded", lengths + "padded=true"},
		{"prefill, lengths, packed", lengths},
		{"decode", "batch-size=8 nheads=64 nheads-kv=16 seqlen=1 seqlen-k=1024 headdim=64"},
		{"decode, lengths, paged", "nheads=4 headdim=64 varlen=1/1000,1/357,1/1624 padded=true page-size=16"},
		{"sparse decode, lengths, paged", sparse + "varlen=1/32000,1/17389,1/4096 padded=true page-size=16"},
		{"sparse decode", sparse + "batch-size=4 seqlen=1 seqlen-k=32000"},
	} {
		list = append(list, named(x[0], x[1])...)
	}
	return list
}

// decode has one row for each sequence over long K and V: contiguous, paged, quantized,
// sparse, and in batches of different lengths.
func decode() (list []Problem) {
	add := func(line, text string) { list = append(list, named(line, text)...) }
	quantized := map[int][]string{0: {"int8", "fp8", "q8_0", "q4_0"}, 1: {"int8", "fp8"}}
	for i, shape := range []string{
		"batch-size=8 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=8192 headdim=128",
		"batch-size=1 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=32768 headdim=128",
		"batch-size=8 nheads=64 nheads-kv=8 seqlen=1 seqlen-k=8192 headdim=64",
		"batch-size=8 nheads=32 seqlen=1 seqlen-k=8192 headdim=128",
		"batch-size=64 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=4096 headdim=128",
	} {
		add("contiguous", shape)
		add("paged", shape+" page-size=16,64,256,1")
		for _, kv := range quantized[i] {
			add(kv, shape+" kv-dtype="+kv)
		}
		if i == 0 {
			add("sparse", shape+" sparse-ratio=0.02")
			add("sparse, paged", shape+" sparse-ratio=0.02 page-size=16")
		}
	}
	const long = "batch-size=4 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=32000 headdim=256"
	add("contiguous", long)
	add("sparse", long+" sparse-ratio=0.02")
	add("sparse, paged", long+" sparse-ratio=0.02 page-size=16")
	// Latent attention, 128 heads over 8 devices.
	const latent = "batch-size=32 nheads=16 nheads-kv=1 seqlen=1 seqlen-k=8192 headdim=576 headdim-v=512 shared-kv=true"
	add("latent", latent)
	add("latent, paged", latent+" page-size=64")
	const mixed = "nheads=32 nheads-kv=8 headdim=128 "
	for _, x := range [][2]string{
		{"lengths", mixed + "varlen=1/1,1/235,1/13353 padded=true"},
		{"600 decodes, 5 prefills", mixed + "varlen=600*1/1024,5*2048/2048 causal=bottom-right"},
	} {
		add(x[0], x[1])
		add(x[0]+", paged", x[1]+" page-size=16")
	}
	return list
}

// named are the problems of the texts of sweeps, with a line.
func named(line string, sweeps ...string) (out []Problem) {
	for _, text := range sweeps {
		list, err := Lists(text).Problems()
		if err != nil {
			panic(err) // a table of this program has too many problems
		}
		for _, p := range list {
			p.Line = line
			out = append(out, p)
		}
	}
	return out
}

// depth has a chunk of a prompt and one new token after more and more cached keys, among which they are.
func depth() (list []Problem) {
	for _, rows := range []int{512, 1} {
		for _, depth := range []int{0, 4096, 8192, 16384, 32768, 65536, 131072} {
			list = append(list, named(fmt.Sprintf("%d after %d", rows, depth), fmt.Sprintf("batch-size=1 nheads=32 "+
				"nheads-kv=8 seqlen=%d seqlen-k=%d headdim=128 causal=bottom-right", rows, depth+rows))...)
		}
	}
	return list
}

// small has prompts and few rows over cached keys that a large GPU has more multiprocessors than work for.
func small() []Problem {
	const rows = "batch-size=1,4 nheads=8,32 nheads-kv=8 seqlen-k=512-8192*4 headdim=64,128 "
	return named("", "batch-size=1,4 nheads=8,32 nheads-kv=8 seqlen=64-1024*2 headdim=64,128 causal=none,top-left",
		"batch-size=2 nheads=16 seqlen=64-1024*2 headdim=64,128 causal=none,top-left",
		rows+"seqlen=1 causal=none", rows+"seqlen=4-64*4 causal=none,bottom-right")
}

// modifiers has options and expressions that say the same, in turn, and expressions that no option has.
func modifiers() (list []Problem) {
	relative := score.T5Bias(score.S, score.FloatTable("bias", 2), 32, 128, true)
	for _, x := range [][2]string{
		{"dense", "causal=none"},
		{"causal", "causal=top-left"},
		{"causal, a mask", "mask-mod=j<=i"},
		{"window", "causal=none window=1024,1024"},
		{"window, a mask", "mask-mod=abs(i-j)<=1024"},
		{"softcap", "causal=none softcap=30"},
		{"softcap, a score", "score-mod=30*tanh(s/30)"},
		{"alibi", "causal=none alibi=true"},
		{"alibi, a score", "score-mod=s-exp(-0.34657359*(h+1))*abs(i-j)"},
		{"documents", "mask-mod=i/1500==j/1500"},
		{"prefix", "mask-mod=j<=i||j<1000"},
		{"first keys and a window", "mask-mod=j<=i&&(j<4||i-j<1024)"},
		{"dilated", "mask-mod=j<=i&&(i-j)%4==0"},
		{"relative bias", "table=bias=16x32 score-mod=" + strings.ReplaceAll(relative.String(), " ", "")},
	} {
		lengths := "4096,16384"
		if x[0] == "dilated" {
			lengths = "4096" // its keys are counted one by one
		}
		list = append(list, named(x[0], "batch-size=2 nheads=16 headdim=64,128 seqlen="+lengths+" "+x[1])...)
	}
	return list
}

// models is the attention of one layer of the transformers of 768, 1024 and 1280 channels.
func models() (list []Problem) {
	const of = " batch-size=4 seqlen=1024 headdim=64 causal=top-left dtype=bf16"
	list = append(list, named("small", "layers=12 nheads=12"+of)...)
	list = append(list, named("medium", "layers=24 nheads=16"+of)...)
	return append(list, named("large", "layers=36 nheads=20"+of)...)
}

// ladder has a problem that each step of the kernel's development runs, and the problems of
// the forward suite.
func ladder() []Problem {
	list := named("ladder", "batch-size=8 nheads=8 seqlen=1024 headdim=128 causal=none,top-left")
	for i := range list {
		list[i].Ladder = true
	}
	return append(list, named("speed", "batch-size=16 nheads=8 seqlen=1024-16384*2 headdim=128,64 "+
		"causal=none,top-left")...)
}

// training has one layer of each transformer, attention alone, and one causal head.
func training() []Problem {
	list := append(models(), named("attention", "batch-size=8 nheads=1 seqlen=256,1024-4096*4,8192,16384 "+
		"headdim=16-128*2 causal=none dtype=f32")...)
	return append(list, named("flash attention", "batch-size=1 nheads=1 seqlen=128-32768*2 headdim=16-64*2 causal=top-left "+
		"dtype=bf16,f32")...)
}

// gqaGrid has squares and a rectangle of equal work, with and without grouped heads.
func gqaGrid() []Problem {
	const of = " nheads=32 nheads-kv=32,8 headdim=128 causal=none,bottom-right"
	return named("", "batch-size=16 seqlen=1024"+of, "batch-size=4 seqlen=1024 seqlen-k=4096"+of,
		"batch-size=1 seqlen=4096"+of)
}

// presetSuite has the forward passes of some presets, and a small default.
func presetSuite() []Problem {
	list := named("default", "batch-size=2 nheads=8 seqlen=1024 headdim=64")
	for _, name := range []string{"gpt2-small", "gpt3", "bert-base", "bert-large", "short", "long", "xlong"} {
		preset, _ := ParsePreset(name)
		list = append(list, named(name, preset.problems...)...)
	}
	return list
}

// Preset is the attention of a well-known model, or a usual shape.
type Preset struct {
	Name, About string
	problems    []string // texts of sweeps of one problem, in f16
}

// Presets lists them in the order of `vkattn bench --list`.
var Presets = []*Preset{
	{"gpt2-small", "12 layers, 12 heads", []string{"layers=12 batch-size=8 nheads=12 seqlen=1024 headdim=64 " +
		"causal=top-left"}},
	{"gpt3", "96 layers, 96 heads", []string{"layers=96 batch-size=2 nheads=96 seqlen=2048 headdim=128 causal=top-left"}},
	{"bert-base", "12 layers, 12 heads, every key visible", []string{"layers=12 batch-size=16 nheads=12 seqlen=512 " +
		"headdim=64"}},
	{"bert-large", "24 layers, 16 heads, every key visible", []string{"layers=24 batch-size=8 nheads=16 seqlen=512 " +
		"headdim=64"}},
	{"llama3-8b", "32 layers, 32 heads over 8", []string{"layers=32 batch-size=1 nheads=32 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"llama3-70b", "80 layers, 64 heads over 8", []string{"layers=80 batch-size=1 nheads=64 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"mistral-7b", "32 layers, 32 heads over 8, window of 4096 keys", []string{
		"layers=32 batch-size=1 nheads=32 nheads-kv=8 seqlen=8192 headdim=128 causal=bottom-right window=4095,0"}},
	{"gemma2-9b", "21 layers with a window of 4096 keys and 21 without, softcap 50", []string{
		"layers=21 batch-size=1 nheads=16 nheads-kv=8 seqlen=8192 headdim=256 causal=bottom-right softcap=50 window=4095,0",
		"layers=21 batch-size=1 nheads=16 nheads-kv=8 seqlen=8192 headdim=256 causal=bottom-right softcap=50"}},
	{"gemma3-27b", "52 layers with a window of 1024 keys and 10 without", []string{
		"layers=52 batch-size=1 nheads=32 nheads-kv=16 seqlen=8192 headdim=128 causal=bottom-right window=1023,0",
		"layers=10 batch-size=1 nheads=32 nheads-kv=16 seqlen=8192 headdim=128 causal=bottom-right"}},
	{"qwen3-32b", "64 layers, 64 heads over 8", []string{"layers=64 batch-size=1 nheads=64 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"deepseek-v3-mla", "61 layers, 128 heads: prefill at 192/128, decode over latents of 576/512", []string{
		"layers=61 batch-size=1 nheads=128 seqlen=4096 headdim=192 headdim-v=128 causal=bottom-right",
		"layers=61 batch-size=8 nheads=128 nheads-kv=1 seqlen=1 seqlen-k=4096 headdim=576 headdim-v=512 shared-kv=true"}},
	{"short", "large batch of short sequences", []string{"batch-size=32 nheads=8 seqlen=512 headdim=64"}},
	{"long", "one long sequence", []string{"batch-size=1 nheads=8 seqlen=8192 headdim=64"}},
	{"xlong", "one very long sequence", []string{"batch-size=1 nheads=8 seqlen=16384 headdim=64"}},
}

func (s *Preset) String() string { return s.Name }

// ParsePreset finds one of Presets.
func ParsePreset(name string) (*Preset, error) { return flagtext.Find("preset", name, Presets) }

// With returns the problems of the preset, in which given lists replace those of the preset. Keys follow
// rows, KV heads follow heads and V follows K as long as the preset has them equal.
func (s *Preset) With(given Sweep) (out []Problem, err error) {
	for _, text := range s.problems {
		list, err := Lists(text).With(given).Problems()
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			p.Line = s.Name
			out = append(out, p)
		}
	}
	return out, nil
}

// Sizes of Shrink: a problem takes two cores some milliseconds.
const (
	smallHeads   = 8
	smallLengths = 16
)

// Shrink cuts the problems of a list down for a CPU: one sequence, or all sequences of a
// batch of different lengths, a 16th of the rows and keys, and at most 8 heads with the
// same number of heads for each KV head.
func Shrink(list []Problem) (out []Problem) {
	cut := func(n int) int {
		if n == 0 {
			return 0
		}
		return max(1, n/smallLengths)
	}
	for _, p := range list {
		s := &p.Shape
		group := s.Group()
		s.B, s.Hq, s.Sq, s.Sk = 1, min(s.Hq, max(smallHeads, group)), cut(s.Sq), cut(s.Sk)
		s.Hkv = max(1, s.Hq/group)
		if p.Lengths != "" {
			var lengths []string
			rows, keys := p.Lengths.lists()
			for i := range rows {
				lengths = append(lengths, sequence(cut(rows[i]), cut(keys[i])))
			}
			p.Lengths = Lengths(strings.Join(lengths, ","))
			p.Lengths.bound(s)
		}
		out = sweep.Union(out, p)
	}
	return out
}

// Defaults is the sweep of `vkattn bench` without lists and suites. On a CPU it takes
// about a minute. A discrete GPU has the usual published shapes, an integrated one a
// quarter of their batch.
func Defaults(on *attention.Device) Sweep {
	dev := on.Vulkan()
	switch {
	case OnCPU(on):
		return Lists("batch-size=1 nheads=4 seqlen=256,512 headdim=64,128 causal=none,top-left dtype=f16")
	case dev != nil && dev.Info().Type != vk.DeviceDiscrete:
		return Lists("batch-size=4 nheads=8 seqlen=1024-4096*2 headdim=64,128 causal=none,top-left dtype=f16")
	}
	return Lists("batch-size=16 nheads=8 seqlen=1024-4096*2 headdim=64,128 causal=none,top-left dtype=f16")
}
