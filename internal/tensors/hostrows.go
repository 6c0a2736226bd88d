package tensors

import (
	"vkattn/internal/problem"
)

// HostRows is a HostView that also says where its rows begin.
type HostRows struct {
	problem.HostView
	offset  int64 // of element [0,0,0,0], in elements
	Strides problem.Strides
	size    int64 // bytes of an element
}

// ViewRows is ViewHost.
func ViewRows(t problem.Tensor, dtype problem.DType, heads, seq, dim int) (HostRows, error) {
	view, err := problem.ViewHost(t, dtype, heads, seq, dim)
	return HostRows{view, t.Offset, t.Strides.Resolve(heads, seq, dim), int64(dtype.Size())}, err
}

// ByteOf returns the byte offset of a row.
func (v *HostRows) ByteOf(b, h, row int) int64 { return v.Element(b, h, row) * v.size }

// Element returns the element offset of a row.
func (v *HostRows) Element(b, h, row int) int64 {
	return v.offset + int64(b)*v.Strides.Batch + int64(h)*v.Strides.Head + int64(row)*v.Strides.Seq
}
