package problem

import (
	"errors"

	"vkattn/attention/score"
	"vkattn/vk"
)

// The types of the optional tensors of a call, fields of Args: varlen, block tables, sparse
// tokens, block bitmaps, bias and mask.

// Vector is attention.Vector, whose comment documents it.
type Vector struct {
	Buffer *vk.Buffer
	Host   []byte
	Memory *Memory
	Offset int64
}

// Given reports whether v names memory.
func (v Vector) Given() bool { return v.Buffer != nil || v.Host != nil || v.Memory != nil }

// Tensor is v as memory of the caller.
func (v Vector) Tensor() Tensor {
	return Tensor{Buffer: v.Buffer, Host: v.Host, Memory: v.Memory, Offset: v.Offset}
}

// Close frees the memory.
func (v Vector) Close() error {
	return errors.Join(v.Buffer.Close(), v.Memory.Close())
}

// Varlen is attention.Varlen: the same type, which documents its fields.
type Varlen = struct {
	CuQ, CuK       Vector
	TotalQ, TotalK int
	UsedQ, UsedK   Vector
}

// Pages is attention.Pages: the same type, which documents its fields.
type Pages = struct {
	Table                   Vector
	Stride, PageSize, Count int
}

// SparseTokens is attention.SparseTokens: the same type, which documents its fields.
type SparseTokens = struct {
	Offsets, Tokens Vector
	Total, TopK     int
	PerRow          bool
}

// Blocks is attention.Blocks: the same type, which documents its fields.
type Blocks = struct {
	Map            Vector
	BlockQ, BlockK int
	Batches, Heads int
}

// Bias is attention.Bias: the same type, which documents its fields.
type Bias = struct {
	Tensor
	DType                DType
	Batches, Heads, Rows int
}

// Table is attention.Table: the same type, which documents its fields.
type Table = struct {
	Vector
	Name string
	Dims [score.MaxRank]int
}

// Mask is attention.Mask: the same type, which documents its fields.
type Mask = struct {
	Tensor
	Batches, Heads, Rows int
}

// The tensors of a backward call, and the results of its float64 reference.

// BackwardArgs is attention.BackwardArgs: the same type, which documents its fields.
type BackwardArgs = struct {
	Args
	DO, DLSE, DQ, DK, DV, DBias Tensor
	DSinks                      Vector
	DTables                     []Table
	Accumulate, PartialKeys     bool
}

// Gradients is attention.Gradients: the same type, which documents its fields.
type Gradients = struct {
	DQ, DK, DV, DBias, DSinks []float64
	DTables                   [][]float64
}
