package problem

import (
	"fmt"
)

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
