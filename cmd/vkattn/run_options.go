package main

import (
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/tensors"
)

// openOptions reads the options of the call. Lengths come first: the sizes of the
// others depend on them.
func (in *runInputs) openOptions() error {
	if !in.special {
		return nil
	}
	if in.o.has("alibi") && in.config.Causal == attention.CausalNone && in.config.Align == attention.CausalNone {
		return wrong("alibi", "needs --align without a causal mask: the alignment of rows with keys")
	}
	for _, step := range []func() error{in.readLengths, in.readTable, in.readSparse,
		func() error { return in.readShapes(optionFiles) }, in.readBlocks} {
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
	out, err := a.Int32s()
	if err != nil {
		return nil, wrong(flag, "%w", err)
	}
	return out, nil
}

func (in *runInputs) readTable() error {
	table, err := in.ints("block-table")
	if err != nil || table == nil {
		return err
	}
	pages := attention.Pages{Table: bench.Ints(table), Stride: in.files["block-table"].Shape[1],
		PageSize: in.axes[1].rows, Count: in.axes[1].batch}
	lengths := attention.Args{Shape: in.shape, Varlen: in.args.Varlen}
	for b, s := range tensors.SequencesOf(&lengths) {
		for i := range (s.Keys + pages.PageSize - 1) / pages.PageSize {
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
	if len(f.Shape) == 4 && !in.o.has("sparse-offsets") {
		return in.readSparseOfRows(f.Shape, tokens)
	}
	lists := in.shape.B * in.shape.Hkv
	var offsets []int32
	switch {
	case !in.o.has("sparse-offsets") && len(f.Shape) == 3 && f.Shape[0] == in.shape.B && f.Shape[1] == in.shape.Hkv:
		tokens, offsets = unpad(tokens, lists)
	case !in.o.has("sparse-offsets"):
		return wrong("sparse-tokens", "shape %v, want [%d, %d, tokens of a list], or [total] with --sparse-offsets, or lists of each row of rank 4",
			f.Shape, in.shape.B, in.shape.Hkv)
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
	list := attention.SparseTokens{Offsets: bench.Ints(offsets), Tokens: bench.Ints(tokens), Total: len(tokens)}
	if len(tokens) == 0 { // no vector is given without memory
		list.Tokens = bench.Ints([]int32{0})
	}
	in.args.SparseTokens = &list
	return nil
}

// readSparseOfRows takes lists of each query row and KV head.
func (in *runInputs) readSparseOfRows(shape []int, tokens []int32) error {
	batches, rows := in.shape.B, in.shape.Sq
	if v := in.args.Varlen; v != nil && v.CuQ.Given() {
		batches, rows = 1, v.TotalQ
	}
	if want := []int{batches, rows, in.shape.Hkv}; !slices.Equal(shape[:3], want) {
		return wrong("sparse-tokens", "shape %v, want [%d, %d, %d, tokens of a list]", shape, batches, rows, in.shape.Hkv)
	}
	for i, t := range tokens {
		if t < -1 || int(t) >= in.shape.Sk {
			list := i / shape[3]
			return wrong("sparse-tokens", "token %d of row %d, head %d is not in -1 to %d", t, list/in.shape.Hkv, list%in.shape.Hkv, in.shape.Sk-1)
		}
	}
	list := attention.SparseTokens{Tokens: bench.Ints(tokens), TopK: shape[3], PerRow: true}
	if len(tokens) == 0 { // no list has a token, or there is none
		list.Tokens = bench.Ints([]int32{-1})
		list.TopK, list.Offsets = 0, bench.Ints(make([]int32, batches*rows*in.shape.Hkv+1))
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

func (in *runInputs) readBlocks() error {
	f := in.files["block-mask"]
	if f == nil {
		return nil
	}
	rows, keys := f.Shape[2], f.Shape[3]
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
	in.args.Blocks = &attention.Blocks{Map: bench.Ints(bits), BlockQ: in.o.block[0], BlockK: in.o.block[1],
		Batches: f.Shape[0], Heads: f.Shape[1]}
	return nil
}
