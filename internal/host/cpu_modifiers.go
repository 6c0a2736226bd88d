package host

import (
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/hostcall"
	"vkattn/internal/simd"
)

// modifiers evaluate the score and mask modifiers of a call, row by row, for a worker. The arithmetic
// is that of float32.
type modifiers struct {
	score   *score.Evaluator // nil: no score modifier
	slots   hostcall.Slots
	keys    []int
	results []float64
	yes     []bool
}

func (m *modifiers) init(call *hostcall.Call) {
	if call.Cfg.ScoreMod.Given() {
		m.score = score.NewEvaluator(call.Cfg.ScoreMod, score.Float32)
	}
}

// setKeys takes the keys of a tile that a group may attend to.
func (m *modifiers) setKeys(job *simd.Tile) {
	m.keys = m.keys[:0]
	for _, key := range job.Keys[job.From:job.To] {
		m.keys = append(m.keys, int(key))
	}
}

// maskTile sets the mask of a tile for a group, or removes slots from the one that there is: those that the mask modifier
// excludes, unless its bounds say that there are none, and Args.Mask. It returns false if the group attends to none.
func (w *cpuWorker) maskTile(job *simd.Tile, g *cpuGroup, b int) (any bool) {
	w.setKeys(job)
	if w.call.Cfg.MaskMod.Given() {
		switch b := w.call.Cfg.MaskMod.Bounds(w.extent(g)); {
		case b.Hi == 0:
			return false
		case b.Lo == 1 && (w.call.Args.Blocks == nil || w.call.Args.Mask == nil):
			return true
		}
	}
	w.yes = slices.Grow(w.yes[:0], len(w.keys))[:len(w.keys)]
	for i := range g.rows {
		w.call.Attends(w.yes, b, g.head[i], int(g.Slots[i]), w.keys)
		for n, yes := range w.yes {
			at := &w.mask[(job.From+n)*Kernels.Lanes+i]
			if yes && job.Mask == nil {
				*at = 1
			} else if !yes {
				*at = 0
			}
			any = any || *at != 0
		}
	}
	job.Mask = w.mask
	return any
}

// extent is the positions of a group and the keys that it may attend to.
func (w *cpuWorker) extent(g *cpuGroup) score.Tile {
	positions := g.Position[:g.rows]
	return score.Tile{I0: int(slices.Min(positions)), I1: int(slices.Max(positions)), J0: slices.Min(w.keys), J1: slices.Max(w.keys)}
}

// modifyTile modifies the scores of a tile.
func (w *cpuWorker) modifyTile(job *simd.Tile, g *cpuGroup, b int) {
	w.setKeys(job)
	w.results = slices.Grow(w.results[:0], len(w.keys))[:len(w.keys)]
	for i := range g.rows {
		s := w.slots.Of(&w.call.Call, b, g.head[i], int(g.Slots[i]), w.keys)
		lane := w.scores[job.From*Kernels.Lanes+i:]
		for n := range s.S {
			s.S[n] = float64(lane[n*Kernels.Lanes])
		}
		w.score.Eval(w.results, s)
		for n, x := range w.results {
			lane[n*Kernels.Lanes] = float32(x)
		}
	}
}

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
