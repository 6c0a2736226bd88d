package cases

import "vkattn/internal/problem"

// Sizes of a case: its sequences, its bounds, and its work.

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
