package cases

import (
	"strings"

	"vkattn/internal/problem"
)

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
