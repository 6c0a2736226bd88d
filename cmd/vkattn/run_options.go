package main

import (
	"encoding/binary"
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
)

// openOptions reads the options of the call. Lengths come first: the sizes of the
// others depend on them.
func (in *runInputs) openOptions() error {
	if !in.special {
		return nil
	}
	for _, step := range []func() error{in.readLengths, in.readTable, in.readSparse, in.readHeads, in.readSlots, in.readBlocks, in.readScales} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// wrong returns an error that names the flag of a file.
func wrong(flag, format string, args ...any) error {
	return fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...))
}

// ints reads a file of integers as int32. It returns nil if the flag is not set.
func (in *runInputs) ints(flag string, shape ...int) ([]int32, error) {
	f := in.files[flag]
	if f == nil {
		return nil, nil
	}
	if shape != nil && !slices.Equal(f.Shape, shape) {
		return nil, wrong(flag, "shape %v, want %v", f.Shape, shape)
	}
	a, err := f.Load()
	if err != nil {
		return nil, wrong(flag, "%w", err)
	}
	size := a.DType.Size()
	out := make([]int32, len(a.Data)/size)
	for i := range out {
		v := int64(int32(binary.LittleEndian.Uint32(a.Data[i*size:])))
		if size == 8 {
			v = int64(binary.LittleEndian.Uint64(a.Data[i*size:]))
		}
		if out[i] = int32(v); int64(out[i]) != v {
			return nil, wrong(flag, "%d does not fit 32 bits", v)
		}
	}
	return out, nil
}

// vector returns integers as host memory, an empty Vector for nil.
func vector(v []int32) attention.Vector {
	if v == nil {
		return attention.Vector{}
	}
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	return attention.Vector{Host: out}
}

func (in *runInputs) readTable() error {
	table, err := in.ints("block-table")
	if err != nil || table == nil {
		return err
	}
	pages := attention.Pages{Table: vector(table), Stride: in.files["block-table"].Shape[1], PageSize: in.axes[1].rows, Count: in.axes[1].batch}
	for b := range in.shape.B {
		for i := range (in.keys(b) + pages.PageSize - 1) / pages.PageSize {
			if p := table[b*pages.Stride+i]; p < 0 || int(p) >= pages.Count {
				return wrong("block-table", "entry %d of sequence %d is %d, not one of the %d pages", i, b, p, pages.Count)
			}
		}
	}
	in.args.Pages = &pages
	return nil
}

func (in *runInputs) readSparse() error {
	f := in.files["sparse-tokens"]
	if f == nil {
		return nil
	}
	tokens, err := in.ints("sparse-tokens")
	if err != nil {
		return err
	}
	if len(tokens) > attention.MaxLength {
		return wrong("sparse-tokens", "%d tokens, want at most %d", len(tokens), attention.MaxLength)
	}
	lists := in.shape.B * in.shape.Hkv
	var offsets []int32
	switch {
	case in.o.sparseOffsets == "" && len(f.Shape) == 3 && f.Shape[0] == in.shape.B && f.Shape[1] == in.shape.Hkv:
		tokens, offsets = unpad(tokens, lists)
	case in.o.sparseOffsets == "":
		return wrong("sparse-tokens", "shape %v, want [%d, %d, tokens of a list], or [total] with --sparse-offsets", f.Shape, in.shape.B, in.shape.Hkv)
	case len(f.Shape) != 1:
		return wrong("sparse-tokens", "shape %v, want [total] with --sparse-offsets", f.Shape)
	default:
		if offsets, err = in.ints("sparse-offsets", lists+1); err != nil {
			return err
		}
		if _, err := differences(offsets, len(tokens)); err != nil {
			return wrong("sparse-offsets", "%w", err)
		}
	}
	for i := range lists {
		for _, t := range tokens[offsets[i]:offsets[i+1]] {
			if b := i / in.shape.Hkv; t < 0 || int(t) >= in.shape.Sk {
				return wrong("sparse-tokens", "token %d of sequence %d, head %d is not in 0 to %d", t, b, i%in.shape.Hkv, in.shape.Sk-1)
			}
		}
	}
	list := attention.SparseTokens{Offsets: vector(offsets), Tokens: vector(tokens), Total: len(tokens)}
	if len(tokens) == 0 { // no vector is given without memory
		list.Tokens = vector([]int32{0})
	}
	in.args.SparseTokens = &list
	return nil
}

// unpad packs lists of equal length, without their padding of -1.
func unpad(tokens []int32, lists int) (packed, offsets []int32) {
	offsets = []int32{0}
	n := len(tokens) / max(lists, 1)
	for i := range lists {
		for _, t := range tokens[i*n : (i+1)*n] {
			if t != -1 {
				packed = append(packed, t)
			}
		}
		offsets = append(offsets, int32(len(packed)))
	}
	return packed, offsets
}

// readHeads reads the vectors with one number per query head.
func (in *runInputs) readHeads() error {
	for _, v := range []struct {
		flag string
		to   *attention.Vector
	}{{"alibi", &in.args.ALiBi}, {"sinks", &in.args.Sinks}} {
		f := in.files[v.flag]
		if f == nil {
			continue
		}
		if !slices.Equal(f.Shape, []int{in.shape.Hq}) {
			return wrong(v.flag, "shape %v, want [%d], one number per query head", f.Shape, in.shape.Hq)
		}
		a, err := f.Load()
		if err != nil {
			return wrong(v.flag, "%w", err)
		}
		v.to.Host = convert(a.Data, fileType(a.DType), attention.F32)
	}
	if in.o.alibi != "" && in.config.Causal == attention.CausalNone && in.config.Align == attention.CausalNone {
		return wrong("alibi", "needs --align without a causal mask: the alignment of rows with keys")
	}
	return nil
}

// slotAxes checks a file of [1 or B, 1 or Hq, 1 or Sq, Sk].
func (in *runInputs) slotAxes(flag string, rows, keys int) ([]int, error) {
	f := in.files[flag]
	want := []int{in.shape.B, in.shape.Hq, rows, keys}
	bad := len(f.Shape) != 4
	for i := 0; i < 4 && !bad; i++ {
		bad = f.Shape[i] != want[i] && (f.Shape[i] != 1 || i == 3)
	}
	if bad {
		return nil, wrong(flag, "shape %v, want [1 or %d, 1 or %d, 1 or %d, %d]", f.Shape, want[0], want[1], want[2], want[3])
	}
	return f.Shape, nil
}

// readSlots checks the shapes of bias and mask, which have an element per row and key.
// loadSlots reads them.
func (in *runInputs) readSlots() error {
	if f := in.files["bias"]; f != nil {
		s, err := in.slotAxes("bias", in.shape.Sq, in.shape.Sk)
		if err != nil {
			return err
		}
		in.args.Bias = &attention.Bias{DType: fileType(f.DType), Batches: s[0], Heads: s[1], Rows: s[2]}
		in.args.Bias.Strides = attention.BHSD(s[1], s[2], s[3])
	}
	if in.files["mask"] != nil {
		s, err := in.slotAxes("mask", in.shape.Sq, in.shape.Sk)
		if err != nil {
			return err
		}
		in.args.Mask = &attention.Mask{Batches: s[0], Heads: s[1], Rows: s[2]}
		in.args.Mask.Strides = attention.BHSD(s[1], s[2], s[3])
	}
	return nil
}

func (in *runInputs) readBlocks() error {
	f := in.files["block-mask"]
	if f == nil {
		return nil
	}
	bq, bk := in.o.block[0], in.o.block[1]
	rows, keys := (in.shape.Sq+bq-1)/bq, (in.shape.Sk+bk-1)/bk
	want := []int{in.shape.B, in.shape.Hq, rows, keys}
	if len(f.Shape) != 4 || f.Shape[0] != 1 && f.Shape[0] != want[0] || f.Shape[1] != 1 && f.Shape[1] != want[1] || f.Shape[2] != rows || f.Shape[3] != keys {
		return wrong("block-mask", "shape %v, want [1 or %d, 1 or %d, %d, %d] for blocks of %d rows and %d keys", f.Shape, want[0], want[1], rows, keys, bq, bk)
	}
	a, err := f.Load()
	if err != nil {
		return wrong("block-mask", "%w", err)
	}
	words := (keys + 31) / 32
	bits := make([]int32, f.Shape[0]*f.Shape[1]*rows*words)
	for i, on := range a.Data {
		if on != 0 {
			bits[i/keys*words+i%keys/32] |= 1 << (i % keys % 32)
		}
	}
	in.args.Blocks = &attention.Blocks{Map: vector(bits), BlockQ: bq, BlockK: bk, Batches: f.Shape[0], Heads: f.Shape[1]}
	return nil
}

// readScales checks the shapes of the scales of int8 and fp8. loadSlots reads them.
func (in *runInputs) readScales() error {
	k := in.axes[1]
	keys := (k.rows-1)/max(in.o.kvBlock, 1) + 1
	want := []int{k.batch, k.heads, keys}
	if in.o.cuK != "" {
		want = want[1:]
	}
	for _, flag := range []string{"k-scale", "v-scale"} {
		if f := in.files[flag]; f != nil && !slices.Equal(f.Shape, want) {
			return wrong(flag, "shape %v, want %v", f.Shape, want)
		}
	}
	return nil
}

// loadSlots reads the files that readSlots and readScales checked.
func (in *runInputs) loadSlots(args *attention.Args) error {
	for _, t := range []struct {
		flag string
		put  func(a *npy.Array)
	}{
		{"bias", func(a *npy.Array) { args.Bias.Host = a.Data }},
		{"mask", func(a *npy.Array) { args.Mask.Host = a.Data }},
		{"k-scale", func(a *npy.Array) { args.KScale.Host = a.Data }},
		{"v-scale", func(a *npy.Array) { args.VScale.Host = a.Data }},
	} {
		if f := in.files[t.flag]; f != nil {
			a, err := f.Load()
			if err != nil {
				return wrong(t.flag, "%w", err)
			}
			t.put(a)
		}
	}
	return nil
}
