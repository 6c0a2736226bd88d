package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
)

// optionSweepFlags are those of `vkattn bench` for what a problem has beside its
// tensors.
type optionSweepFlags struct {
	pageSize, kv, split, sparse, lengths, blocks string
	padded, sinks, alibi, shared                 bool
	kvLayout                                     pageLayout
	window                                       windowFlag
	block                                        pairFlag
	align                                        attention.Causal
	softcap                                      float32
}

func (e *optionSweepFlags) add(f *pflag.FlagSet) {
	f.StringVar(&e.lengths, "varlen", "", "sequences of their own lengths: a `list` of KEYS or ROWS/KEYS, N*ROWS/KEYS for N alike; rows are those of --seqlen, or as many as keys")
	f.BoolVar(&e.padded, "padded", false, "pad the sequences of --varlen; they are packed otherwise")
	f.StringVar(&e.pageSize, "page-size", "", "`list` of page sizes, pages in random order; 0 is contiguous")
	f.Var(&e.kvLayout, "kv-layout", "axes of pages: nhd [page size, Hkv, D] or hnd [Hkv, page size, D]")
	f.StringVar(&e.kv, "kv-dtype", "", "`list` of storage types of K and V: same, int8, fp8, q8_0, q4_0")
	f.StringVar(&e.sparse, "sparse-ratio", "", "`list` of shares of the tokens that each key head attends to, such as 0.02; 1 is all")
	f.StringVar(&e.blocks, "block-ratio", "", "`list` of shares of the blocks of keys that each block of rows attends to; 1 is all")
	f.Var(&e.block, "block-size", "rows,keys of a block of --block-ratio, powers of two from 16 (default 64,64)")
	f.StringVar(&e.split, "fixed-split", "", "`list` of numbers of parts to cut the keys into; 0 is as suits the device")
	f.Var(&e.window, "window", "keys left,right of a row's own position that it attends to; -1: all")
	f.Var(&e.align, "align", "where rows lie among the keys for --window and --alibi without a causal mask (default bottom-right)")
	f.Var((*softcapFlag)(&e.softcap), "softcap", "scores become softcap * tanh(score / softcap)")
	f.BoolVar(&e.shared, "shared-kv", false, "V is the beginning of each row of K, as in latent attention (--headdim 576 --headdim-v 512)")
	f.BoolVar(&e.sinks, "sinks", false, "a logit for each head beside the scores")
	f.BoolVar(&e.alibi, "alibi", false, "ALiBi slopes")
}

// readOptions reads the flags into the plan.
func (o *benchFlags) readOptions(p *benchPlan) error {
	e := &p.extras
	*e = bench.OptionSweep{HND: bool(o.kvLayout), Padded: o.padded, Window: o.window.Window, Align: o.align, Softcap: o.softcap, Sinks: o.sinks, ALiBi: o.alibi, SharedKV: o.shared}
	for _, f := range []struct {
		flag string
		err  error
	}{
		{"page-size", words(&e.PageSize, o.pageSize, count(attention.MaxLength))},
		{"kv-dtype", words(&e.KV, o.kv, attention.ParseKVType)},
		{"fixed-split", words(&e.Split, o.split, count(attention.MaxStates))},
		{"sparse-ratio", words(&e.SparseRatio, o.sparse, share)},
		{"block-ratio", words(&e.Blocks, o.blocks, share)},
	} {
		if f.err != nil {
			return badInputf("--%s: %w", f.flag, f.err)
		}
	}
	if e.BlockQ, e.BlockK = o.block[0], o.block[1]; o.block == (pairFlag{}) {
		e.BlockQ, e.BlockK = 64, 64
	}
	if o.padded && o.lengths == "" {
		return badInputf("--padded needs --varlen")
	}
	if len(p.suites) > 0 {
		for _, f := range []struct {
			set  bool
			flag string
		}{{o.lengths != "", "varlen"}, {len(e.Split) > 0, "fixed-split"}, {len(e.Blocks) > 0, "block-ratio"}, {e.Window.Given(), "window"}, {e.Softcap != 0, "softcap"},
			{e.SharedKV, "shared-kv"}, {e.Sinks, "sinks"}, {e.ALiBi, "alibi"}, {e.Align != attention.CausalNone, "align"}, {e.HND, "kv-layout"}} {
			if f.set {
				return badInputf("--%s does not narrow a suite: leave out one of them", f.flag)
			}
		}
	}
	if o.lengths == "" {
		return nil
	}
	rows := 0
	switch {
	case o.batch != "":
		return badInputf("--batch-size and --varlen exclude one another: the sequences are counted")
	case o.seqLenK != "":
		return badInputf("--seqlen-k and --varlen exclude one another")
	case len(p.lists.SeqLen) > 1:
		return badInputf("--seqlen: one number beside --varlen, the rows of each sequence")
	case len(p.lists.SeqLen) == 1:
		rows = p.lists.SeqLen[0]
	}
	var err error
	if e.Lengths, err = bench.ParseLengths(o.lengths, rows); err != nil {
		return badInputf("--varlen: %w", err)
	}
	return nil
}

// count reads a number from 0 on.
func count(most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("%q is not a number from 0 to %d", s, most)
		}
		return n, nil
	}
}

// share reads a ratio; all is 0, which is without lists.
func share(s string) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(x > 0 && x <= 1) {
		return 0, fmt.Errorf("%q is not a share above 0 and at most 1", s)
	}
	if x == 1 {
		return 0, nil
	}
	return x, nil
}
