package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/internal/hostmem"
)

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
		if len(in.files[side.flag].Shape) != 1 || len(cu) < 2 {
			return wrong(side.flag, "shape %v, want [B+1]", in.files[side.flag].Shape)
		}
		if lengths[i], err = differences(cu, side.rows); err != nil {
			return wrong(side.flag, "%w", err)
		}
		*side.cu, *side.most = vector(cu), max(1, slices.Max(lengths[i]))
	}
	if err := in.countSequences(len(lengths[0]), len(lengths[1])); err != nil {
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
		*side.used = vector(used)
		if side.flag == "seqused-k" && in.o.has("block-table") {
			in.shape.Sk = max(1, int(slices.Max(used)))
		}
	}
	if given.CuQ.Given() || given.CuK.Given() || given.UsedQ.Given() || given.UsedK.Given() {
		in.args.Varlen = &given
	}
	return in.shape.Validate()
}

// countSequences finds the batch size, on which all files must agree.
func (in *runInputs) countSequences(fromCuQ, fromCuK int) error {
	fromTable := 0
	if t := in.files["block-table"]; t != nil {
		if len(t.Shape) != 2 || t.Shape[0] == 0 || t.Shape[1] == 0 {
			return wrong("block-table", "shape %v, want [B, pages of a sequence]", t.Shape)
		}
		fromTable = t.Shape[0]
	}
	q, k := 0, 0
	if fromCuQ == 0 {
		q = in.axes[0].batch
	}
	if fromCuK == 0 && fromTable == 0 {
		k = in.axes[1].batch
	}
	type count struct {
		from string
		n    int
	}
	var first count
	for _, c := range []count{{"Q", q}, {"--cu-seqlens-q", fromCuQ}, {"K", k}, {"--cu-seqlens-k", fromCuK}, {"--block-table", fromTable}} {
		switch {
		case c.n == 0:
		case first.n == 0:
			first = c
		case c.n != first.n:
			return fmt.Errorf("%s has %d sequences, %s has %d", c.from, c.n, first.from, first.n)
		}
	}
	in.shape.B = first.n
	return nil
}

// differences returns the lengths of sequences from their cumulative bounds, which must
// not decrease and not exceed rows.
func differences(cu []int32, rows int) ([]int, error) {
	var out []int
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

// keys is the number of keys of sequence b.
func (in *runInputs) keys(b int) int {
	n := in.shape.Sk
	if v := in.args.Varlen; v != nil {
		at := func(v attention.Vector, i int) int { return int(int32(binary.LittleEndian.Uint32(v.Host[4*i:]))) }
		if v.CuK.Given() {
			n = at(v.CuK, b+1) - at(v.CuK, b)
		}
		if v.UsedK.Given() {
			n = at(v.UsedK, b)
		}
	}
	return n
}
