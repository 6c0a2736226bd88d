package cases

import (
	"reflect"
	"slices"
	"strings"

	"vkattn/internal/problem"
)

// AllOptions is the whole table: the tables of all options, each also at the other head
// dimensions, mixed batches as servers have them, and many compositions. It suits a GPU.
func AllOptions() []Case {
	all := optionTables(true)
	all = append(all, otherDims(all)...)
	all = append(all, lines(servingLines, true)...)
	all = append(all, lines(crowdLines, true)...)
	for n := range fullCompositions {
		all = append(all, RandomOptions(n))
	}
	return all
}

const fullCompositions = 160

// otherDims has one case of each option's table at each head dimension that the table
// lacks, in turn. Odd head dimensions come with odd layouts.
func otherDims(tables []Case) []Case {
	byName := map[string][]Case{}
	var names []string
	for _, c := range tables {
		if c.D != 64 || c.Dv != 64 {
			continue
		}
		if byName[c.Name] == nil {
			names = append(names, c.Name)
		}
		byName[c.Name] = append(byName[c.Name], c)
	}
	var all []Case
	for n, name := range names {
		for i, d := range [][2]int{{128, 128}, {96, 96}, {256, 256}, {32, 64}, {128, 64}, {192, 128}, {80, 80}, {40, 40}, {111, 111}, {7, 7}} {
			even := d[0]%32 == 0 && d[1]%32 == 0
			from := slices.DeleteFunc(slices.Clone(byName[name]), func(c Case) bool { return c.KeyType.Blocked() && !even })
			// The step has no factor in common with the lengths of most tables.
			all = append(all, from[(7*i+n)%len(from)].with(func(c *Case) {
				c.D, c.Dv = d[0], d[1]
				if !even {
					c.Layout, c.LSE, c.Access = Odd, i%3 != 0, Accesses[i%2]
				}
			}))
		}
	}
	return all
}

// servingLines are the batches of a server, judged by a sample of rows: three lengths, 600 decodes and 5 long prefills
// among them, and 600 decodes. Of the smaller ones every row is judged.
const servingLines = `serving:
	prefill d128 H4k1 bottom-right 1x1+235x235+13353x13353 packedq packedk bshd sample400
	+ -packedk page16
	+ d64
	+ d64 -packedk page64 window1023_0
	+ prefills605 -packedk page16
	+ prefills605 d64 -packedk page64 prefix256
	+ prefills605 d64
	+ prefills605 -packedk page16 split3
	+ server600 -packedq -packedk page1
	+ server600 -packedq -packedk page16 fp8
	+ d256 H32k8 none 1x32000 -packedq -packedk sparse0.02
	+ none 4*1x32000 -packedq -packedk page5 sparse0.05
	+ d576v512 H128k1 4*1x5000 -packedq -packedk page64 vink sample100
serving-decodes: prefill d128 H4k1 bottom-right server100 packedq page16 bshd sample4000
serving-crowd: prefill d128 H4k1 bottom-right prefills100 packedq page16 bshd sample4000`

// server are sequences of one row and up to `most` keys. If most is 900, every 121st is a long prefill.
func server(n, step, most int) (list []Seq) {
	for i := range n {
		s := Seq{i, 1, 1 + (i*step)%most}
		if most == 900 && i%121 == 60 {
			s.Rows, s.Keys = 1500+i, 2000+i
		}
		list = append(list, s)
	}
	return list
}

// crowdLines are packed batches of many short sequences and some long ones. The two kinds
// get separate dispatches if there are enough short ones for a device's cores.
const crowdLines = `crowd:
	prefill bottom-right crowd144 packedq packedk
	+ -packedk page16 -lse
	+ top-left -packedk page1 window40_0
	+ none looseq loosek
	+ d128 H8k1
	+ H2 softcap5 sinks
	+ d96 -packedk page64 prefix64 alibi
	+ bias-f16-bhr mask-bhr
	+ -packedk page16 int8 scale16
	+ q4_0
	+ d256 -packedk page5
	+ -packedk page16 blocks16x64-bh
	+ d576v512 H16k1 -packedk page64 vink # all rows of a fragment are a query's`

// crowd144 are the sequences of crowd, then 11 times the same with fewer rows.
func crowd144(crowd []Seq) (list []Seq) {
	for i := range 144 {
		s := crowd[i%len(crowd)]
		if i >= len(crowd) && s.Rows > 5 {
			s.Rows = 1 + i%2
		}
		list = append(list, Seq{i, s.Rows, s.Keys})
	}
	return list
}

// CompactOptions is a table of all options with as few pipelines as possible: for kernels
// that a driver on the CPU takes seconds to compile. The options of a pipeline are ones
// that people combine. Problems that differ in nothing that changes the pipeline share it.
func CompactOptions() []Case {
	all := lines(compactLines, true)
	for _, kv := range []problem.KVType{problem.KVFP8, problem.KVQ8_0, problem.KVQ4_0} {
		all = append(all, lines(strings.ReplaceAll("compact-quant: decode KV\ndecode 2*2x330 KV\ndecode KV v-"+OtherKVType(kv).String(), "KV", kv.String()), true)...)
	}
	all = append(all, lines(latentLines, true)[0])
	for _, o := range options {
		all = append(all, lines(o.compact, true)...)
	}
	return all
}

const compactLines = `
	# Rows of many sequences, short and long, causal, with a window.
	compact-window: prefill d32 bottom-right crowd packedq packedk window40_0 alibi sinks
	prefill d32 top-left crowd packedq packedk window40_0 alibi sinks
	prefill d32 bottom-right crowd packedq packedk window0_3 alibi sinks
	prefill d32 bottom-right crowd packedq packedk window100_5 alibi sinks
	# Pages with softcap and bias, no mask.
	compact-paged: prefill d32 mixed looseq page16 prefix48 softcap5 bias-f16-bhr
	prefill d32 mixed looseq page16 prefix48 softcap50 bias-f16-b
	prefill d32 mixed looseq page16 softcap5 bias-f16-r bshd
	# Pages of quantized rows, with K and V of different lengths and tiles that a bitmap excludes.
	prefill d32v48 bottom-right mixed packedq page16 blocks16x64-bh int8 scale16
	prefill d32v48 top-left mixed packedq page16 blocks16x64-bh int8 scale16
	prefill d32v48 bottom-right 2*12x900 packedq page16 blocks16x64-b int8 scale16
	# The other types.
	compact-quant: decode q5_0 v-q5_1
	decode d320v256 page5 iq4_nl
	prefill d576v512 H8k1 bottom-right 1x130+4x64+3x70+0x3 packedq page64 vink fp8_ds_mla
	prefill d576v512 H2k1 bottom-right 70x90+20x33 packedq packedk vink fp8_ds_mla
	# Pages as long as a tile.
	prefill d32 bottom-right mixed packedq page64 prefix64
	prefill d32 top-left mixed packedq page64 prefix64
	# A mask, and quantized keys.
	compact-mask: prefill d32 mask-bhr int8 scale16
	prefill d32 mask-br int8 scale16
	prefill d32 mask-h int8 scale16
	prefill d32 mask-hr int8 scale16 bshd
	# A scale of a head, and of all of K or V.
	compact-quant: decode bottom-right decodes packedq page5 fp8 v-int8 scale-1
	decode fp8-e5m2 v-fp8 scale-2
	# A bitmap of blocks under a causal mask.
	compact-blocks: prefill d32 bottom-right 2*150x333 blocks32x64-bh
	prefill d32 top-left 2*150x333 blocks32x64-bh
	prefill d32 bottom-right 3*170x700 blocks32x64-b
	prefill d32 bottom-right 2*140x2200 blocks32x64-h
	# Decoding: few rows, keys split.
	compact-decode: decode split3
	decode split7
	decode 2*2x700 split2
	decode H7k1 page48 split3
	compact-serving: decode bottom-right decodes packedq page5 prefix64 sinks split3
	decode bottom-right decodes packedq page5 prefix64 sinks split2
	decode top-left decodes packedq page5 prefix64 sinks split3
	# Pages whose keys do not run over a fragment: subgroups have an even or an odd number of tiles.
	compact-pages: decode d72 1x40+1x100+1x170+1x235+1x300+1x420 page5 split1
	compact-sparse: decode page16 sparse0.3 shuffled
	decode page16 sparse0.02
	decode page16 sparse1 shuffled
	decode H10k2 page16 sparse0.3 shuffled
	# Tiles full of keys that some rows may not see.
	prefill bottom-right 3*2x304 sparse1
	prefill top-left 3*2x304 sparse1
	prefill bottom-right 3*2x304 sparse0.5
	# Lists of each query row.
	decode bottom-right 3*3x304 page16 sparse0.3 shuffled perrow topk
	decode bottom-right 3*3x304 page16 sparse0.02 perrow topk
	decode H40k1 bottom-right 2*3x200 packedq sparse0.3 shuffled perrow
	prefill d32 H136k1 bottom-right 2*5x90 sparse0.3 shuffled perrow topk # several tiles of a query
	compact-blocks: decode 2*1x1100 page16 blocks16x16-h
	decode 2*1x1100 page16 blocks16x16-bh
	# Rows of 256 columns, which subgroups share: of a list, of pages, with masks.
	compact-wide: decode d256 bottom-right 2*2x333 page16 sparse0.3 split2
	decode d256 top-left 2*2x333 page16 sparse0.3 split2
	decode d256 bottom-right 2*1x700 page16 sparse1 split2
	decode d256 bottom-right 2*2x333 page16 sparse0.02 split2
	compact-mask: decode bias-f32-bhr mask-bhr
	decode bias-f32-br mask-hr
	# Dropout of packed rows of several lengths, with all keys and with lists.
	compact-dropout: prefill d32 bottom-right crowd packedq packedk dropout0.25
	prefill d32 top-left crowd packedq packedk dropout0.25
	prefill d32 bottom-right crowd packedq packedk dropout0.9
	decode 2*2x304 sparse0.5 dropout0.5 split3
	decode 2*2x304 sparse1 dropout0.5 split3
`

// CompactGradients has the options that CompactOptions has only with pages or quantized K and
// V, which have no gradients.
func CompactGradients() []Case {
	return lines("compact-gradients: prefill d32 mixed align-bottom-right window50_20 softcap3 alibi alibi-b", true)
}

// noGradientOption are the fields of Config and Args that are no option of a call with
// gradients, and why. Every other field is one: a new field fails tests until tables of
// gradients have it, or it is here.
var noGradientOption = map[string]string{
	"DType": "a size", "HeadDim": "a size", "HeadDimV": "a size", "Shape": "a size",
	"Q": "a tensor", "K": "a tensor", "V": "a tensor", "O": "a tensor", "LSE": "a tensor",
	"Tier": "how, not what", "Access": "how, not what", "Tuning": "how, not what", "Check": "how, not what", "Kernel": "how, not what",
	"F32O": "a storage type", "F32Gradients": "a storage type",
	"FixedSplit":  "Forward alone splits keys",
	"DropoutSeed": "of Dropout", "DropoutOffset": "of Dropout", "DropoutState": "of Dropout", "ALiBiPerSequence": "of ALiBi", "MaxLogits": "an output of Forward",
	"KeyType": "has no gradients", "ValueType": "has no gradients", "KVBlock": "has no gradients", "KScale": "has no gradients", "VScale": "has no gradients", "Pages": "has no gradients",
	"ScoreMod": "tests/modifiers_backward_test.go has it", "MaskMod": "tests/modifiers_backward_test.go has it", "Tables": "tests/modifiers_backward_test.go has them",
	"BlockMap": "attention/backward_map_test.go has it",
}

// GradientOptions are the options that a call with gradients may have: names of fields of
// Config and Args. Each of them needs a row in every table of gradients.
func GradientOptions() (names []string) {
	for _, t := range []reflect.Type{reflect.TypeFor[problem.Config](), reflect.TypeFor[problem.Args]()} {
		for i := range t.NumField() {
			if name := t.Field(i).Name; noGradientOption[name] == "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// GradientOptionsOf are the options that a call has.
func GradientOptionsOf(cfg problem.Config, a problem.Args) (names []string) {
	for _, v := range []reflect.Value{reflect.ValueOf(cfg), reflect.ValueOf(a)} {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; noGradientOption[name] == "" && !v.Field(i).IsZero() {
				names = append(names, name)
			}
		}
	}
	return names
}
