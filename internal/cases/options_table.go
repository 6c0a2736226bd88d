package cases

import (
	"slices"
	"strings"

	"vkattn/internal/problem"
)

// BriefOptions is a table for each option, with few pipelines, and some compositions, for
// drivers on the CPU. [AllOptions] is the whole table.
func BriefOptions() []Case { return withCompositions(optionTables(false), 6) }

// WideOptions is BriefOptions with any number of pipelines: for the CPU tier, which
// compiles none.
func WideOptions() []Case { return withCompositions(optionTables(true), 20) }

func withCompositions(all []Case, count int) []Case {
	for n := range count {
		all = append(all, RandomOptions(n))
	}
	return all
}

// prefill and decode are the cases that the tables vary.
func prefill(name string) Case {
	return Case{Name: name, D: 64, Dv: 64, Shape: problem.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: Packed, Seqs: equal(2, 70, 133)}
}

func decode(name string) Case {
	return Case{Name: name, D: 64, Dv: 64, Shape: problem.Shape{Hq: 8, Hkv: 2}, LSE: true, Layout: Packed, Seqs: equal(3, 1, 301)}
}

// with returns a changed copy of a case.
func (c Case) with(change func(*Case)) Case {
	c.Seqs = slices.Clone(c.Seqs)
	change(&c)
	return c
}

// The tables of the options; lines says how they are read.
const (
	varlenLines = `varlen:
	wide prefill mixed packedq packedk
	prefill mixed packedq packedk looseq loosek bshd
	wide prefill mixed looseq loosek tight
	wide prefill mixed packedq padded
	wide prefill mixed packedk loosek
	prefill top-left mixed packedq packedk bshd
	prefill top-left mixed packedq packedk looseq loosek tight
	prefill top-left mixed looseq loosek padded
	prefill top-left mixed packedq
	prefill top-left mixed packedk loosek bshd
	prefill bottom-right mixed packedq packedk tight
	prefill bottom-right mixed packedq packedk looseq loosek padded
	prefill bottom-right mixed looseq loosek
	prefill bottom-right mixed packedq bshd # a batch of caches
	prefill bottom-right mixed packedk loosek tight
	prefill bottom-right 70x133+70x0+70x31 # all rows there are, of keys in use
	prefill top-left 70x133+0x133+31x133 # and the reverse
	prefill 0x0+1x1+0x0 packedq packedk # nothing at all but one row
	decode bottom-right decodes packedq`
	pagedLines = `paged:
	prefill bottom-right mixed packedq page1 prefix40
	wide prefill page1 # of one length: no lengths are given
	wide decode bottom-right decodes packedq page1 prefix64
	prefill bottom-right mixed packedq page5 prefix40 bshd
	wide prefill page5 bshd
	decode bottom-right decodes packedq page5 prefix64 bshd
	prefill bottom-right mixed packedq page16 prefix40 tight
	wide prefill page16 tight
	decode bottom-right decodes packedq page16 prefix64 tight
	prefill bottom-right mixed packedq page64 prefix40 padded
	prefill page64 padded
	wide decode bottom-right decodes packedq page64 prefix64 padded
	prefill bottom-right mixed packedq page256 prefix40 bshd
	wide prefill page256 bshd
	wide decode bottom-right decodes packedq page256 prefix64 bshd
	decode bottom-right 5*1x290 page16 prefix272 # pages of a prefix that all sequences share, and little else
	decode 2*2x301 page48 # no power of two
	prefill top-left page48
	prefill d96v64 bottom-right mixed packedq page16 # rows of K and V of different lengths: no whole number of tiles
	prefill d80v48 page64
	prefill mixed packedq page16 int8 scale16 # quantized, and with tiles that a bitmap leaves out
	prefill bottom-right 2*70x900 page16 blocks16x64-bh`
	sparseLines = `sparse:
	decode sparse0.02
	decode bottom-right decodes packedq loosek sparse0.02 shuffled
	decode page16 sparse0.02
	decode bottom-right decodes packedq loosek page16 sparse0.02 shuffled
	decode sparse0.3
	decode bottom-right decodes packedq loosek sparse0.3 shuffled
	decode page16 sparse0.3
	decode bottom-right decodes packedq loosek page16 sparse0.3 shuffled
	decode sparse1
	decode bottom-right decodes packedq loosek sparse1 shuffled
	decode page16 sparse1
	decode bottom-right decodes packedq loosek page16 sparse1 shuffled
	decode 1x1500 page5 sparse0.1
	decode bottom-right 3*2x304 sparse1 # tiles full of keys that some rows may not see
	decode top-left 3*2x304 sparse0.5
	prefill top-left sparse0.25 shuffled
	decode 2*2x304 sparse0.5 mask-bhr # and a mask
	decode bottom-right decodes packedq loosek sparse0.3 shuffled topk
	decode bottom-right decodes packedq loosek sparse0.3 shuffled perrow # each query row has lists of its own
	decode page16 sparse0.3 shuffled perrow topk
	prefill bottom-right mixed packedq looseq sparse0.25 shuffled perrow topk
	prefill top-left 3*5x304 sparse0.5 perrow mask-bhr
	prefill d32 H136k1 bottom-right 2*5x90 sparse0.3 shuffled perrow topk # several tiles of a query
	decode H10k2 3*3x304 page5 sparse0.1 perrow topk split2
	prefill bottom-right mixed sparse0.25 shuffled mask-br`
	blocksLines = `blocks:
	prefill 2*150x333 blocks16x16-bh
	wide prefill bottom-right mixed looseq loosek blocks16x16-one tight
	wide prefill top-left 2*150x333 blocks64x64-bh
	prefill bottom-right mixed looseq loosek blocks64x64-one tight
	prefill bottom-right 2*150x333 blocks32x128-bh
	wide prefill bottom-right mixed looseq loosek blocks32x128-one tight
	wide prefill 2*150x333 blocks128x16-bh
	prefill bottom-right mixed looseq loosek blocks128x16-one tight
	decode 2*1x1100 blocks16x16-h # more than a word of bits
	decode 2*1x1100 page16 blocks16x32-b
	decode 2*2x304 blocks16x16-h mask-bhr # and a mask
	prefill bottom-right mixed blocks32x64-bh mask-br`
	windowLines = `window:
	prefill top-left window17_0
	prefill bottom-right 2*133x70 window17_0
	wide prefill align-top-left mixed packedq packedk window17_0
	brief prefill align-top-left window17_0
	prefill align-bottom-right window17_0
	prefill top-left 2*133x70 window40_40 # more rows than keys: some see nothing
	wide prefill bottom-right mixed packedq packedk window40_40
	brief prefill bottom-right window40_40
	prefill align-top-left window40_40
	prefill align-bottom-right 2*133x70 window40_40
	prefill top-left mixed packedq packedk window-1_9
	prefill bottom-right window-1_9
	prefill align-top-left 2*133x70 window-1_9
	wide prefill align-bottom-right mixed packedq packedk window-1_9
	brief prefill align-bottom-right window-1_9
	prefill top-left window0_0
	prefill bottom-right 2*133x70 window0_0
	wide prefill align-top-left mixed packedq packedk window0_0
	brief prefill align-top-left window0_0
	prefill align-bottom-right window0_0
	prefill top-left 2*133x70 window64_-1
	prefill bottom-right mixed packedq packedk window64_-1
	prefill align-top-left window64_-1
	prefill align-bottom-right 2*133x70 window64_-1
	prefill bottom-right 300x700 window100_0 # whole tiles to either side of the window
	decode bottom-right 2*1x700 window100_0
	decode bottom-right decodes packedq page16 window50_0`
	softcapLines = `softcap:
	prefill softcap50
	decode softcap50
	prefill bottom-right softcap5
	decode softcap5
	prefill softcap0.7
	decode softcap0.7
	prefill softcap30 large`
	alibiLines = `alibi:
	prefill top-left alibi
	prefill top-left mixed packedq packedk alibi
	prefill bottom-right alibi
	prefill bottom-right mixed packedq packedk alibi
	prefill align-top-left alibi
	wide prefill align-top-left mixed packedq packedk alibi
	prefill align-bottom-right alibi
	wide prefill align-bottom-right mixed packedq packedk alibi
	decode bottom-right alibi
	prefill bottom-right mixed alibi alibi-b
	prefill bottom-right mixed packedq packedk alibi alibi-b
	decode bottom-right mixed loosek alibi alibi-b`
	sinksLines = `sinks:
	prefill sinks
	prefill bottom-right 2*133x70 sinks # rows with nothing but the sink
	prefill bottom-right mixed packedq packedk sinks
	decode sinks
	decode 2*1x700 sinks split3`
	biasLines = `bias:
	prefill bias-f16-one
	wide prefill mixed looseq loosek bias-bf16-one tight
	brief prefill bias-bf16-one tight
	prefill bias-f32-one padded
	prefill mixed looseq loosek bias-f16-r tight
	prefill bias-bf16-r padded
	wide prefill mixed looseq loosek bias-f32-r
	brief prefill bias-f32-r
	prefill bias-f16-h padded
	wide prefill mixed looseq loosek bias-bf16-h
	brief prefill bias-bf16-h
	prefill bias-f32-h tight
	prefill mixed looseq loosek bias-f16-b
	prefill bias-bf16-b tight
	wide prefill mixed looseq loosek bias-f32-b padded
	brief prefill bias-f32-b padded
	prefill bias-f16-bhr tight
	wide prefill mixed looseq loosek bias-bf16-bhr padded
	brief prefill bias-bf16-bhr padded
	prefill bias-f32-bhr
	prefill mixed looseq loosek bias-f16-hr padded
	prefill bias-bf16-hr
	wide prefill mixed looseq loosek bias-f32-hr tight
	brief prefill bias-f32-hr tight
	decode bias-f32-bhr
	decode page16 bias-f32-b
	prefill 2*65x77 bias-f16-bhr odd`
	maskLines = `mask:
	prefill mask-one
	prefill bottom-right mixed looseq loosek mask-one
	wide prefill top-left mask-r tight
	brief prefill mask-r tight
	prefill bottom-right mixed looseq loosek mask-r
	wide prefill bottom-right mask-h padded
	brief prefill mask-h padded
	prefill bottom-right mixed looseq loosek mask-h
	prefill mask-b
	prefill bottom-right mixed looseq loosek mask-b
	wide prefill top-left mask-bhr tight
	brief prefill mask-bhr tight
	prefill bottom-right mixed looseq loosek mask-bhr
	wide prefill bottom-right mask-hr padded
	brief prefill mask-hr padded
	prefill bottom-right mixed looseq loosek mask-hr
	decode mask-bhr
	decode page16 mask-b`
	splitLines = `split:
	decode split1
	decode bottom-right decodes packedq split1
	decode bottom-right decodes packedq page16 split1
	decode split2
	decode bottom-right decodes packedq split2
	decode bottom-right decodes packedq page16 split2
	decode split3
	decode bottom-right decodes packedq split3
	decode bottom-right decodes packedq page16 split3
	decode split7
	decode bottom-right decodes packedq split7
	decode bottom-right decodes packedq page16 split7
	prefill 70x400 split3
	prefill bottom-right 150x90 split7 # most parts of most rows are empty
	decode 1x3000 # as many parts as the device likes
	decode bottom-right 4x2999
	decode sparse0.3 split3
	decode: prefill H2 2*1x203
	decode top-left 2*1x203 bshd
	prefill H8k1 bottom-right 2*1x203 tight
	prefill H10k2 2*1x203
	prefill H7k1 top-left 2*1x203 bshd
	decode bottom-right 2*2x204 tight
	prefill H10k2 top-left 2*2x204 bshd
	prefill H2 bottom-right 2*3x205 tight
	prefill H8k1 top-left 2*3x205 bshd
	prefill H7k1 2*3x205
	decode top-left 2*5x206 bshd
	prefill H10k2 2*5x206
	prefill H2 top-left 2*8x207 bshd
	prefill H8k1 2*8x207
	prefill H7k1 bottom-right 2*8x207 tight
	decode 2*13x208
	prefill H10k2 bottom-right 2*13x208 tight
	prefill H2 2*16x209
	prefill H8k1 bottom-right 2*16x209 tight
	prefill H7k1 top-left 2*16x209 bshd
	decode 2*3x131 odd
	decode d128 bottom-right`
	latentLines = `latent:
	prefill d576v512 H8k1 2*1x130 vink
	prefill d576v512 H8k1 bottom-right 1x130+2x64+0x3 packedq page64 vink
	prefill d576v512 H8k1 2*1x130 vink split2 bshd
	prefill d576v512 H8k1 2*1x130 q4_0
	prefill d576v512 H16k1 bottom-right 2x130+3x64+0x3 packedq page64 vink sparse0.3 shuffled perrow topk # as DeepSeek selects keys
	prefill d576v512 H8k1 2*1x130 vink fp8_ds_mla
	prefill d576v512 H8k1 bottom-right 1x130+4x64+3x70+0x3 packedq page64 vink fp8_ds_mla
	prefill d576v512 H16k1 bottom-right 2x130+3x64+0x3 packedq page64 vink sparse0.3 shuffled perrow topk fp8_ds_mla
	prefill d576v512 H2k1 top-left 1x90+40x70 looseq packedk vink split2 fp8_ds_mla odd
	prefill d192v128 H4 bottom-right mixed packedq packedk`
	dropoutLines = `dropout:
	wide prefill dropout0.1
	prefill bottom-right dropout0.5 -lse
	prefill bottom-right mixed packedq packedk dropout0.25 sinks
	decode dropout0.9 split3
	decode page16 sparse0.3 shuffled dropout0.1
	wide prefill mixed looseq loosek softcap5 dropout0.2 bias-f32-bhr
	wide prefill sparse0.5 shuffled dropout0.3
# Quantized K and V exclude dropout.
random-dropout-0: wide random5000 same v-same scale0 dropout0.1
random-dropout-1: wide random5001 same v-same scale0 dropout0.5
random-dropout-2: wide random5002 same v-same scale0 dropout0.75
random-dropout-3: wide random5003 same v-same scale0 dropout0.001
random-dropout-4: wide random5004 same v-same scale0 dropout0.1
random-dropout-5: wide random5005 same v-same scale0 dropout0.5`
	chunkLines = `chunk:
	prefill bottom-right chunk32
	prefill top-left chunk40 # no multiple of a tile
	prefill bottom-right chunk1
	prefill bottom-right 2*133x70 chunk50 # more rows than keys: some see nothing
	prefill top-left 2*133x70 chunk64 # rows past the last key: their chunk may have none
	prefill bottom-right 300x700 chunk256 # whole tiles before and behind a chunk
	prefill bottom-right 70x300 chunk2147483647 # one chunk
	prefill bottom-right mixed packedq packedk alibi sinks chunk24
	decode bottom-right chunk128
	decode bottom-right decodes packedq page16 split3 chunk48`
	chunkCompactLines = `
	compact-chunk: prefill d32 bottom-right crowd packedq packedk chunk40
	prefill d32 top-left crowd packedq packedk chunk64
	decode bottom-right chunk100`
	modsLines = `mods:
	prefill 2*150x333 mods1 # a mask, scores, both, and again
	prefill bottom-right mixed packedq packedk mods2
	wide prefill top-left mixed looseq loosek mods3 tight
	wide prefill 2*150x700 mods4
	wide prefill page16 mixed packedq mods6 bias-f32-h
	wide prefill bottom-right mixed packedq mods9 alibi softcap3 sinks
	wide prefill sparse0.3 mods7
	wide prefill blocks32x64-bh 2*150x333 mods10
	wide prefill mask-hr mods13
	decode mods3
	wide decode bottom-right decodes packedq page16 split3 mods5
	decode sparse0.3 mods16`
	modsCompactLines = `
	compact-mods: prefill d32 bottom-right crowd packedq packedk mods12
	decode d32 mods15`
)

// quantLines has each type of K and V. One with scales has one size of blocks for prefill and the other for decoding.
func quantLines() string {
	text := "quant:\n"
	for i, kv := range slices.DeleteFunc(problem.KVTypes()[1:], problem.KVType.Latent) { // whose cases are latentLines
		of, mixed := `
	prefill KV tight
	decode KV
	wide decode bottom-right decodes packedq page16 KV OTHER
`, "prefill mixed packedq packedk looseq loosek KV"
		if kv.Scaled() {
			mixed += " scale16" // blocks of the packed tensor, which sequences begin and end within
			of = `
	wide prefill KV tight
	decode KV
	decode bottom-right decodes packedq page16 KV
	prefill KV OTHER scale16 bshd
	wide decode KV scale16
	wide decode bottom-right decodes packedq page5 KV scale16
	decode KV OTHER scale-1 # a scale of each head
	wide decode bottom-right decodes packedq page5 KV scale-1
	prefill mixed packedq packedk KV scale-2 # one scale
`
		}
		if i%2 == 1 {
			mixed = "wide " + mixed
		}
		text += strings.NewReplacer("KV", kv.String(), "OTHER", "v-"+OtherKVType(kv).String()).Replace(of + mixed + "\n")
	}
	return text
}
