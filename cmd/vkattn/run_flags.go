package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
)

// optionFlags are those of `vkattn run` beyond the tensors: what inference needs.
type optionFlags struct {
	cuQ, cuK, usedQ, usedK   string
	table                    string
	pageSize                 int
	kvLayout                 pageLayout
	sparse, sparseOffsets    string
	window                   windowFlag
	align                    attention.Causal
	softcap                  float32
	alibi, sinks, bias, mask string
	blockMask                string
	block                    pairFlag
	fixedSplit               int
	kScale, vScale           string
	kv                       attention.KVType
	kvBlock                  int
	vDim                     int
}

func (o *optionFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.cuQ, "cu-seqlens-q", "", "Q and O are packed: sequence b is rows cu[b] to cu[b+1]-1; integers [B+1] in a `file`")
	f.StringVar(&o.cuK, "cu-seqlens-k", "", "K and V are packed likewise; integers [B+1] in a `file`")
	f.StringVar(&o.usedQ, "seqused-q", "", "rows in use of each sequence; integers [B] in a `file`")
	f.StringVar(&o.usedK, "seqused-k", "", "keys in use of each sequence; integers [B] in a `file`")
	f.StringVar(&o.table, "block-table", "", "K and V are pages: the pages of each sequence; integers [B, N] in a `file`")
	f.IntVar(&o.pageSize, "page-size", 0, "keys of a page, to be checked against the files of --k and --v")
	f.Var(&o.kvLayout, "kv-layout", "axes of pages: nhd [pages, page size, Hkv, D] or hnd [pages, Hkv, page size, D]")
	f.StringVar(&o.sparse, "sparse-tokens", "", "keys that each sequence and key head attends to; integers [B, Hkv, N], unused ones -1, or [total] with --sparse-offsets, in a `file`")
	f.StringVar(&o.sparseOffsets, "sparse-offsets", "", "where the list of each sequence and key head starts in --sparse-tokens; integers [B*Hkv+1] in a `file`")
	f.Var(&o.window, "window", "keys left,right of a row's own position that it attends to; -1: all")
	f.Var(&o.align, "align", "positions of rows for --window and --alibi: top-left or bottom-right; needed by these without a causal mask")
	f.Var((*softcapFlag)(&o.softcap), "softcap", "scores become softcap * tanh(score / softcap)")
	f.StringVar(&o.alibi, "alibi", "", "slopes; floats [Hq] in a `file`")
	f.StringVar(&o.sinks, "sinks", "", "a logit for each head that adds to the row sum and to LSE, and no value; floats [Hq] in a `file`")
	f.StringVar(&o.bias, "bias", "", "added to the scores; floats [1 or B, 1 or Hq, 1 or Sq, Sk] in a `file`")
	f.StringVar(&o.mask, "mask", "", "keys attended to; booleans or uint8 [1 or B, 1 or Hq, 1 or Sq, Sk] in a `file`")
	f.StringVar(&o.blockMask, "block-mask", "", "blocks attended to; booleans or uint8 [1 or B, 1 or Hq, ceil(Sq/rows), ceil(Sk/keys)] in a `file`")
	f.Var(&o.block, "block-size", "rows,keys of a block of --block-mask, powers of two from 16")
	f.IntVar(&o.fixedSplit, "fixed-split", 0, "number of splits of the keys of every sequence, 1 to 256 (default: as suits the device)")
	f.Var(&o.kv, "kv-dtype", "storage of K and V: same, int8, fp8 (e4m3), q8_0 or q4_0")
	f.StringVar(&o.kScale, "k-scale", "", "scales of int8 and fp8 keys; float32 [B, Hkv, Sk], of pages [pages, Hkv, page size], packed [Hkv, total], in a `file`")
	f.StringVar(&o.vScale, "v-scale", "", "scales of the values likewise, in a `file`; needed with --v-dim too")
	f.IntVar(&o.vDim, "v-dim", 0, "V is the first `n` elements of each row of K, as in latent attention: instead of --v")
	f.IntVar(&o.kvBlock, "kv-block", 0, "keys that share a scale: the last axis of the scales counts blocks then (default 1)")
}

const optionHelp = `
Scores. For row r at position i of its sequence and key j the score is

    s = scale * q.k
    s = softcap * tanh(s / softcap)     with --softcap
    s = s + bias[r, j]                  with --bias
    s = s - slope * |i - j|             with --alibi

in this order. i is r for top-left and r + keys - rows of the sequence for
bottom-right, as --causal says. Without a causal mask, --window and --alibi need
--align to say it. A row attends to keys j <= i with --causal, and to keys from
i - left to i + right with --window. The row sum is that of exp(s), and of
exp(sink) with --sinks; LSE is its logarithm, so that sinks count in LSE. They add
nothing to O. A row without keys has O = 0, and LSE = -Inf or its sink.

Sequences of several lengths. With --cu-seqlens-q, Q is packed as [total, Hq, Dqk]
and so is O as [total, Hq, Dv], LSE as [Hq, total]; with --cu-seqlens-k, K and V
are [total, Hkv, D]. --seqused-q and --seqused-k shorten sequences. A causal mask
is that of each sequence. Rows past a sequence's end are 0, and -Inf in LSE.

Pages. With --block-table, K and V are [pages, page size, Hkv, D] (or as
--kv-layout says); key t of sequence b is row t % page size of page
table[b, t / page size]. Lengths come from --seqused-k; without it every sequence
fills its row of the table. Entries past a sequence's last page may hold anything.

Sizes. B is the number of sequences. Sq and Sk are the axes of Q and K where these
are padded. Where Q is packed, Sq is the largest length in --cu-seqlens-q; where K
is, Sk is that in --cu-seqlens-k. In pages, Sk is the largest of --seqused-k, or
without it the columns of --block-table times the page size. --bias, --mask and
--block-mask have these sizes, and count rows and keys from the start of each
sequence.

Choice of keys. At most one of --mask, --block-mask and --sparse-tokens is taken,
with any other flag. A value of 0 excludes a key or a block. Tokens of
--sparse-tokens are keys of their sequence from 0 to Sk-1, in any order; all heads
of a group share a list. A token listed twice counts twice. One past the
sequence's length, or that --causal or --window excludes, does not count. Lists
padded with -1 may have it anywhere; with --sparse-offsets there is no -1.

Quantised K and V are int8 for int8 and uint8 for fp8 (the bits of e4m3): an element
is its number times its scale. Blocks of --kv-block begin at key 0 of each sequence,
at the first key of each page, and where K is packed at key 0 of the file, so that a
block may hold keys of two sequences; the last one may be short. With --v-dim, V has
the numbers of K and the scales of --v-scale, which may be the file of --k-scale.
q8_0 and q4_0 are uint8 rows of blocks for 32 elements each, and --v-dim is a
multiple of 32. A block begins with its scale, a little-endian float16:

    q8_0    34 bytes: scale, then 32 signed bytes; element i = scale * byte i
    q4_0    18 bytes: scale, then 16 bytes; elements i and i + 16 are
            scale * (low 4 bits - 8) and scale * (high 4 bits - 8) of byte i

Integers are int32 or int64, floats float16, bfloat16 (as ml_dtypes saves it) or
float32.
`

// conflict reports flags that need, or exclude, one another.
func (o *optionFlags) conflict(changed func(string) bool) error {
	switch {
	case o.table != "" && o.cuK != "":
		return badInputf("--block-table and --cu-seqlens-k exclude one another")
	case changed("page-size") && o.pageSize < 1:
		return badInputf("--page-size %d: want a positive number", o.pageSize)
	case o.table == "" && changed("page-size"):
		return badInputf("--page-size needs --block-table")
	case o.table == "" && changed("kv-layout"):
		return badInputf("--kv-layout needs --block-table")
	case o.sparseOffsets != "" && o.sparse == "":
		return badInputf("--sparse-offsets needs --sparse-tokens")
	case o.blockMask != "" && !changed("block-size"):
		return badInputf("--block-mask needs --block-size")
	case o.blockMask == "" && changed("block-size"):
		return badInputf("--block-size needs --block-mask")
	case changed("block-size") && !(powerFrom16(o.block[0]) && powerFrom16(o.block[1])):
		return badInputf("--block-size %v: want powers of two, at least 16", &o.block)
	case changed("fixed-split") && (o.fixedSplit < 1 || o.fixedSplit > attention.MaxStates):
		return badInputf("--fixed-split %d: want 1 to %d", o.fixedSplit, attention.MaxStates)
	case changed("v-dim") && o.vDim < 1:
		return badInputf("--v-dim %d: want a positive number", o.vDim)
	case changed("v-dim") && changed("v"):
		return badInputf("--v and --v-dim exclude one another")
	case changed("kv-block") && o.kvBlock < 1:
		return badInputf("--kv-block %d: want a positive number", o.kvBlock)
	case changed("kv-block") && !o.kv.Scaled():
		return badInputf("--kv-block needs --kv-dtype int8 or fp8")
	}
	if two := given(inputFile{"mask", o.mask}, inputFile{"block-mask", o.blockMask}, inputFile{"sparse-tokens", o.sparse}); len(two) > 1 {
		return unsupportedf("%s exclude one another: at most one of --mask, --block-mask and --sparse-tokens is taken", strings.Join(two, " and "))
	}
	for _, s := range []struct{ flag, path string }{{"k-scale", o.kScale}, {"v-scale", o.vScale}} {
		switch {
		case o.kv.Scaled() && s.path == "":
			return badInputf("--%s is needed with --kv-dtype %v", s.flag, o.kv)
		case !o.kv.Scaled() && s.path != "":
			return badInputf("--%s needs --kv-dtype int8 or fp8", s.flag)
		}
	}
	return nil
}

func powerFrom16(n int) bool { return n >= 16 && n&(n-1) == 0 }

// given are the flags that name a file.
func given(files ...inputFile) (flags []string) {
	for _, f := range files {
		if f.path != "" {
			flags = append(flags, "--"+f.flag)
		}
	}
	return flags
}

// used names the flags in use, with the values of those that are no files.
func (o *optionFlags) used() (list []string) {
	for _, f := range o.files() {
		if f.path != "" {
			list = append(list, f.flag)
		}
	}
	for _, v := range []struct {
		set         bool
		flag, value string
	}{
		{o.kv != attention.KVSame, "kv-dtype", o.kv.String()},
		{o.vDim != 0, "v-dim", strconv.Itoa(o.vDim)},
		{o.kvBlock != 0, "kv-block", strconv.Itoa(o.kvBlock)},
		{o.window.Given(), "window", o.window.String()},
		{o.align != attention.CausalNone, "align", o.align.String()},
		{o.softcap != 0, "softcap", fmt.Sprint(o.softcap)},
		{o.fixedSplit != 0, "fixed-split", strconv.Itoa(o.fixedSplit)},
	} {
		if v.set {
			list = append(list, v.flag+" "+v.value)
		}
	}
	return list
}

// inputFile is a file that a flag names.
type inputFile struct{ flag, path string }

func (o *optionFlags) files() []inputFile {
	return []inputFile{{"cu-seqlens-q", o.cuQ}, {"cu-seqlens-k", o.cuK}, {"seqused-q", o.usedQ}, {"seqused-k", o.usedK},
		{"block-table", o.table}, {"sparse-tokens", o.sparse}, {"sparse-offsets", o.sparseOffsets}, {"alibi", o.alibi}, {"sinks", o.sinks},
		{"bias", o.bias}, {"mask", o.mask}, {"block-mask", o.blockMask}, {"k-scale", o.kScale}, {"v-scale", o.vScale}}
}

// pageLayout is the order of the axes of pages.
type pageLayout bool

const (
	nhd pageLayout = false
	hnd pageLayout = true
)

func (l pageLayout) String() string {
	if l == hnd {
		return "hnd"
	}
	return "nhd"
}

func (l *pageLayout) Set(s string) error {
	switch strings.ToLower(s) {
	case "nhd":
		*l = nhd
	case "hnd":
		*l = hnd
	default:
		return fmt.Errorf("unknown layout %q, want nhd or hnd", s)
	}
	return nil
}

func (l pageLayout) Type() string { return "layout" }

// windowFlag is two numbers of keys, or unset.
type windowFlag struct{ attention.Window }

func (w *windowFlag) String() string {
	if !w.Given() {
		return ""
	}
	return w.Window.String()
}

func (w *windowFlag) Set(s string) error {
	left, right, err := pair(s, -1)
	if err != nil {
		return err
	}
	w.Window = attention.WindowOf(left, right)
	return nil
}

func (w *windowFlag) Type() string { return "left,right" }

// pairFlag is two positive numbers.
type pairFlag [2]int

func (p *pairFlag) String() string {
	if *p == (pairFlag{}) {
		return ""
	}
	return fmt.Sprintf("%d,%d", p[0], p[1])
}

func (p *pairFlag) Set(s string) (err error) {
	p[0], p[1], err = pair(s, 1)
	return err
}

func (p *pairFlag) Type() string { return "rows,keys" }

func pair(s string, least int) (a, b int, err error) {
	first, second, ok := strings.Cut(s, ",")
	a, errA := strconv.Atoi(strings.TrimSpace(first))
	b, errB := strconv.Atoi(strings.TrimSpace(second))
	if !ok || errA != nil || errB != nil || min(a, b) < least || max(a, b) > attention.MaxLength {
		return 0, 0, fmt.Errorf("%q: want two numbers from %d on, such as 128,64", s, least)
	}
	return a, b, nil
}

// softcapFlag is a positive finite number.
type softcapFlag float32

func (c *softcapFlag) String() string {
	if *c == 0 {
		return ""
	}
	return fmt.Sprint(float32(*c))
}

func (c *softcapFlag) Set(s string) error {
	v, err := strconv.ParseFloat(s, 32)
	if err != nil || !(float32(v) > 0) || math.IsInf(v, 0) {
		return fmt.Errorf("want a finite number above 0 that a float32 holds")
	}
	*c = softcapFlag(v)
	return nil
}

func (c *softcapFlag) Type() string { return "float" }
