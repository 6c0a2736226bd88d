package host

import (
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/hostcall"
	"vkattn/internal/simd"
)

// modifiedTile evaluates the score modifier of a call, its derivative and the mask modifier for tiles of the backward pass.
type modifiedTile struct {
	modifiers
	slope          *score.Evaluator // of the derivative of score
	product, inner []float32        // derivatives of the scores of a tile: with respect to products, and to the modifier's s
	places         []tablePlace
	tableSums      [][]float64 // [heads of the group][entries] of each table with a gradient, of a task
}

func (m *modifiedTile) init(call *hostcall.Call) {
	m.modifiers.init(call)
	if m.score != nil {
		m.slope = score.NewEvaluator(call.Cfg.ScoreMod.Diff(), score.Float32)
		m.product, m.inner = make([]float32, simd.BackwardRows*simd.BackwardKeys), make([]float32, simd.BackwardRows*simd.BackwardKeys)
	}
}

// eachRow visits the rows of a block with their heads, and takes the keys of the tile.
func (w *cpuBackwardWorker) eachRow(u *backwardUnit, first int, visit func(i, head, row int)) {
	w.keys = w.keys[:0]
	for _, key := range w.Keys {
		if key >= 0 {
			w.keys = append(w.keys, int(key))
		}
	}
	for i := range w.Rows {
		head, row := w.c.rowAt(u, first+i)
		visit(i, head, row)
	}
}

// maskSlots removes the slots of a tile that the mask modifier or Args.Mask excludes from the mask, which is begun if there is another.
// It returns false if none is left.
func (w *cpuBackwardWorker) maskSlots(u *backwardUnit, first int, begun bool) (any bool) {
	w.eachRow(u, first, func(i, head, row int) {
		w.yes = slices.Grow(w.yes[:0], len(w.keys))[:len(w.keys)]
		w.c.Attends(w.yes, u.b, head, row, w.keys)
		mask := w.Mask()[i*simd.BackwardKeys:]
		for n, yes := range w.yes {
			switch {
			case !yes:
				mask[n] = 0
			case !begun:
				mask[n] = 1
			}
			any = any || mask[n] != 0
		}
	})
	return any
}

// modifyScores computes the modified scores of a tile and their derivatives.
func (w *cpuBackwardWorker) modifyScores(u *backwardUnit, first int, full bool) {
	scores := w.Scores(w.product, full)
	w.eachRow(u, first, func(i, head, row int) {
		w.results = slices.Grow(w.results[:0], len(w.keys))[:len(w.keys)]
		s := w.slots.Of(&w.c.Call, u.b, head, row, w.keys)
		at := i * simd.BackwardKeys
		for n := range s.S {
			s.S[n] = float64(scores[at+n])
		}
		w.readPlaces(s, at)
		w.slope.Eval(w.results, s)
		for n, x := range w.results {
			w.inner[at+n] = float32(x)
			w.product[at+n] *= float32(x)
		}
		w.score.Eval(w.results, s)
		for n, x := range w.results {
			scores[at+n] = float32(x)
		}
	})
}
