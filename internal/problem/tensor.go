package problem

import (
	"fmt"
	"sync/atomic"

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

// HostView is attention.HostView, whose comment documents it.
type HostView struct {
	bytes  []byte
	dtype  DType
	dim    int
	offset int64 // elements
	s      Strides
}

// ViewHost is attention.ViewHost.
func ViewHost(t Tensor, dtype DType, heads, seq, dim int) (HostView, error) {
	if t.Buffer != nil || t.Memory != nil || t.Host == nil {
		return HostView{}, fmt.Errorf("%w: not in host memory", ErrUnsupported)
	}
	return HostView{t.Host, dtype, dim, t.Offset, t.Strides.Resolve(heads, seq, dim)}, nil
}

// Dim is the number of elements of a row.
func (v HostView) Dim() int { return v.dim }

// ReadRow widens row (b, h, row) into dst[:Dim()]. Like an index it panics if the row lies
// outside of the memory or dst is too short.
func (v HostView) ReadRow(dst []float32, b, h, row int) {
	v.dtype.Decode(dst[:v.dim], v.at(b, h, row))
}

// ReadRows widens n consecutive rows, starting at (b, h, row), into dst, packed. It panics
// like ReadRow.
func (v HostView) ReadRows(dst []float32, b, h, row, n int) {
	if v.s.Seq == int64(v.dim) && n > 0 {
		v.dtype.Decode(dst[:n*v.dim], v.at(b, h, row))
		return
	}
	for i := range n {
		v.ReadRow(dst[i*v.dim:], b, h, row+i)
	}
}

// WriteRow rounds src[:Dim()] to row (b, h, row). It panics like ReadRow.
func (v HostView) WriteRow(src []float32, b, h, row int) {
	v.dtype.Encode(v.at(b, h, row), src[:v.dim])
}

// at returns the memory from the start of a row on.
func (v HostView) at(b, h, row int) []byte {
	element := v.offset + int64(b)*v.s.Batch + int64(h)*v.s.Head + int64(row)*v.s.Seq
	return v.bytes[element*int64(v.dtype.Size()):]
}

// Memory is attention.Memory, whose comment documents it.
type Memory struct {
	b      Backing
	closed atomic.Bool
}

// Backing is the memory as its device has it.
type Backing interface {
	Device() any     // whose memory it is; comparable
	Address() uint64 // of its first byte; the device's memories do not overlap where their addresses do not
	Size() uint64    // bytes
	Close() error    // it frees the memory once no work in flight uses it
}

// NewMemory is the Memory of a backing.
func NewMemory(b Backing) *Memory { return &Memory{b: b} }

// BackingOf returns what NewMemory was given, nil of nil.
func BackingOf(m *Memory) Backing {
	if m == nil {
		return nil
	}
	return m.b
}

// Size is 0 of nil.
func (m *Memory) Size() uint64 {
	if m == nil || m.b == nil {
		return 0
	}
	return m.b.Size()
}

// Closed is true of nil.
func (m *Memory) Closed() bool { return m == nil || m.b == nil || m.closed.Load() }

// Close is idempotent.
func (m *Memory) Close() error {
	if m == nil || m.b == nil || m.closed.Swap(true) {
		return nil
	}
	return m.b.Close()
}

// Sequence is the range of rows and the range of keys of one sequence.
type Sequence struct {
	Row, Rows int // first row in Q and O (0 unless packed by Varlen.CuQ) and number of rows
	Key, Keys int // first row in K and V (0 unless packed by Varlen.CuK) and number of keys
}

// Rows is attention.Rows: the same type, which documents its fields.
type Rows = struct {
	B, H int
	Rows []int
}
