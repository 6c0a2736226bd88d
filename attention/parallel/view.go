package parallel

import (
	"context"
	"encoding/binary"
	"math"

	"vkattn/attention"
	"vkattn/attention/internal/par"
	"vkattn/vk"
)

// view is a tensor [batch, heads, rows, dim] with its sizes and explicit strides.
type view struct {
	attention.Tensor
	dtype                   attention.DType
	batch, heads, rows, dim int
}

func viewOf(t attention.Tensor, dtype attention.DType, batch, heads, rows, dim int) view {
	t.Strides = t.Strides.Resolve(heads, rows, dim)
	return view{t, dtype, batch, heads, rows, dim}
}

// rowsFrom is n rows from row first on.
func (v view) rowsFrom(first, n int) view {
	v.Offset += int64(first) * v.Strides.Seq
	v.rows = n
	return v
}

// headsFrom is n heads from head first on.
func (v view) headsFrom(first, n int) view {
	v.Offset += int64(first) * v.Strides.Head
	v.heads = n
	return v
}

// bytes is the size of the elements.
func (v *view) bytes() int64 {
	return int64(v.batch) * int64(v.heads) * int64(v.rows) * int64(v.dim) * int64(v.dtype.Size())
}

// packed reports whether the elements lie one after the other in the order of the sizes.
func (v *view) packed() bool {
	step := int64(v.dim)
	for _, x := range [3]struct {
		n      int
		stride int64
	}{{v.rows, v.Strides.Seq}, {v.heads, v.Strides.Head}, {v.batch, v.Strides.Batch}} {
		if x.n > 1 && x.stride != step {
			return false
		}
		step *= int64(x.n)
	}
	return true
}

// memory is the range of a packed view.
func (v *view) memory() Memory {
	return Memory{Host: v.Host, Buffer: v.Buffer, Offset: v.Offset * int64(v.dtype.Size()), Bytes: v.bytes()}
}

// row returns the memory of a row in host memory.
func (v *view) row(b, h, row int) []byte {
	size := int64(v.dtype.Size())
	at := v.Offset + int64(b)*v.Strides.Batch + int64(h)*v.Strides.Head + int64(row)*v.Strides.Seq
	return v.Host[at*size:][:int64(v.dim)*size]
}

// eachRow calls work for every row, in parallel.
func (v *view) eachRow(newWorker func() func(b, h, row int)) {
	const block = 64 // rows at once
	blocks := (v.rows + block - 1) / block
	par.Each(int64(v.batch)*int64(v.heads)*int64(blocks), func() func(int64) {
		work := newWorker()
		return func(i int64) {
			first, rest := int(i%int64(blocks))*block, int(i/int64(blocks))
			for row := first; row < min(first+block, v.rows); row++ {
				work(rest/v.heads, rest%v.heads, row)
			}
		}
	})
}

// side is where a call computes. It allocates, copies and sums tensors there.
type side struct{ allocated int64 }

// new allocates a packed tensor.
func (s *side) new(dtype attention.DType, batch, heads, rows, dim int) view {
	v := viewOf(attention.Tensor{}, dtype, batch, heads, rows, dim)
	s.allocated += v.bytes()
	v.Host = make([]byte, v.bytes())
	return v
}

// like allocates a packed tensor with the sizes of another.
func (s *side) like(v view, dtype attention.DType) view {
	return s.new(dtype, v.batch, v.heads, v.rows, v.dim)
}

// copy copies a tensor to another of the same sizes and type.
func (s *side) copy(dst, src view) {
	if src.bytes() == 0 {
		return
	}
	if dst.packed() && src.packed() {
		to, from := dst.memory(), src.memory()
		copy(to.bytes(), from.bytes())
		return
	}
	src.eachRow(func() func(b, h, row int) {
		return func(b, h, row int) { copy(dst.row(b, h, row), src.row(b, h, row)) }
	})
}

// dense returns a packed tensor with the same elements, in v's memory or in a copy.
func (s *side) dense(v view) view {
	if v.packed() {
		v.Strides = attention.BHSD(v.heads, v.rows, v.dim)
		return v
	}
	d := s.like(v, v.dtype)
	s.copy(d, v)
	return d
}

// clear sets all elements to 0.
func (s *side) clear(v view) {
	v.eachRow(func() func(b, h, row int) { return func(b, h, row int) { clear(v.row(b, h, row)) } })
}

// empty sets LSE to that of rows without keys.
func (s *side) empty(lse view) {
	infinity := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.Inf(-1))))
	lse.eachRow(func() func(b, h, row int) { return func(b, h, row int) { copy(lse.row(b, h, row), infinity) } })
}

// sum adds float32 tensors of the same sizes in their order and rounds the sum once.
func (s *side) sum(dst view, terms ...view) {
	dst.eachRow(func() func(b, h, row int) {
		total, term := make([]float32, dst.dim), make([]float32, dst.dim)
		return func(b, h, row int) {
			attention.F32.Decode(total, terms[0].row(b, h, row))
			for i := range terms[1:] {
				attention.F32.Decode(term, terms[1+i].row(b, h, row))
				for d, x := range term {
					total[d] += x
				}
			}
			dst.dtype.Encode(dst.row(b, h, row), total)
		}
	})
}

// sync waits for what was computed, so that another rank may read it.
func (s *side) sync(context.Context) error { return nil }

// stream is where operations record their work: nil on the CPU tier.
func (s *side) stream() *vk.Stream { return nil }
