package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
)

// optionSweepFlags are the flags of `vkattn bench` for the options of a call.
type optionSweepFlags struct {
	pageSize, kv, split, sparse, lengths, blocks string
	withLSE                                      string
	padded, sinks, alibi, shared                 bool
	kvLayout                                     pageLayout
	window                                       windowFlag
	block                                        pairFlag
	align                                        attention.Causal
	softcap, dropout                             float32
}

func (e *optionSweepFlags) add(f *pflag.FlagSet) {
	f.StringVar(&e.lengths, "varlen", "", "`list` of sequences: KEYS, ROWS/KEYS, or N*ROWS/KEYS for N equal ones; without ROWS a sequence has --seqlen rows, or as many as keys")
	f.BoolVar(&e.padded, "padded", false, "pad the sequences of --varlen to the longest (default: packed)")
	f.StringVar(&e.pageSize, "page-size", "", "`list` of page sizes of a paged KV cache; the pages lie in random order; 0: contiguous K and V")
	f.Var(&e.kvLayout, "kv-layout", kvLayoutUsage)
	f.StringVar(&e.kv, "kv-dtype", "", "`list` of storage types of K and V: same, int8, fp8, q8_0, q4_0")
	f.StringVar(&e.sparse, "sparse-ratio", "", "`list` of ratios of sparse tokens: the share of the tokens of a sequence that a KV head attends to, such as 0.02; 1 is all")
	f.StringVar(&e.blocks, "block-ratio", "", "`list` of ratios of a block mask: the share of the blocks of keys that a block of rows attends to; 1 is all")
	f.Var(&e.block, "block-size", "rows,keys of a block of --block-ratio, powers of two from 16 (default 64,64)")
	f.StringVar(&e.split, "fixed-split", "", "`list` of fixed numbers of splits of the keys; 0: chosen for the device")
	f.Var(&e.window, "window", windowUsage)
	f.Var(&e.align, "align", "alignment of rows with keys for --window and --alibi without a causal mask: top-left or bottom-right (default bottom-right)")
	f.Lookup("align").DefValue = "" // the text has it
	f.Var((*softcapFlag)(&e.softcap), "softcap", softcapUsage)
	f.Var((*probabilityFlag)(&e.dropout), "dropout", dropoutUsage)
	f.BoolVar(&e.shared, "shared-kv", false, "V is the first part of each row of K, as in multi-head latent attention (--headdim 576 --headdim-v 512)")
	f.BoolVar(&e.sinks, "sinks", false, "one attention sink per head: a logit in the row sum, without a value")
	f.BoolVar(&e.alibi, "alibi", false, "ALiBi slopes")
	f.StringVar(&e.withLSE, "lse", "", "`list` of false and true: whether forward calls also return LSE, as training and merging need it; --lse is --lse=true; --lse=false,true is a row of each. Calls with LSE have other tiles. Rows of other passes always have LSE")
	f.Lookup("lse").NoOptDefVal = "true"
}

// readOptions parses the flags into the plan.
func (o *benchFlags) readOptions(p *benchPlan) error {
	e := &p.options
	*e = bench.OptionSweep{HND: bool(o.kvLayout), Padded: o.padded, Window: o.window.Window, Align: o.align, Softcap: o.softcap, Dropout: o.dropout, Sinks: o.sinks, ALiBi: o.alibi, SharedKV: o.shared}
	for _, f := range []struct {
		flag string
		err  error
	}{
		{"lse", words(&p.lse, o.withLSE, trueOrFalse)},
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
	e.BlockQ, e.BlockK = o.block[0], o.block[1]
	if o.block == (pairFlag{}) {
		e.BlockQ, e.BlockK = 64, 64
	}
	if len(p.lse) > 0 && len(p.passes) > 0 && !slices.Contains(p.passes, bench.PassForward) {
		return badInputf("--lse needs --pass fwd: rows of the other passes always have LSE")
	}
	if err := o.conflict(p); err != nil {
		return err
	}
	if len(p.suites) > 0 {
		for _, f := range []struct {
			set  bool
			flag string
		}{{o.lengths != "", "varlen"}, {len(e.Split) > 0, "fixed-split"}, {len(e.Blocks) > 0, "block-ratio"}, {e.Window.Given(), "window"}, {e.Softcap != 0, "softcap"}, {e.Dropout != 0, "dropout"},
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
		return badInputf("--seqlen: with --varlen give one number, the rows of each sequence")
	case len(p.lists.SeqLen) == 1:
		rows = p.lists.SeqLen[0]
	}
	var err error
	if e.Lengths, err = bench.ParseLengths(o.lengths, rows); err != nil {
		return badInputf("--varlen: %w", err)
	}
	return nil
}

// conflict refuses flags that would have no effect, and block sizes that no block mask has.
func (o *benchFlags) conflict(p *benchPlan) error {
	e := &p.options
	paged := slices.ContainsFunc(e.PageSize, func(n int) bool { return n > 0 })
	blocks := slices.ContainsFunc(e.Blocks, func(share float64) bool { return share > 0 })
	switch {
	case o.padded && o.lengths == "":
		return badInputf("--padded needs --varlen")
	case e.HND && !paged && len(p.suites) == 0:
		return badInputf("--kv-layout needs --page-size")
	case o.block != (pairFlag{}) && !blocks:
		return badInputf("--block-size needs --block-ratio")
	case blocks && !(powerFrom16(e.BlockQ) && powerFrom16(e.BlockK)):
		return badInputf("--block-size %v: want powers of two, at least 16", &o.block)
	case e.Align != attention.CausalNone && !e.Window.Given() && !e.ALiBi && len(p.suites)+len(p.presets) == 0:
		return badInputf("--align needs --window or --alibi")
	}
	return nil
}

func trueOrFalse(s string) (bool, error) {
	switch s = strings.TrimSpace(s); s {
	case "true", "false":
		return s == "true", nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// count returns a parser of integers from 0 to most.
func count(most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("%q is not a number from 0 to %d", s, most)
		}
		return n, nil
	}
}

// share parses a ratio. A ratio of 1 becomes 0, which means no list at all.
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
