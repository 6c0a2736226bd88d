package host

import (
	"math"
	"slices"

	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// storeZeros stores the gradients of the keys that a list leaves out, and of rows and keys
// past the end of a sequence.
func (w *cpuBackwardWorker) storeZeros(u *backwardUnit) {
	c := w.c
	if c.args.Accumulate {
		return
	}
	zero := make([]float32, max(c.Cfg.HeadDim, c.Cfg.ValueDim()))
	rows, keys := c.Args.Sq, c.Args.Sk
	if v := c.Args.Varlen; v != nil {
		rows, keys = rangeOf(v.CuQ, v.TotalQ, rows, u.b), rangeOf(v.CuK, v.TotalK, keys, u.b)
	}
	if c.want.Q {
		for row := c.Sequences[u.b].Rows; row < rows; row++ {
			batch, at := c.QueryRow(u.b, row)
			for h := u.kv * c.Args.Group(); h < (u.kv+1)*c.Args.Group(); h++ {
				c.dQ.WriteRow(zero, batch, h, at)
			}
		}
	}
	next := 0 // of the list
	for key := range keys {
		if key < c.Sequences[u.b].Keys {
			if u.list == nil {
				continue
			}
			if next < len(u.list) && u.list[next] == int32(key) {
				next++
				continue
			}
		}
		batch, at := c.KVRow(u.b, key)
		if c.want.K {
			c.dK.WriteRow(zero, batch, u.kv, at)
		}
		if c.want.V {
			c.dV.WriteRow(zero, batch, u.kv, at)
		}
	}
}

// rangeOf returns the rows that sequence b has in a tensor, used or not.
func rangeOf(cu problem.Vector, total, most, b int) int {
	if !cu.Given() {
		return most
	}
	first, end := min(max(tensors.IntAt(&cu, b), 0), total), min(max(tensors.IntAt(&cu, b+1), 0), total)
	return max(end-first, 0)
}

// beginBlock computes the numbers of the rows of a block.
func (w *cpuBackwardWorker) beginBlock(u *backwardUnit, block int) {
	c := w.c
	first, n := w.rowsOf(u, block)
	rows := c.rows[u.firstRow+first:][:n]
	low, high := int32(math.MaxInt32), int32(0)
	info := backwardBlock{leHi: math.MaxInt32}
	for i := range rows {
		r := &rows[i]
		head, row := c.rowAt(u, first+i)
		batch, at := c.QueryRow(u.b, row)
		var lse [1]float32
		half.DecodeF32(lse[:], c.lse[((int64(batch)*int64(c.Args.Hq)+int64(head))*int64(c.lseRows)+int64(at))*int64(problem.F32.Size()):])
		*r = simd.BackwardRow{Position: float64(c.Position(u.b, row)), LSE: lse[0], Slope: c.Slope(u.b, head), Factor: 1,
			Row: uint32(row), Head: c.DropoutHead(u.b, head)}
		if math.IsInf(float64(r.LSE), -1) {
			r.LSE = float32(math.Inf(1)) // nothing to attend to
		} else {
			lo, hi := c.Span(u.b, row)
			r.First, r.End = int32(lo), int32(hi)
		}
		if r.First < r.End {
			low, high = min(low, r.First), max(high, r.End)
		}
		info.mostLo, info.leHi = max(info.mostLo, r.First), min(info.leHi, r.End)
	}
	info.first, info.last = u.tilesOf(low, high)
	w.locate(u, first, rows)
	for i := range rows {
		head, row := c.rowAt(u, first+i)
		w.OAt[i] = -1
		if w.QAt[i] >= 0 {
			batch, at := c.QueryRow(u.b, row)
			w.OAt[i] = c.o.ByteOf(batch, head, at)
		}
	}
	w.ReadRows(c.Args.Q.Host, c.args.DO.Host, n, c.stored)
	info.finite = w.Delta(w.delta, c.Args.O.Host, c.storedO)
	for i := range rows {
		r := &rows[i]
		if math.IsInf(float64(r.LSE), 1) {
			continue
		}
		delta := w.delta[i]
		if c.args.DLSE.Given() {
			head, row := c.rowAt(u, first+i)
			batch, at := c.QueryRow(u.b, row)
			var dLSE [1]float32
			c.dLSE.ReadRow(dLSE[:], batch, head, at)
			delta -= float64(dLSE[0])
		}
		r.Delta = float32(delta)
	}
	c.blocks[u.firstBlk+block] = info
	if !c.args.PartialKeys {
		w.correct(u, first, rows, &info)
	}
	if c.want.Q && info.first > info.last && !c.args.Accumulate {
		w.storeQuery(u, block)
	}
}

// exactLSE bounds LSE in magnitude: below it, rounding LSE to float32 changes P by less than
// 1.6e-5 of itself.
const exactLSE = 256

// correct computes the factors of rows whose LSE is large. The sum of their P differs from 1
// because LSE is rounded: at 1e4 by 5e-4, at 1e9 by anything. The keys must be all that LSE counts.
func (w *cpuBackwardWorker) correct(u *backwardUnit, first int, rows []simd.BackwardRow, info *backwardBlock) {
	c := w.c
	large := func(r *simd.BackwardRow) bool {
		lse := math.Abs(float64(r.LSE))
		return r.First < r.End && lse >= exactLSE && !math.IsInf(lse, 1)
	}
	if !slices.ContainsFunc(rows, func(r simd.BackwardRow) bool { return large(&r) }) {
		return
	}
	w.Rows = rows
	sums := w.delta
	clear(sums)
	for tile := int(info.first); tile <= int(info.last); tile++ {
		w.beginKeys(u, tile)
		switch {
		case !w.readOptions(u, first):
		case w.score != nil:
			w.modifyScores(u, first, w.full(info))
			w.RowSumsOf(sums)
		default:
			w.RowSums(sums, w.full(info))
		}
	}
	for i := range rows {
		r := &rows[i]
		if !large(r) {
			continue
		}
		head, _ := c.rowAt(u, first+i)
		if sink, ok := c.Sink(head); ok {
			sums[i] += math.Exp(float64(sink) - float64(r.LSE))
		}
		if sums[i] > 0 && !math.IsInf(sums[i], 1) {
			r.Factor = float32(1 / sums[i])
		}
	}
}
