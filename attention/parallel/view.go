package parallel

import (
	"vkattn/attention"
	"vkattn/internal/par"
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

// every is n rows from row first on, at a distance of step rows.
func (v view) every(first, step, n int) view {
	v.Offset += int64(first) * v.Strides.Seq
	v.Strides.Seq *= int64(step)
	v.rows = n
	return v
}

// groupsOfRows is count groups of n consecutive rows from row first on, at a distance of step rows, as sequences
// of a batch. v is a single sequence.
func (v view) groupsOfRows(first, n, step, count int) view {
	v = v.rowsFrom(first, n)
	v.Strides.Batch = int64(step) * v.Strides.Seq
	v.batch = count
	return v
}

// headsFrom is n heads from head first on.
func (v view) headsFrom(first, n int) view {
	v.Offset += int64(first) * v.Strides.Head
	v.heads = n
	return v
}

// sequencesFrom is n sequences of the batch from sequence first on.
func (v view) sequencesFrom(first, n int) view {
	v.Offset += int64(first) * v.Strides.Batch
	v.batch = n
	return v
}

// words is the same memory as a tensor of 32-bit words; ok is false if rows are not whole words.
func (v view) words() (w view, ok bool) {
	n := 4 / v.dtype.Size()
	for _, x := range [5]int64{int64(v.dim), v.Offset, v.Strides.Batch, v.Strides.Head, v.Strides.Seq} {
		if x%int64(n) != 0 {
			return v, false
		}
	}
	v.dtype, v.dim, v.Offset = attention.F32, v.dim/n, v.Offset/int64(n)
	v.Strides = attention.Strides{Batch: v.Strides.Batch / int64(n), Head: v.Strides.Head / int64(n),
		Seq: v.Strides.Seq / int64(n), Expanded: v.Strides.Expanded}
	return v, true
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

// memory is the range of a view without gaps.
func (v *view) memory() Memory {
	return Memory{Host: v.Host, Buffer: v.Buffer, Offset: v.Offset * int64(v.dtype.Size()), Bytes: v.bytes()}
}

// onDevice is memory that lies in a buffer.
func (v *view) onDevice() vk.BufferRange {
	m := v.memory()
	return vk.BufferRange{Buffer: m.Buffer, Offset: uint64(m.Offset), Size: uint64(m.Bytes)}
}

// row returns the memory of a row in host memory.
func (v *view) row(b, h, row int) []byte {
	size := int64(v.dtype.Size())
	at := v.Offset + int64(b)*v.Strides.Batch + int64(h)*v.Strides.Head + int64(row)*v.Strides.Seq
	return v.Host[at*size:][:int64(v.dim)*size]
}

// eachRow calls work for every row, in parallel.
func (v *view) eachRow(work func(b, h, row int)) {
	const block = 64 // rows at once
	blocks := (v.rows + block - 1) / block
	par.Each(int64(v.batch)*int64(v.heads)*int64(blocks), func() func(int64) {
		return func(i int64) {
			first, rest := int(i%int64(blocks))*block, int(i/int64(blocks))
			for row := first; row < min(first+block, v.rows); row++ {
				work(rest/v.heads, rest%v.heads, row)
			}
		}
	})
}

// pieces calls visit with the byte offset and the size of each contiguous piece of a
// tensor in device memory, in the order of its elements. Pieces of tensors of the same sizes
// agree if both have consecutive rows.
func (v *view) pieces(consecutive bool, visit func(at, n uint64)) {
	size := int64(v.dtype.Size())
	rows, n := v.rows, 1
	if consecutive {
		rows, n = 1, v.rows
	}
	for b := range v.batch {
		for h := range v.heads {
			for row := range rows {
				at := v.Offset + int64(b)*v.Strides.Batch + int64(h)*v.Strides.Head + int64(row)*v.Strides.Seq
				visit(uint64(at*size), uint64(int64(n)*int64(v.dim)*size))
			}
		}
	}
}

// consecutive reports whether the rows of a head lie one after the other.
func (v *view) consecutive() bool { return v.rows < 2 || v.Strides.Seq == int64(v.dim) }
