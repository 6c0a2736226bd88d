package problem

import (
	"vkattn/vk"
)

// Strides is attention.Strides, whose comment documents it.
type Strides struct {
	Batch, Head, Seq int64
	Expanded         bool
}

// BHSD returns the strides of the packed layout [batch, head, row, dim].
func BHSD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(heads) * int64(seq) * int64(dim),
		Head:  int64(seq) * int64(dim),
		Seq:   int64(dim),
	}
}

// BSHD returns the strides of the packed layout [batch, row, head, dim].
func BSHD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(seq) * int64(heads) * int64(dim),
		Head:  int64(dim),
		Seq:   int64(heads) * int64(dim),
	}
}

// Resolve returns s, or packed BHSD if s is the zero value.
func (s Strides) Resolve(heads, seq, dim int) Strides {
	if s == (Strides{}) {
		return BHSD(heads, seq, dim)
	}
	return s
}

// Tensor is attention.Tensor, whose comment documents it.
type Tensor struct {
	Buffer  *vk.Buffer
	Host    []byte
	Memory  *Memory
	Offset  int64
	Strides Strides

	made *made
}

// Given reports whether t names memory.
func (t Tensor) Given() bool { return t.Buffer != nil || t.Host != nil || t.Memory != nil }

// Args is attention.Args: the same type, which documents its fields.
type Args = struct {
	Shape
	Q, K, V, O, LSE  Tensor
	Varlen           *Varlen
	Pages            *Pages
	SparseTokens     *SparseTokens
	Blocks           *Blocks
	Bias             *Bias
	Mask             *Mask
	ALiBi, Sinks     Vector
	Tables           []Table
	BlockMap         *BlockMap
	DropoutSeed      uint64
	DropoutOffset    uint32
	DropoutState     Vector
	ALiBiPerSequence bool
	MaxLogits        Vector
	KScale, VScale   Vector
}
