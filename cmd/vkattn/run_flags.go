package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/sweep"
	"vkattn/internal/problem"
)

// optionFlags are the flags of `vkattn run` for the options of the call.
type optionFlags struct {
	values        axisTexts
	call          attention.Config // what values say
	pageSize      int
	hnd           bool // --kv-layout
	dropoutSeed   uint64
	dropoutOffset uint32
	block         [2]int
	kvBlock       int
	vDim          int
	tables        bench.Tables
	gradients     []string     // name=file of --dtable
	outputs       []outputFile // of them
}

func (o *optionFlags) add(f *pflag.FlagSet) {
	o.values = axisTexts{}
	for _, axis := range bench.Axes {
		x := *axis
		x.Usage = axis.InRun
		o.values.add(f, &x)
	}
	f.IntVar(&o.pageSize, "page-size", 0, "number of keys in a page; must match the files of --k and --v")
	f.Var(layoutFlag(&o.hnd, "nhd", "hnd"), "kv-layout", bench.KVLayoutUsage)
	f.Uint64Var(&o.dropoutSeed, "dropout-seed", 0, "`seed` of the dropout mask, 64 bits")
	f.Uint32Var(&o.dropoutOffset, "dropout-offset", 0, "`offset` of the dropout mask, 32 bits: another mask for each")
	f.Var(parsed[[2]int]{to: &o.block, parse: sweep.Pair(1), kind: "rows,keys"}, "block-size",
		"rows,keys of a block of --block-mask, powers of two from 16")
	f.IntVar(&o.vDim, "v-dim", 0, "V is the first `n` elements of each row of K, as in multi-head latent attention; "+
		"replaces --v")
	f.Var(parsed[int]{to: &o.kvBlock, parse: parseKVBlock, kind: "keys", print: problem.KVBlockName}, "kv-block", "number of `keys` that share a "+
		"scale; the last axis of the scales then counts blocks; head: scales [Hkv], tensor: one [1] (default 1)")
}

// parseKVBlock parses a number of keys, head or tensor.
func parseKVBlock(s string) (int, error) {
	for _, block := range []int{attention.KVBlockHead, attention.KVBlockTensor} {
		if s == problem.KVBlockName(block) {
			return block, nil
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > attention.MaxLength {
		return 0, fmt.Errorf("%q is neither a positive number, head nor tensor", s)
	}
	return n, nil
}

// read parses the values that the command shares with bench.
func (o *optionFlags) read() error {
	lists, err := o.values.parse()
	if err != nil {
		return err
	}
	var p bench.Problem
	for _, axis := range bench.Axes {
		switch list := lists[axis.Flag]; len(list) {
		case 0:
		case 1:
			axis.Set(&p, list[0])
		default:
			return badInputf("--%s %s: want one value", axis.Flag, o.values[axis.Flag])
		}
	}
	o.call, o.tables = p.Config, p.Tables
	o.call.Align = attention.CausalNone // no default: it must be given
	for _, align := range bench.ListOf[attention.Causal](lists, "align") {
		o.call.Align = align
	}
	return nil
}

const optionHelp = `
Scores. Row r has position i in its sequence. Its score with key j is

    s = scale * q.k
    s = softcap * tanh(s / softcap)     with --softcap
    s = s + bias[r, j]                  with --bias
    s = s - slope * |i - j|             with --alibi
    s = the expression                  with --score-mod

in this order. With top-left alignment i = r; with bottom-right alignment i = r + keys
- rows of the sequence. --causal sets the alignment; without a causal mask --window
and --alibi need --align. With --causal a row attends to keys j <= i, with --window to
keys i - left to i + right. The row sum is the sum of exp(s), plus exp(sink) with
--sinks; LSE is its natural logarithm. Sinks have no value and add nothing to O. A row
without keys has O = 0. Its LSE is -Inf, or its sink with --sinks. On tiers coopmat and
coopmat2 a row whose largest score is beyond 2^24 in magnitude is NaN, unless --softcap,
--bias, --alibi or --score-mod changes scores.

Modifiers. --score-mod and --mask-mod are expressions with the operators and precedence
of C. They read the score s (masks do not), the numbers b of the sequence, h and hkv of
the query and KV head, the position i and the number row of the row, the key j, the rows
sq and keys sk of the sequence, and tables: name[j], name[h, i - j]. Functions are min,
max, clamp, abs, sign, exp, log, tanh, sin, cos, sqrt, floor and float. Integers have 32
bits and wrap; / and % of them round down; an index beyond a table is moved to its end.
Without --causal and --align rows have bottom-right alignment. docs/modifiers.md says
more.

Dropout. --dropout drops each weight of the softmax with probability p and multiplies
the others by 1 / (1 - p). LSE and the row sum count all weights as they were before
dropout. For key j of row r of query head h of sequence b, the random number is word
j % 4 of Philox4x32-10 with the counter (j / 4, r, b * Hq + h, --dropout-offset) and the
key --dropout-seed, low word first. The weight is dropped if the word is below p * 2^32.
r and j count from the start of the sequence, so the mask is the same for padded, packed
and paged files, and for gradients. Quantized K and V have no dropout.

Sequences of different lengths. With --cu-seqlens-q Q is packed as [total, Hq, Dqk], O
as [total, Hq, Dv] and LSE as [Hq, total]. With --cu-seqlens-k K and V are packed as
[total, Hkv, D]. --seqused-q and --seqused-k shorten sequences. The causal mask applies
to each sequence. Rows past the end of a sequence have O = 0 and LSE = -Inf.

Paged KV. With --block-table K and V are [pages, page size, Hkv, D], or as --kv-layout
says. Key t of sequence b is row t % page size of page table[b, t / page size].
--seqused-k gives the lengths; without it every sequence fills its row of the table.
Entries past the last page of a sequence may have any value.

Sizes. B is the number of sequences. Sq and Sk are the axes of padded Q and K. For
packed Q, Sq is the largest length in --cu-seqlens-q; for packed K, Sk is the largest
in --cu-seqlens-k. For paged K, Sk is the largest of --seqused-k, or without it the
columns of --block-table times the page size. --bias, --mask and --block-mask have
these sizes and count rows and keys from the start of each sequence. B may be 0:
--cu-seqlens-q and --cu-seqlens-k hold the number 0 alone, --block-table has no rows,
padded files no batches. O then has the rows of --q, if any, and they are 0.

Choice of keys. At most one of --block-mask and --sparse-tokens can be given; each can be
combined with all other flags, with --mask and --bias together on tier cpu alone. The value
0 excludes a key or a block.
--sparse-tokens lists keys of a sequence, from 0 to Sk-1, in any order; the query heads
of a group share a list. A token listed twice counts twice. A token past the length of
the sequence, or masked by --causal or --window, is ignored. The padding -1 may be
anywhere in a list; with --sparse-offsets there is no padding. A file of rank 4 has a list
for each query row and KV head: [B, Sq, Hkv, N], or [1, rows, Hkv, N] for packed Q. Such
calls have no gradients.

Quantized K and V. Files are int8 for int8 and uint8 for fp8 (the bits of e4m3) and
fp8-e5m2. An element is its number times its scale. With --kv-block head the keys of a
head in all sequences share a scale, with tensor all keys. A block of --kv-block keys starts at
key 0 of each sequence, at the first key of each page, or, for packed K, at key 0 of the
file, so that a block may hold keys of two sequences. The last block may be short. With
--v-dim V has the numbers of K and the scales of --v-scale, which may be the file of
--k-scale. The other types are uint8 rows of blocks of 32 elements, as in ggml; --v-dim
must be a multiple of 32. A block begins with its scale, a little-endian float16. Codes
are 16 bytes at its end: those of elements i and i + 16 are the low and the high 4 bits
of byte i. In q5_0 and q5_1 bit i of the 4 bytes before them (little-endian) is 16 of the
code of element i:

    q8_0    34 bytes: scale, then 32 signed bytes; element i = scale * byte i
    q4_0    18 bytes: scale, codes; element = scale * (code - 8)
    q4_1    20 bytes: scale, minimum (float16), codes; element = scale * code + minimum
    q5_0    22 bytes: scale, 4 bytes, codes; element = scale * (code - 16)
    q5_1    24 bytes: scale, minimum, 4 bytes, codes; element = scale * code + minimum
    iq4_nl  18 bytes: scale, codes; element = scale * the number of the code, of -127 -104
            -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113

fp8_ds_mla has rows of K of 656 bytes for head dims 576/512 (--v-dim 512), as FlashMLA and
vLLM have them: 512 float8 e4m3, then 4 float32 scales of 128 elements each, then the other
64 elements in bfloat16, all little-endian.

Integers are int32 or int64, floats float16, bfloat16 (as ml_dtypes saves it) or
float32.
`

// optionConflict returns an error for flags that need or exclude one another.
func (o *runFlags) optionConflict(changed func(string) bool) error {
	switch {
	case changed("page-size") && o.pageSize < 1:
		return badInputf("--page-size %d: want a positive number", o.pageSize)
	case changed("block-size") && !(powerFrom16(o.block[0]) && powerFrom16(o.block[1])):
		return badInputf("--block-size %d,%d: want powers of two, at least 16", o.block[0], o.block[1])
	case changed("fixed-split") && o.call.FixedSplit == 0:
		return badInputf("--fixed-split 0: want 1 to %d", attention.MaxStates)
	case changed("v-dim") && o.vDim < 1:
		return badInputf("--v-dim %d: want a positive number", o.vDim)
	case changed("kv-block") && !o.call.KeyType.Scaled():
		return badInputf("--kv-block needs --kv-dtype %s", problem.ListKVTypes(problem.KVType.Scaled))
	case o.call.KeyType.Latent() && !changed("v-dim"):
		return badInputf("--kv-dtype %v needs --v-dim: V is in K", o.call.KeyType)
	case changed("v-dim") && o.call.KeyType != o.call.ValueType:
		return badInputf("--v-dim needs the same type of K and V: V is in K")
	case o.call.Dropout != 0 && o.call.KeyType != attention.KVSame:
		return unsupportedf("--kv-dtype %v has no dropout: give K and V as floats", problem.KVName(o.call.KeyType, o.call.ValueType))
	}
	if err := cmp.Or(excludes(changed, "block-table", "cu-seqlens-k"), needs(changed, "page-size kv-layout", "block-table"),
		needs(changed, "sparse-offsets", "sparse-tokens"), needs(changed, "block-mask", "block-size"),
		needs(changed, "block-size", "block-mask"), excludes(changed, "v", "v-dim"),
		needs(changed, "dropout-seed dropout-offset", "dropout")); err != nil {
		return err
	}
	if o.has("block-mask") && o.has("sparse-tokens") {
		return unsupportedf("--block-mask and --sparse-tokens exclude one another")
	}
	for _, flag := range []string{"k-scale", "v-scale"} {
		switch {
		case o.call.KeyType.Scaled() && !o.has(flag):
			return badInputf("--%s is needed with --kv-dtype %v", flag, problem.KVName(o.call.KeyType, o.call.ValueType))
		case !o.call.KeyType.Scaled() && o.has(flag):
			return badInputf("--%s needs --kv-dtype %s", flag, problem.ListKVTypes(problem.KVType.Scaled))
		}
	}
	return nil
}

func powerFrom16(n int) bool { return n >= 16 && n&(n-1) == 0 }

// used names the flags that are set, with their values unless these are files.
func (o *runFlags) used() (list []string) {
	for _, f := range optionFiles {
		if o.has(f.flag) {
			list = append(list, f.flag)
		}
	}
	if o.vDim != 0 {
		list = append(list, fmt.Sprintf("v-dim %d", o.vDim))
	}
	if o.kvBlock != 0 {
		list = append(list, "kv-block "+problem.KVBlockName(o.kvBlock))
	}
	lists, _ := o.values.parse() // read has seen its errors
	for _, axis := range bench.Axes {
		if !axis.Names() || !lists.Some(axis.Flag) {
			continue
		}
		text := fmt.Sprint(axis.Flag, " ", lists[axis.Flag][0])
		if axis.Flag == "dropout" {
			text += fmt.Sprintf(", seed %d", o.dropoutSeed)
			if o.dropoutOffset != 0 {
				text += fmt.Sprintf(", offset %d", o.dropoutOffset)
			}
		}
		list = append(list, text)
	}
	return list
}

// layoutFlag is a flag with one of two orders of axes: false is the first.
func layoutFlag(to *bool, no, yes string) pflag.Value {
	return parsed[bool]{to: to, kind: "layout", print: func(on bool) string { return layoutName(on, no, yes) },
		parse: func(text string) (bool, error) { return sweep.Either(text, "layout", no, yes) }}
}

func layoutName(on bool, no, yes string) string {
	if on {
		return yes
	}
	return no
}

// pageLayout is the order of the axes of a page.
func (o *optionFlags) pageLayout() string { return layoutName(o.hnd, "nhd", "hnd") }
