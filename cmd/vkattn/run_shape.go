package main

import (
	"fmt"
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
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

// readAxes gives the axes of a file their meaning. The first axis may be empty: sequences, packed rows
// or pages.
func readAxes(shape []int, packed, seqMajor bool, layout string) (a axes, err error) {
	want := 4
	if packed {
		want, layout = 3, "packed as [total, heads, dim]"
	}
	if len(shape) != want {
		return a, fmt.Errorf("rank %d, want %d (%s)", len(shape), want, layout)
	}
	for i, n := range shape {
		if n == 0 && i > 0 {
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
		a, err := readAxes(in.files[t.flag].Shape, t.packed, seqMajor, layout)
		if err == nil && i > 0 {
			a.dim, err = elements(o.storedAs(t.flag), a.dim)
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
	return problem.ValidateSizes(in.shape, 0, 1)
}

// elements is the number of elements in a row of n units of storage: n, or for
// blocks the elements in n bytes.
func elements(kv attention.KVType, n int) (int, error) {
	if !kv.Blocked() {
		return n, nil
	}
	block := kv.RowBytes(attention.F16, kv.Unit())
	if n%block != 0 {
		return 0, fmt.Errorf("rows of %d bytes, not a multiple of the %d of a %v block", n, block, kv)
	}
	return n / block * kv.Unit(), nil
}

// readLengths reads the lengths of the sequences and completes the shape.
func (in *runInputs) readLengths() error {
	q, k := &in.axes[0], &in.axes[1]
	var given attention.Varlen
	lengths := [2][]int{}
	for i, side := range []struct {
		flag string
		rows int
		cu   *attention.Vector
		most *int
	}{{"cu-seqlens-q", q.rows, &given.CuQ, &in.shape.Sq}, {"cu-seqlens-k", k.rows, &given.CuK, &in.shape.Sk}} {
		cu, err := in.ints(side.flag)
		if err != nil {
			return err
		}
		if cu == nil {
			continue
		}
		switch f := in.files[side.flag]; {
		case len(f.Shape) != 1:
			return wrong(side.flag, "shape %v, want [B+1]", f.Shape)
		case len(cu) == 0:
			return fmt.Errorf("--%s %s: shape %v, want [B+1]: one number at least", side.flag, in.o.of(side.flag), f.Shape)
		}
		if lengths[i], err = differences(cu, side.rows); err != nil {
			return wrong(side.flag, "%w", err)
		}
		*side.cu, *side.most = bench.Ints(cu), slices.Max(append(lengths[i], 1))
	}
	if err := in.countSequences(lengths[0], lengths[1]); err != nil {
		return err
	}
	if given.CuQ.Given() {
		given.TotalQ = q.rows
	}
	if given.CuK.Given() {
		given.TotalK = k.rows
	}
	if in.o.has("block-table") {
		keys := hostmem.Product(in.files["block-table"].Shape[1], k.rows)
		in.shape.Sk = int(min(keys, math.MaxInt)) // Validate refuses a length over MaxLength
	}
	for i, side := range []struct {
		flag string
		used *attention.Vector
		most int
	}{{"seqused-q", &given.UsedQ, in.shape.Sq}, {"seqused-k", &given.UsedK, in.shape.Sk}} {
		used, err := in.ints(side.flag)
		if err != nil || used == nil {
			if err != nil {
				return err
			}
			continue
		}
		if f := in.files[side.flag]; !slices.Equal(f.Shape, []int{in.shape.B}) {
			return wrong(side.flag, "shape %v, want [%d]", f.Shape, in.shape.B)
		}
		for b, n := range used {
			most := side.most
			if lengths[i] != nil {
				most = lengths[i][b]
			}
			if n < 0 || int(n) > most {
				return wrong(side.flag, "length %d of sequence %d is not in 0 to %d", n, b, most)
			}
		}
		*side.used = bench.Ints(used)
		if side.flag == "seqused-k" && in.o.has("block-table") {
			in.shape.Sk = int(slices.Max(append(used, 1)))
		}
	}
	if given.CuQ.Given() || given.CuK.Given() || given.UsedQ.Given() || given.UsedK.Given() {
		in.args.Varlen = &given
	}
	return problem.ValidateSizes(in.shape, 0, 1)
}

// countSequences finds the batch size, on which all files must agree. Bounds that are not given are nil.
func (in *runInputs) countSequences(boundsQ, boundsK []int) error {
	type count struct {
		from string
		n    int
	}
	var list []count
	table := in.files["block-table"]
	if boundsQ == nil {
		list = append(list, count{"Q", in.axes[0].batch})
	} else {
		list = append(list, count{"--cu-seqlens-q", len(boundsQ)})
	}
	switch {
	case boundsK != nil:
		list = append(list, count{"--cu-seqlens-k", len(boundsK)})
	case table == nil:
		list = append(list, count{"K", in.axes[1].batch})
	case len(table.Shape) != 2 || table.Shape[1] == 0:
		return wrong("block-table", "shape %v, want [B, pages of a sequence]", table.Shape)
	default:
		list = append(list, count{"--block-table", table.Shape[0]})
	}
	if q, k := list[0], list[1]; q.n != k.n {
		return fmt.Errorf("%s has %d sequences, %s has %d", k.from, k.n, q.from, q.n)
	}
	in.shape.B = list[0].n
	return nil
}

// differences returns the lengths of sequences from their cumulative bounds, which must
// not decrease and not exceed rows.
func differences(cu []int32, rows int) ([]int, error) {
	out := []int{}
	for i, n := range cu {
		switch {
		case n < 0:
			return nil, fmt.Errorf("entry %d is %d, want at least 0", i, n)
		case i > 0 && n < cu[i-1]:
			return nil, fmt.Errorf("entry %d is %d after %d: they must not decrease", i, n, cu[i-1])
		case int(n) > rows:
			return nil, fmt.Errorf("entry %d is %d, but there are %d", i, n, rows)
		case i > 0:
			out = append(out, int(n-cu[i-1]))
		}
	}
	return out, nil
}

// memory is the memory of a run in bytes, computed from the headers of the files.
// Sizes that overflow saturate and fit nowhere.
type memory struct {
	arguments uint64 // tensors, tables and lists of the call
	host      uint64 // copies that the host keeps
	passing   uint64 // the largest temporary copy
}

// memory computes the memory of the run. The axes of the tensors and the storage type
// must be known.
func (in *runInputs) memory() (m memory) {
	pass := func(bytes ...uint64) { m.passing = max(m.passing, hostmem.Sum(bytes...)) }
	keep := func(sizes ...uint64) { m.arguments = hostmem.Sum(append(sizes, m.arguments)...) }
	for _, x := range inputFiles {
		f := in.files[x.flag]
		if f == nil {
			continue
		}
		n := f.Bytes() / uint64(f.DType.Size())
		switch {
		case x.as != nil && x.as(in) != fileType(f.DType):
			keep(hostmem.Product(n, uint64(x.as(in).Size())))
			pass(f.LoadBytes())
		case x.flag == "block-mask": // bits from bytes
			keep(n/8, n/8)
			pass(f.LoadBytes())
		case f.DType == npy.Int32 || f.DType == npy.Int64: // read into one slice of int32, sparse tokens into two
			keep(hostmem.Product(n, 4))
			m.host = hostmem.Sum(m.host, hostmem.Product(n, 8))
			pass(f.LoadBytes())
		default:
			keep(f.Bytes())
			pass(f.LoadBytes() - f.Bytes())
		}
	}
	keep(in.o.tables.Bytes())
	for _, x := range in.o.computed() {
		keep(x.bytes(in))
		if x.as(in) != attention.F32 { // it is written as float32
			pass(hostmem.Product(x.elements(in), 4))
		}
	}
	return m
}

// room returns an error if the run does not fit the memory of the host, or of the device
// with the scratch memory of the kernel.
func (in *runInputs) room(dev *attention.Device, scratch uint64) error {
	m := in.memory()
	host := hostmem.Sum(m.arguments, m.host, m.passing)
	if dev == nil {
		return bench.Room(nil, host, 0)
	}
	return bench.Room(dev, host, hostmem.Sum(m.arguments, scratch))
}
