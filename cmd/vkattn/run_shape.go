package main

import (
	"fmt"

	"vkattn/attention"
)

// axes are the sizes of a tensor by the meaning of its file's axes. A packed tensor
// has one batch.
type axes struct {
	batch, heads, rows, dim int
	pitch                   int  // elements from one row to the next: dim, unless V lies within K
	seqMajor                bool // rows before heads
}

// strides are the strides of the tensor in its file.
func (a axes) strides() attention.Strides {
	if a.seqMajor {
		return attention.BSHD(a.heads, a.rows, a.pitch)
	}
	return attention.BHSD(a.heads, a.rows, a.pitch)
}

// shape is the shape of a file whose rows have dim elements.
func (a axes) shape(packed bool, dim int) []int {
	switch {
	case packed:
		return []int{a.rows, a.heads, dim}
	case a.seqMajor:
		return []int{a.batch, a.rows, a.heads, dim}
	}
	return []int{a.batch, a.heads, a.rows, dim}
}

// readAxes gives the axes of a file their meaning. The first axis of packed rows and of pages may
// be empty.
func readAxes(shape []int, packed, paged, seqMajor bool, layout string) (a axes, err error) {
	want := 4
	if packed {
		want, layout = 3, "packed as [total, heads, dim]"
	}
	if len(shape) != want {
		return a, fmt.Errorf("rank %d, want %d (%s)", len(shape), want, layout)
	}
	for i, n := range shape {
		if n == 0 && (i > 0 || !packed && !paged) {
			return a, fmt.Errorf("an axis is empty: %v", shape)
		}
	}
	switch {
	case packed:
		return axes{1, shape[1], shape[0], shape[2], shape[2], true}, nil
	case seqMajor:
		return axes{shape[0], shape[2], shape[1], shape[3], shape[3], true}, nil
	}
	return axes{shape[0], shape[1], shape[2], shape[3], shape[3], false}, nil
}

// agree derives the problem from the shapes of the files. The lengths of packed and
// paged sequences are read later.
func (in *runInputs) agree() error {
	o := in.o
	packedQ, packedK, paged := o.has("cu-seqlens-q"), o.has("cu-seqlens-k"), o.has("block-table")
	for i, t := range []struct {
		flag          string
		packed, paged bool
	}{{"q", packedQ, false}, {"k", packedK, paged}, {"v", packedK, paged}} {
		if i == 2 && o.vDim != 0 {
			in.axes[2] = in.axes[1]
			if o.vDim > in.axes[1].dim {
				return fmt.Errorf("--v-dim %d: K has head dim %d", o.vDim, in.axes[1].dim)
			}
			in.axes[2].dim = o.vDim
			continue
		}
		seqMajor, layout := o.bshd, o.layout()
		if t.paged {
			seqMajor, layout = !o.hnd, "pages, "+o.pageLayout()
		}
		a, err := readAxes(in.files[t.flag].Shape, t.packed, t.paged, seqMajor, layout)
		if err == nil && i > 0 {
			a.dim, err = elements(o.call.KV, a.dim)
			a.pitch = a.dim
		}
		if err != nil {
			return fmt.Errorf("--%s %s: %w", t.flag, o.of(t.flag), err)
		}
		in.axes[i] = a
	}
	q, k, v := in.axes[0], in.axes[1], in.axes[2]
	fail := func(format string, args ...any) error { return fmt.Errorf(format, args...) } // the linter wants no capital in Errorf
	batch := "batch"
	if paged {
		batch = "pages"
	}
	switch {
	case !paged && !packedK && !packedQ && k.batch != q.batch:
		return fail("K has batch %d, Q has %d", k.batch, q.batch)
	case v.batch != k.batch && k.batch == q.batch && !paged:
		return fail("V has batch %d, Q has %d", v.batch, q.batch)
	case v.batch != k.batch:
		return fail("V has %s %d, K has %d", batch, v.batch, k.batch)
	case v.heads != k.heads:
		return fail("V has %d heads, K has %d", v.heads, k.heads)
	case q.heads%k.heads != 0:
		return fail("Q has %d heads, not a multiple of K's %d", q.heads, k.heads)
	case v.rows != k.rows:
		return fail("V has %d rows, K has %d", v.rows, k.rows)
	case k.dim != q.dim:
		return fail("K has head dim %d, Q has %d", k.dim, q.dim)
	case o.pageSize != 0 && k.rows != o.pageSize:
		return fail("K has pages of %d keys (%s), --page-size says %d", k.rows, o.pageLayout(), o.pageSize)
	}
	in.shape = attention.Shape{B: q.batch, Hq: q.heads, Hkv: k.heads, Sq: q.rows, Sk: k.rows}
	if packedQ || packedK || paged {
		return nil // readLengths completes the shape
	}
	return in.shape.Validate()
}

// elements is the number of elements in a row of n units of storage: n, or for
// q8_0 and q4_0 the elements in n bytes.
func elements(kv attention.KVType, n int) (int, error) {
	if !kv.Blocked() {
		return n, nil
	}
	block := kv.RowBytes(attention.F16, 32)
	if n%block != 0 {
		return 0, fmt.Errorf("rows of %d bytes, not a multiple of the %d of a %v block", n, block, kv)
	}
	return n / block * 32, nil
}
