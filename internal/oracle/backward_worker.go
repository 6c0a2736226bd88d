package oracle

import (
	"math"
	"slices"
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// backwardWorker computes the gradients of one (batch, key head) after the other by the
// formula. It goes over the query heads of the group and over blocks of their rows, and
// adds to dK, dV and dBias in this order, so the order of every sum is fixed. Each block
// takes three passes over its keys: the first computes the scores, the second dP and dV,
// the third dQ and dK.
type backwardWorker[T number] struct {
	*worker[T]
	call  *backward[T]
	given *given // LSE and O of the rows, for a sample of keys; nil: they follow from all keys
}

// rowGradients are the numbers of a row that only the backward pass has.
type rowGradients[T number] struct {
	o     []T // of the row, where delta comes from it
	dO    []T
	dLSE  T
	delta T
	dQ    int // the number of the row in dQ
	dS    []T // of the entries: dP, then dX, then dS
	rowRoundings
}

func newBackwardWorker[T number](c *backward[T]) *backwardWorker[T] {
	w := &backwardWorker[T]{worker: newWorker(&c.Call, c.arithmetic, backwardRows(c.Args)), call: c}
	w.column = c.column
	if slope := scoreOf(&c.Call).Diff(); slope != score.Num(1) {
		w.slope = score.NewEvaluator(slope, nil)
	}
	if c.want.Bias && c.Cfg.ScoreMod.Given() {
		w.biasSlope = score.NewEvaluator(c.Cfg.ScoreMod.Diff().Of(optionsOf(&c.Call)), nil)
	}
	w.openTables(c.tables)
	for i := range w.rows {
		w.rows[i].dO, w.rows[i].o = make([]T, c.Cfg.ValueDim()), make([]T, c.Cfg.ValueDim())
	}
	return w
}

// run computes all that a sequence and key head contribute.
func (w *backwardWorker[T]) run(b, kv int) {
	group, rows := w.Args.Group(), w.Sequences[b].Rows
	for h := kv * group; h < (kv+1)*group; h++ {
		for first := 0; first < rows; first += len(w.rows) {
			var numbers []int
			for row := first; row < min(first+len(w.rows), rows); row++ {
				numbers = append(numbers, row)
			}
			w.block(b, h, numbers, w.call.rowNumber(b, h, first))
		}
	}
	if w.call.args.Accumulate {
		w.addStored(b, kv)
	}
}

// block computes what rows of a query head contribute. number is the number of the first in dQ.
func (w *backwardWorker[T]) block(b, h int, numbers []int, number int) {
	c, d, dv, kv := w.call, w.Cfg.HeadDim, w.Cfg.ValueDim(), h/w.Args.Group()
	rows := w.begin(b, h, numbers)
	for i := range rows {
		rows[i].dQ = number + i
		w.readGradients(&rows[i])
	}
	w.eachRun(rows, &w.V, func(r *row[T], weights, values []T) {
		from := r.next - len(weights)
		dP := r.dS[from:r.next]
		dots(dP, 1, r.dO, values)
		for i, p := range weights {
			key := w.key(r.entries[from+i])
			keep, dropped := w.keep(r.number, key), p
			dP[i] = w.round(dP[i])
			switch {
			case keep == 0:
				dP[i], dropped = 0, 0 // dP may be NaN where the slot is dropped
			case keep != 1:
				dP[i], dropped = w.round(dP[i]*keep), w.round(p*keep)
			}
			if w.low && w.given == nil {
				addScaled(r.o, dropped, values[i*dv:][:dv])
			}
			if c.want.V {
				at := c.keyNumber(b, kv, key)
				addScaled(c.dV[at*dv:][:dv], dropped, r.dO)
				if c.roundings != nil {
					one := p == 1
					if w.given != nil {
						one = w.given.ones[r.number] == key+1
					}
					addValue(c.roundings, r, at, one, float32(p), float32(keep), float32(dropped))
				}
			}
		}
	})
	for i := range rows {
		if !math.IsInf(float64(rows[i].lse), -1) {
			w.scoreGradients(&rows[i])
		}
	}
	if !c.want.Q && !c.want.K {
		return
	}
	w.eachRun(rows, &w.K, func(r *row[T], weights, keys []T) {
		from := r.next - len(weights)
		for i, p := range weights {
			entry := from + i
			x, key, k := w.scale*r.dS[entry], 0, keys[i*d:][:d]
			if c.want.Q {
				addScaled(c.dQ[r.dQ*d:][:d], x, k)
			}
			if c.want.K {
				key = c.keyNumber(b, kv, w.key(r.entries[entry]))
				addScaled(c.dK[key*d:][:d], x, r.q)
			}
			if c.roundings != nil {
				addProduct(c.roundings, r, key, entry, p, k)
			}
		}
	})
	if c.roundings != nil {
		for i := range rows {
			c.roundings.endRow(rows[i].dQ, &rows[i].rowRoundings)
		}
	}
}

// readGradients turns the scores of a row into P and reads the row's dO and dLSE. For a row with
// nothing to attend to it reads neither.
func (w *backwardWorker[T]) readGradients(r *row[T]) {
	r.rowRoundings = rowRoundings{}
	clear(r.o)
	if w.given == nil {
		w.weights(r)
	} else {
		w.readGiven(r)
	}
	if math.IsInf(float64(r.lse), -1) {
		r.drop()
		return
	}
	r.dS = slices.Grow(r.dS[:0], len(r.scores))[:len(r.scores)]
	batch, at := w.QueryRow(w.b, r.number)
	narrow := w.narrow[:w.Cfg.ValueDim()]
	w.call.dO.ReadRow(narrow, batch, w.h, at)
	widen(r.dO, narrow)
	r.dLSE = 0
	if w.call.args.DLSE.Given() {
		w.call.dLSE.ReadRow(narrow, batch, w.h, at)
		r.dLSE = T(narrow[0])
	}
	if w.call.roundings != nil {
		beginRow(r, w.scoreError(r))
	}
}

// setDelta computes delta: Σ P dP from all keys of the row, or Σ dO O where operations store O, or O
// is given.
func (w *backwardWorker[T]) setDelta(r *row[T]) {
	r.delta = 0
	if !w.low && w.given == nil {
		for i, p := range r.scores {
			if p != 0 { // dP may be NaN where the weight is 0
				r.delta += p * r.dS[i]
			}
		}
		return
	}
	var squares float64
	for j, x := range r.o {
		if x != 0 { // dO may hold anything where the row attends to its sink alone
			rounded := w.round(x)
			r.delta += r.dO[j] * rounded
			e := float64(r.dO[j]) * float64(rounded-x)
			squares += e * e
		}
	}
	r.deltaError = 2 * math.Sqrt(squares)
}

// scoreGradients turns dP of a row into dS, and adds its share to dBias and dSinks.
func (w *backwardWorker[T]) scoreGradients(r *row[T]) {
	c := w.call
	w.setDelta(r)
	if c.roundings != nil {
		addScores(c.roundings, r)
	}
	for i, p := range r.scores {
		if p != 0 {
			r.dS[i] = w.round(p * (r.dS[i] - r.delta + r.dLSE))
		} else {
			r.dS[i] = 0
		}
	}
	if c.want.Bias {
		first := c.biasRow(w.b, w.h, r.number)
		for i, x := range r.dS {
			at := int(first) + w.key(r.entries[i])
			slope := T(1)
			if len(r.biases) > 0 && r.scores[i] != 0 {
				slope = r.biases[i]
			}
			c.dBias[at] += x * slope
			if c.roundings != nil {
				c.roundings.addBias(at, &r.rowRoundings, i, float64(r.scores[i]), float64(slope))
			}
		}
	}
	w.addTables(r)
	if c.want.Sinks {
		if p := T(math.Exp(float64(w.logit() - r.lse))); p != 0 {
			c.sinks[w.b*w.Args.Hq+w.h] -= p * (r.delta - r.dLSE)
			if c.roundings != nil {
				c.roundings.addSink(w.b*w.Args.Hq+w.h, &r.rowRoundings, float64(p), math.Abs(float64(r.delta-r.dLSE)))
			}
		}
	}
	for i, slope := range r.slopes {
		if r.scores[i] == 0 {
			continue // the derivative may be NaN
		}
		r.dS[i] = w.round(r.dS[i] * slope)
		if r.noise != nil {
			r.noise[i] *= float64(slope)
		}
	}
}

// addStored adds what the outputs hold to the gradients of a sequence and key head.
func (w *backwardWorker[T]) addStored(b, kv int) {
	c, group := w.call, w.Args.Group()
	add := func(dst []T, view problem.HostView, rows int, number func(i int) int, where func(b, row int) (batch, at int), head int) {
		if dst == nil {
			return
		}
		narrow := w.narrow[:view.Dim()]
		for i := range rows {
			batch, at := where(b, i)
			view.ReadRow(narrow, batch, head, at)
			for j, x := range narrow {
				dst[number(i)*len(narrow)+j] += T(x)
			}
		}
	}
	for h := kv * group; h < (kv+1)*group; h++ {
		add(c.dQ, c.stored[0], w.Sequences[b].Rows, func(i int) int { return c.rowNumber(b, h, i) }, w.QueryRow, h)
	}
	number := func(i int) int { return c.keyNumber(b, kv, i) }
	add(c.dK, c.stored[1], w.Sequences[b].Keys, number, w.KVRow, kv)
	add(c.dV, c.stored[2], w.Sequences[b].Keys, number, w.KVRow, kv)
}
