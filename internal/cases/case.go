package cases

import (
	"fmt"
	"hash/fnv"
	"strings"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Target is a tier for one storage type.
type Target struct {
	Tier  problem.Tier
	DType problem.DType
}

// On is the Target of a tier and a storage type.
func On(tier problem.Tier, dtype problem.DType) Target { return Target{tier, dtype} }

// OnMatrices is the Target of the best tier of cooperative matrices that a device has for a
// storage type, which TierAuto does not take on a driver of the CPU; TierAuto without one.
func OnMatrices(dev *vk.Device, dtype problem.DType) Target {
	for _, s := range plan.TierReport(dev) { // coopmat2 comes first
		if s.DType == dtype && s.Available && (s.Tier == problem.TierCoopMat2 || s.Tier == problem.TierCoopMat) {
			return On(s.Tier, dtype)
		}
	}
	return On(problem.TierAuto, dtype)
}

// String is "coopmat/f16", for example.
func (t Target) String() string { return fmt.Sprintf("%v/%v", t.Tier, t.DType) }

// Case is a problem without tier and storage type. A case without options has a Shape
// and no Seqs: all of its sequences have Sq rows and Sk keys.
type Case struct {
	Name          string // of the table's row; "" in the table of shapes
	D, Dv         int    // elements per row of Q and K, and of V and O
	problem.Shape        // bounds of the sequences; with Seqs, B is not used, and Sq and Sk of 0 follow from the lengths
	Causal        problem.Causal
	Scale         problem.Scale
	Layout        LayoutKind // cases with Seqs: Tight, Packed, BSHD, Padded or Odd
	Data          DataKind
	LSE           bool
	Access        problem.Access // devices only
	Seed          uint64         // 0: from the name
	SampleMax     int            // about how many rows are judged; 0: all

	// Sequences with lengths of their own; nil: Shape.B sequences of Sq rows and Sk keys.
	// Packed ones lie one after another, by cumulative lengths. The others lie each at the
	// start of a range as long as the longest. Loose ones have gaps behind them, packed
	// or not, and lengths in use.
	Seqs             []Seq
	PackedQ, PackedK bool
	LooseQ, LooseK   bool

	Align   problem.Causal
	Window  problem.Window
	Softcap float32
	Dropout float32 // not with KV; seed and offset follow from SeedValue

	PageSize    int     // keys per page; 0: no pages
	Prefix      int     // keys at the start that all sequences share, with the pages they fill
	SparseRatio float64 // ratio of tokens listed; 0: no lists
	Shuffled    bool    // lists in no order, with some tokens twice, some past the end and some before the start
	BlockQ      int     // rows and keys of a block; 0: no bitmap
	BlockK      int
	Blocks      Spread // with BlockQ; each row of blocks has bits of its own
	Bias        BiasKind
	Mask        Spread
	Ones        bool // mask and bitmap exclude nothing
	ALiBi       bool
	Sinks       bool

	KV         problem.KVType
	KVBlock    int
	VInK       bool // V is the first Dv elements of K's rows, in the same memory
	FixedSplit int

	Extremes Extremes

	seed uint64 // SeedValue, of a problem's case
}

// Seq is one sequence of a [Case]. Its numbers follow from ID alone, so that the same
// sequence can be part of another batch.
type Seq struct {
	ID         int
	Rows, Keys int
}

// Spread says in which dimensions a mask, a bias or a bitmap has its own entries. In the
// others one entry serves all. The zero value means that there is none.
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

// sizes are the sizes in problem.Bias and Mask: 1 for one entry, 0 for all.
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
	DType problem.DType
}

// String names everything but the seed, in the form -run takes.
func (c Case) String() string {
	if c.Seqs != nil || c.Name != "" {
		return c.optionsString()
	}
	s := fmt.Sprintf("d%d", c.D)
	if c.Dv != c.D {
		s += fmt.Sprintf("v%d", c.Dv)
	}
	s += fmt.Sprintf(".%v.B%d.H%d", c.Causal, c.B, c.Hq)
	if kv := c.KVHeads(); kv != c.Hq {
		s += fmt.Sprintf("k%d", kv)
	}
	s += fmt.Sprintf(".%dx%d.%v.%v", c.Sq, c.Sk, c.Layout, c.Data)
	if !c.Scale.IsDefault() {
		s += ".scale" + c.Scale.String()
	}
	if c.LSE {
		s += ".lse"
	}
	if c.Access != problem.AccessAuto {
		s += "." + c.Access.String()
	}
	return s
}

// optionsString is String of a case with a name or Seqs.
func (c Case) optionsString() string {
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
	if c.Align != problem.CausalNone {
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
		{c.Dropout != 0, fmt.Sprintf("dropout%v", c.Dropout)},
		{c.Bias.On, fmt.Sprintf("bias-%v-%v", c.Bias.DType, c.Bias.Spread)},
		{c.Mask.On, fmt.Sprintf("mask-%v", c.Mask)}, {c.Ones, "ones"}, {c.ALiBi, "alibi"}, {c.Sinks, "sinks"},
		{c.KV != problem.KVSame, c.KV.String()}, {c.KVBlock > 1, fmt.Sprintf("scale%d", c.KVBlock)}, {c.VInK, "vink"},
		{c.FixedSplit > 0, fmt.Sprintf("split%d", c.FixedSplit)}, {!c.Scale.IsDefault(), "scale" + c.Scale.String()},
		{c.Layout != Tight, c.Layout.String()}, {c.Data != Normal, c.Data.String()}, {c.LSE, "lse"},
		{c.Access != problem.AccessAuto, c.Access.String()},
	} {
		if f.on {
			add("%s", f.name)
		}
	}
	return b.String()
}

// SeedValue depends on the problem alone, not on its place in the table.
func (c Case) SeedValue() uint64 {
	if c.Seed != 0 {
		return c.Seed
	}
	h := fnv.New64a()
	fmt.Fprint(h, c.String())
	return h.Sum64()
}

// Config is the Config of the case on a tier.
func (c Case) Config(tt Target) problem.Config {
	cfg := problem.Config{
		DType: tt.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal, Scale: c.Scale, Tier: tt.Tier,
		Align: c.Align, Window: c.Window, Softcap: c.Softcap, Dropout: c.Dropout, KV: c.KV, KVBlock: c.KVBlock, FixedSplit: c.FixedSplit,
		Tuning: problem.TuningOff, // a tuned machine must test the same
	}
	if tt.Tier != problem.TierCPU {
		cfg.Access = c.Access
	}
	return cfg
}

// Bounds is the Shape of a call. It bounds sequences with lengths of their own by a little
// more than the longest.
func (c Case) Bounds() problem.Shape {
	if c.Seqs == nil {
		return c.Shape
	}
	s := problem.Shape{B: len(c.Seqs), Hq: c.Hq, Hkv: c.Hkv, Sq: 1, Sk: 1}
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

// sequences are Seqs, or as many of one length as the Shape says.
func (c *Case) sequences() []Seq {
	if c.Seqs != nil {
		return c.Seqs
	}
	all := make([]Seq, c.B)
	for b := range all {
		all[b] = Seq{b, c.Sq, c.Sk}
	}
	return all
}

// usedLengths reports whether the lengths in use are given, of rows and of keys.
func (c Case) usedLengths() (q, k bool) {
	shape := c.Bounds()
	q, k = c.LooseQ, c.LooseK
	for _, s := range c.Seqs {
		q = q || !c.PackedQ && s.Rows != shape.Sq
		k = k || !c.PackedK && s.Keys != shape.Sk
	}
	return q, k
}

// Dims are the elements of a row of Q and one of V together.
func (c Case) Dims() int { return c.D + c.Dv }

// Flops is the number of operations, with the operations of masked cells.
func (c Case) Flops() int64 {
	var cells int64
	for _, s := range c.sequences() {
		cells += int64(s.Rows) * int64(s.Keys)
	}
	return 2 * cells * int64(c.Hq) * int64(c.D+c.Dv)
}

// Memory is about how many bytes the tensors of a case take.
func (c Case) Memory(dtype problem.DType) int64 {
	var elements int64
	for _, s := range c.sequences() {
		elements += int64(s.Rows)*int64(c.Hq) + int64(s.Keys)*int64(c.Hkv)
	}
	elements *= int64(c.D + c.Dv)
	slots := c.Bounds()
	if c.Mask.On || c.Bias.On {
		elements += slots.Rows() * int64(slots.Sk)
	}
	return 2 * elements * int64(dtype.Size())
}

// Cost is the work of a case in flops, including what kernels compute past the last row
// and key of a tile.
func (c Case) Cost() int64 {
	rows := int64(c.Shape.B) * int64(c.Shape.Hq) * RoundUp(int64(c.Shape.Sq), 16)
	return 2 * rows * RoundUp(int64(c.Shape.Sk), 32) * int64(c.D+c.Dv)
}

// Hidden is the first key that no row attends to.
func (c Case) Hidden() int {
	return c.Causal.Visible(c.Shape.Sq-1, c.Shape.Sq, c.Shape.Sk)
}

// HalfSeen is how many keys the middle row attends to.
func (c Case) HalfSeen() int {
	return c.Causal.Visible((c.Shape.Sq-1)/2, c.Shape.Sq, c.Shape.Sk)
}

// Pipeline names the pipeline of a case, nearly, so that cases that share one can follow
// each other: kernels look closer at how tensors are aligned and how many rows there are.
func (c Case) Pipeline() string {
	if c.Seqs == nil {
		return fmt.Sprint(c.D, c.Dv, c.Causal != problem.CausalNone, c.LSE, c.Access, layoutAlign[c.Layout], rowClass(c.Sq))
	}
	shape := c.Bounds()
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
	return fmt.Sprint(c.D, c.Dv, c.Causal != problem.CausalNone, c.LSE, c.Access, layoutAlign[c.Layout], rowClass(shape.Sq*c.Group()),
		c.PackedQ, c.PackedK, usedQ, usedK, c.PageSize, c.SparseRatio > 0, c.BlockQ, c.BlockK, window, c.Softcap != 0, bias, c.Mask.On,
		c.ALiBi, c.Sinks, c.KV, c.KVBlock, c.Group() > 1, c.FixedSplit > 1, c.Dropout != 0)
}
