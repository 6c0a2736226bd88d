package cases

import (
	"fmt"
	"hash/fnv"
	"strings"

	"vkattn/attention"
)

// Seq is one sequence of a [OptionsCase]. Its numbers come from ID alone, so that
// the same sequence can stand in other company.
type Seq struct {
	ID         int
	Rows, Keys int
}

// OptionsCase is a problem with what inference needs besides plain attention:
// sequences with lengths of their own, pages, lists of kept tokens, blocks,
// modifiers of scores, quantised K and V. Storage type and tier come later.
type OptionsCase struct {
	Name    string // of the table's row
	D, Dv   int    // elements of a row of Q and K, and of V and O
	Hq, Hkv int
	Seqs    []Seq
	Sq, Sk  int // bounds of the sequences; 0: by their lengths
	Causal  attention.Causal
	Align   attention.Causal
	Scale   attention.Scale
	Window  attention.Window
	Softcap float32

	// How the sequences lie: one after another by cumulative lengths, or each at the
	// start of a place as long as the longest. Loose sequences have places longer than
	// they are, packed or not: what they use is given besides.
	PackedQ, PackedK bool
	LooseQ, LooseK   bool

	PageSize    int     // keys of a page; 0: no pages
	Prefix      int     // keys at the start that all sequences share, with the pages they fill
	SparseRatio float64 // ratio of tokens listed; 0: no lists
	Shuffled    bool    // lists in no order, with some tokens twice, some past the end and some before the start
	BlockQ      int     // rows and keys of a block; 0: no bitmap
	BlockK      int
	Blocks      Spread // where BlockQ is given; always by rows of blocks
	Bias        BiasKind
	Mask        Spread
	Ones        bool // mask and bitmap leave everything
	ALiBi       bool
	Sinks       bool

	KV         attention.KVType
	KVBlock    int
	VInK       bool // V is the first Dv elements of K's rows, in the same memory
	FixedSplit int

	Layout LayoutKind // Tight, Packed, BSHD, Padded or Odd
	Data   DataKind
	LSE    bool
	Access attention.Access // devices only
	Seed   uint64           // 0: from the name
	Sample int              // about how many rows are judged; 0: all

	Extremes Extremes

	seed uint64 // SeedValue, of a problem's case
}

// Spread says in which dimensions a mask, a bias or a bitmap has entries of its
// own; in the others one stands for all. The zero value is nothing at all.
type Spread struct {
	On                   bool
	Batches, Heads, Rows bool
}

func (s Spread) String() string {
	name := ""
	for _, f := range []struct {
		on   bool
		name string
	}{{s.Batches, "b"}, {s.Heads, "h"}, {s.Rows, "r"}} {
		if f.on {
			name += f.name
		}
	}
	if name == "" {
		return "one"
	}
	return name
}

// sizes are those that attention.Bias and Mask have: 1 for all, 0 for each.
func (s Spread) sizes() (batches, heads, rows int) {
	one := func(each bool) int {
		if each {
			return 0
		}
		return 1
	}
	return one(s.Batches), one(s.Heads), one(s.Rows)
}

// BiasKind is a bias and its type.
type BiasKind struct {
	Spread
	DType attention.DType
}

// String names everything but the seed, in the form -run takes.
func (c OptionsCase) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.d%d", c.Name, c.D)
	add := func(format string, args ...any) { fmt.Fprintf(&b, "."+format, args...) }
	if c.Dv != c.D {
		fmt.Fprintf(&b, "v%d", c.Dv)
	}
	add("H%d", c.Hq)
	if c.Hkv != c.Hq {
		fmt.Fprintf(&b, "k%d", c.Hkv)
	}
	add("%v", c.Causal)
	if c.Align != attention.CausalNone {
		add("align-%v", c.Align)
	}
	if c.Sq > 0 || c.Sk > 0 {
		add("in%dx%d", c.Sq, c.Sk)
	}
	if len(c.Seqs) > 6 {
		add("%dseqs", len(c.Seqs))
	} else {
		for i, s := range c.Seqs {
			format := "+%dx%d"
			if i == 0 {
				format = ".%dx%d"
			}
			fmt.Fprintf(&b, format, s.Rows, s.Keys)
		}
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{c.PackedQ, "packedq"}, {c.PackedK, "packedk"}, {c.LooseQ, "looseq"}, {c.LooseK, "loosek"},
		{c.PageSize > 0, fmt.Sprintf("page%d", c.PageSize)}, {c.Prefix > 0, fmt.Sprintf("prefix%d", c.Prefix)},
		{c.SparseRatio > 0, fmt.Sprintf("sparse%v", c.SparseRatio)}, {c.Shuffled, "shuffled"},
		{c.BlockQ > 0, fmt.Sprintf("blocks%dx%d-%v", c.BlockQ, c.BlockK, c.Blocks)},
		{c.Window.Given(), "window" + strings.ReplaceAll(c.Window.String(), ",", "_")},
		{c.Softcap != 0, fmt.Sprintf("softcap%v", c.Softcap)},
		{c.Bias.On, fmt.Sprintf("bias-%v-%v", c.Bias.DType, c.Bias.Spread)},
		{c.Mask.On, fmt.Sprintf("mask-%v", c.Mask)}, {c.Ones, "ones"}, {c.ALiBi, "alibi"}, {c.Sinks, "sinks"},
		{c.KV != attention.KVSame, c.KV.String()}, {c.KVBlock > 1, fmt.Sprintf("scale%d", c.KVBlock)}, {c.VInK, "vink"},
		{c.FixedSplit > 0, fmt.Sprintf("split%d", c.FixedSplit)}, {!c.Scale.IsDefault(), "scale" + c.Scale.String()},
		{c.Layout != Tight, c.Layout.String()}, {c.Data != Normal, c.Data.String()}, {c.LSE, "lse"},
		{c.Access != attention.AccessAuto, c.Access.String()},
	} {
		if f.on {
			add("%s", f.name)
		}
	}
	return b.String()
}

// SeedValue depends on the problem alone, not on its place in the table.
func (c OptionsCase) SeedValue() uint64 {
	if c.Seed != 0 {
		return c.Seed
	}
	h := fnv.New64a()
	fmt.Fprint(h, c.String())
	return h.Sum64()
}

// Config is the Config of the case on a tier.
func (c OptionsCase) Config(tt Target) attention.Config {
	cfg := attention.Config{
		DType: tt.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal, Scale: c.Scale, Tier: tt.Tier,
		Align: c.Align, Window: c.Window, Softcap: c.Softcap, KV: c.KV, KVBlock: c.KVBlock, FixedSplit: c.FixedSplit,
		Tuning: attention.TuningOff, // what this machine was tuned to must not change what is tested
	}
	if tt.Tier != attention.TierCPU {
		cfg.Access = c.Access
	}
	return cfg
}

// Shape bounds the sequences, by a little more than the longest where they have
// lengths of their own.
func (c OptionsCase) Shape() attention.Shape {
	s := attention.Shape{B: len(c.Seqs), Hq: c.Hq, Hkv: c.Hkv, Sq: 1, Sk: 1}
	for _, q := range c.Seqs {
		s.Sq, s.Sk = max(s.Sq, q.Rows), max(s.Sk, q.Keys)
	}
	if c.PackedQ || c.LooseQ {
		s.Sq += 5
	}
	if c.PackedK || c.LooseK {
		s.Sk += 7
	}
	s.Sq, s.Sk = max(s.Sq, c.Sq), max(s.Sk, c.Sk)
	return s
}

// usedLengths reports whether the lengths in use are given, of rows and of keys.
func (c OptionsCase) usedLengths() (q, k bool) {
	shape := c.Shape()
	q, k = c.LooseQ, c.LooseK
	for _, s := range c.Seqs {
		q = q || !c.PackedQ && s.Rows != shape.Sq
		k = k || !c.PackedK && s.Keys != shape.Sk
	}
	return q, k
}

// Group is the number of query heads that share a key head.
func (c OptionsCase) Group() int { return c.Hq / c.Hkv }

// Dims are the elements of a row of Q and one of V together.
func (c OptionsCase) Dims() int { return c.D + c.Dv }

// Flops is the number of operations, those of masked cells too.
func (c OptionsCase) Flops() int64 {
	var cells int64
	for _, s := range c.Seqs {
		cells += int64(s.Rows) * int64(s.Keys)
	}
	return 2 * cells * int64(c.Hq) * int64(c.D+c.Dv)
}

// Memory is about how many bytes the tensors of a case take.
func (c OptionsCase) Memory(dtype attention.DType) int64 {
	var elements int64
	for _, s := range c.Seqs {
		elements += int64(s.Rows)*int64(c.Hq) + int64(s.Keys)*int64(c.Hkv)
	}
	elements *= int64(c.D + c.Dv)
	slots := c.Shape()
	if c.Mask.On || c.Bias.On {
		elements += slots.Rows() * int64(slots.Sk)
	}
	return 2 * elements * int64(dtype.Size())
}

// Pipeline names the pipeline of a case, nearly, so that cases of one can be put
// side by side.
func (c OptionsCase) Pipeline() string {
	shape := c.Shape()
	usedQ, usedK := c.usedLengths()
	window := 0
	if c.Window.Left() >= 0 {
		window++
	}
	if c.Window.Right() >= 0 {
		window += 2
	}
	bias := -1
	if c.Bias.On {
		bias = int(c.Bias.DType)
	}
	return fmt.Sprint(c.D, c.Dv, c.Causal != attention.CausalNone, c.LSE, c.Access, layoutAlign[c.Layout], rowClass(shape.Sq*c.Group()),
		c.PackedQ, c.PackedK, usedQ, usedK, c.PageSize, c.SparseRatio > 0, c.BlockQ, c.BlockK, window, c.Softcap != 0, bias, c.Mask.On,
		c.ALiBi, c.Sinks, c.KV, c.KVBlock, c.Group() > 1, c.FixedSplit > 1)
}
