package problem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"vkattn/internal/errs"
)

// A tensor that a Device made or wrapped knows its storage type and its shape, so that calls check both and a program
// reads and writes numbers. One that only names memory has neither.

// Store is the memory of a tensor that a Device made.
type Store interface {
	Write(at int64, b []byte) error
	Read(ctx context.Context, at int64, b []byte) error
	Close() error
}

// made is what a Device made a tensor with. Views share the store.
type made struct {
	store Store
	dtype DType
	shape []int
}

// NewMade returns the tensor of a store, packed, whose memory m names; m without a store.
func NewMade(m Tensor, store Store, dtype DType, shape ...int) Tensor {
	if store == nil {
		return m
	}
	m.made = &made{store, dtype, slices.Clone(shape)}
	return m
}

// Made reports whether a Device made t.
func (t Tensor) Made() bool { return t.made != nil }

// DType is the storage type that t was made with.
func (t Tensor) DType() (dtype DType, ok bool) {
	if t.made == nil {
		return 0, false
	}
	return t.made.dtype, true
}

// Shape returns the sizes that t was made with, outermost first; nil if it names memory of the caller.
func (t Tensor) Shape() []int { return slices.Clone(t.Sizes()) }

// Sizes is Shape without a copy.
func (t *Tensor) Sizes() []int {
	if t == nil || t.made == nil {
		return nil
	}
	return t.made.shape
}

func (t Tensor) len() int {
	n := 1
	for _, s := range t.made.shape {
		n *= s
	}
	return n
}

var errNotMade = errs.Invalid("the tensor has no type and no shape: Device.Tensor makes one that is read and written, Device.Wrap of memory of your own")

// SetFloats writes all elements. It returns when x may be used again.
func (t Tensor) SetFloats(x []float32) error {
	if t.made == nil {
		return errNotMade
	}
	if len(x) != t.len() {
		return &ShapeError{Field: "SetFloats", Got: fmt.Sprintf("%d numbers", len(x)), Want: fmt.Sprintf("%d, for %v", t.len(), t.made.shape)}
	}
	b := make([]byte, len(x)*t.made.dtype.Size())
	t.made.dtype.Encode(b, x)
	return t.SetBytes(b)
}

// SetBytes is SetFloats for elements as they are stored, little-endian.
func (t Tensor) SetBytes(b []byte) error {
	if t.made == nil {
		return errNotMade
	}
	size := t.made.dtype.Size()
	if t.Strides.Expanded {
		return &ShapeError{Field: "SetBytes", Got: "an expanded tensor", Want: "one whose elements are apart"}
	}
	if len(b) != t.len()*size {
		return &ShapeError{Field: "SetBytes", Got: fmt.Sprintf("%d bytes", len(b)), Want: fmt.Sprintf("%d, for %v of %v", t.len()*size, t.made.shape, t.made.dtype)}
	}
	for _, run := range t.runs() {
		if err := t.made.store.Write(run.at*int64(size), b[:run.n*size]); err != nil {
			return err
		}
		b = b[run.n*size:]
	}
	return nil
}

// Floats waits for the calls on the default stream and returns all elements of t, the last dimension first.
func (t Tensor) Floats(ctx context.Context) ([]float32, error) {
	b, err := t.Bytes(ctx)
	if err != nil {
		return nil, err
	}
	x := make([]float32, t.len())
	t.made.dtype.Decode(x, b)
	return x, nil
}

// Bytes is Floats for elements as they are stored.
func (t Tensor) Bytes(ctx context.Context) ([]byte, error) {
	if t.made == nil {
		return nil, errNotMade
	}
	size := t.made.dtype.Size()
	all := make([]byte, t.len()*size)
	b := all
	for _, run := range t.runs() {
		if err := t.made.store.Read(ctx, run.at*int64(size), b[:run.n*size]); err != nil {
			return nil, err
		}
		b = b[run.n*size:]
	}
	return all, nil
}

// Close does nothing for memory of the caller.
func (t Tensor) Close() error {
	if t.made == nil {
		return nil
	}
	return t.made.store.Close()
}

// Slice is a view of [from, to) of one dimension; all sizes of t must be given.
func (t Tensor) Slice(dim, from, to int) (Tensor, error) {
	switch {
	case t.made == nil:
		return Tensor{}, errNotMade
	case dim < 0 || dim >= len(t.made.shape):
		return Tensor{}, &ShapeError{Field: "Slice", Got: fmt.Sprintf("dimension %d", dim), Want: fmt.Sprintf("0 to %d", len(t.made.shape)-1)}
	case from < 0 || to < from || to > t.made.shape[dim]:
		return Tensor{}, &ShapeError{Field: "Slice", Got: fmt.Sprintf("%d to %d", from, to), Want: fmt.Sprintf("a part of %d", t.made.shape[dim])}
	case len(t.made.shape) != 4:
		return Tensor{}, &ShapeError{Field: "Slice", Got: fmt.Sprintf("%d dimensions", len(t.made.shape)), Want: "4"}
	case dim == 3:
		return Tensor{}, errors.Join(ErrUnsupported, errors.New("attention: a view of some columns: rows are contiguous"))
	}
	s := t.Strides.Resolve(t.made.shape[1], t.made.shape[2], t.made.shape[3])
	t.Offset += int64(from) * [3]int64{s.Batch, s.Head, s.Seq}[dim]
	t.Strides = s
	shape := t.Shape()
	shape[dim] = to - from
	t.made = &made{t.made.store, t.made.dtype, shape}
	return t, nil
}

// Expand is a view that repeats dimensions of size 1. It can be read, not written.
func (t Tensor) Expand(shape ...int) (Tensor, error) {
	have := t.Sizes()
	switch {
	case t.made == nil:
		return Tensor{}, errNotMade
	case len(have) != 4 || len(shape) != 4:
		return Tensor{}, &ShapeError{Field: "Expand", Got: fmt.Sprintf("%v of %v", shape, have), Want: "four dimensions"}
	}
	s := t.Strides.Resolve(have[1], have[2], have[3])
	for i, step := range []*int64{&s.Batch, &s.Head, &s.Seq, nil} {
		switch {
		case shape[i] == have[i]:
		case have[i] != 1 || step == nil || shape[i] < 0:
			return Tensor{}, &ShapeError{Field: "Expand", Got: fmt.Sprintf("%v of %v", shape, have), Want: "the same sizes where they are not 1"}
		default:
			*step = 0
		}
	}
	s.Expanded = true
	t.Strides = s
	t.made = &made{t.made.store, t.made.dtype, slices.Clone(shape)}
	return t, nil
}

// run is a piece of contiguous elements.
type run struct {
	at int64
	n  int
}

// runs returns the pieces of t in the order of its elements.
func (t *Tensor) runs() (list []run) {
	if len(t.made.shape) != 4 {
		return []run{{t.Offset, t.len()}}
	}
	s := t.Strides.Resolve(t.made.shape[1], t.made.shape[2], t.made.shape[3])
	for b := range t.made.shape[0] {
		for h := range t.made.shape[1] {
			for r := range t.made.shape[2] {
				at := t.Offset + int64(b)*s.Batch + int64(h)*s.Head + int64(r)*s.Seq
				if k := len(list) - 1; k >= 0 && list[k].at+int64(list[k].n) == at {
					list[k].n += t.made.shape[3]
				} else {
					list = append(list, run{at, t.made.shape[3]})
				}
			}
		}
	}
	return list
}
