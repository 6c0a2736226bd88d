package host

import (
	"math"
	"slices"

	"vkattn/internal/problem"
	"vkattn/internal/score"
)

// backwardWorker computes the gradients of one (batch, key head) after the other by the
// formula. It goes over the query heads of the group and over blocks of their rows, and
// adds to dK, dV and dBias in this order, so the order of every sum is fixed. Each block
// takes three passes over its keys: the first computes the scores, the second dP and dV,
// the third dQ and dK. It shares only the scores, the softmax and the dot product with the
// forward reference.
type backwardWorker struct {
	*refWorker
	call  *backwardCall
	grads []rowGradients   // of the rows of a block
	slope *score.Evaluator // of the derivative of the score; nil where it is 1
}

// rowGradients are the numbers of a row that only the backward pass has.
type rowGradients struct {
	lse   float64
	dO    []float64 // [ValueDim]
	dLSE  float64
	dS    []float64 // of the entries: dP, then dS, then the gradient of the products
	slope []float64 // of the entries: derivative of the score; empty where it is 1
}

func newBackwardWorker(call *backwardCall) *backwardWorker {
	rows := backwardBlockRows(call.a)
	w := &backwardWorker{refWorker: newRefWorker(&call.hostCall, rows), call: call, grads: make([]rowGradients, rows)}
	if slope := scoreOf(call.cfg, call.a).Diff(); !slope.Is(1) {
		w.slope = score.NewEvaluator(slope, nil)
	}
	for i := range w.grads {
		w.grads[i].dO = make([]float64, call.cfg.ValueDim())
	}
	return w
}

// run computes all that a sequence and key head contribute.
func (w *backwardWorker) run(b, kv int) {
	group, rows := w.a.Group(), w.sequences[b].Rows
	w.list = w.sparseKeys(w.list[:0], b, kv)
	for h := kv * group; h < (kv+1)*group; h++ {
		for first := 0; first < rows; first += len(w.rows) {
			w.block(b, h, kv, first, min(len(w.rows), rows-first))
		}
	}
	if w.call.args.Accumulate {
		w.addStored(b, kv)
	}
}

// block computes what n rows of a query head contribute.
func (w *backwardWorker) block(b, h, kv, first, n int) {
	rows, g := w.rows[:n], &w.call.g
	d, dv := w.cfg.HeadDim, w.cfg.ValueDim()
	for i := range rows {
		w.begin(&rows[i], b, h, first+i)
	}
	w.eachRun(rows, b, kv, &w.k, d, func(i int, scores, keys []float64) {
		dots64(scores, w.scale, rows[i].q, keys)
	})
	for i := range rows {
		w.weights(i, b, h, first+i)
	}
	w.eachRun(rows, b, kv, &w.v, dv, func(i int, weights, values []float64) {
		from := rows[i].next - len(weights)
		dots64(w.grads[i].dS[from:rows[i].next], 1, w.grads[i].dO, values)
		if g.DV == nil {
			return
		}
		for c, p := range weights {
			key := w.key(rows[i].entries[from+c])
			addScaled(w.call.rowOfDV(b, kv, key), p*w.keep(b, h, first+i, key), w.grads[i].dO)
		}
	})
	for i := range rows {
		w.scoreGradients(i, b, h, first+i)
	}
	if g.DQ == nil && g.DK == nil {
		return
	}
	w.eachRun(rows, b, kv, &w.k, d, func(i int, weights, keys []float64) {
		from := rows[i].next - len(weights)
		for c, dX := range w.grads[i].dS[from:rows[i].next] {
			if g.DQ != nil {
				addScaled(w.call.rowOfDQ(b, h, first+i), w.scale*dX, keys[c*d:][:d])
			}
			if g.DK != nil {
				addScaled(w.call.rowOfDK(b, kv, w.key(rows[i].entries[from+c])), w.scale*dX, rows[i].q)
			}
		}
	})
}

// weights turns the products of row i of the block into P and reads the row's dO and dLSE.
// For a row with nothing to attend to it reads neither, and removes the row's entries.
func (w *backwardWorker) weights(i, b, h, row int) {
	r, g := &w.rows[i], &w.grads[i]
	g.slope = g.slope[:0]
	if w.slope != nil {
		g.slope = slices.Grow(g.slope, len(r.scores))[:len(r.scores)]
		w.slope.Eval(g.slope, w.slots(r, b, h, row))
	}
	g.lse = w.softmax(r, b, h, row, nil)
	if math.IsInf(g.lse, -1) {
		r.entries, r.scores = r.entries[:0], r.scores[:0]
		return
	}
	g.dS = slices.Grow(g.dS[:0], len(r.scores))[:len(r.scores)]
	batch, at := w.queryRow(b, row)
	narrow := w.narrow[:w.cfg.ValueDim()]
	w.call.dO.ReadRow(narrow, batch, h, at)
	widen(g.dO, narrow, 1)
	g.dLSE = 0
	if w.call.args.DLSE.Given() {
		w.call.dLSE.ReadRow(narrow, batch, h, at)
		g.dLSE = float64(narrow[0])
	}
}

// scoreGradients turns dP of row i of the block into the gradient of its products, and adds
// its share to dBias and dSinks.
func (w *backwardWorker) scoreGradients(i, b, h, row int) {
	r, g := &w.rows[i], &w.grads[i]
	if math.IsInf(g.lse, -1) {
		return // nothing to attend to
	}
	if w.dropout.Threshold != 0 {
		for c := range r.scores {
			if keep := w.keep(b, h, row, w.key(r.entries[c])); keep == 0 {
				g.dS[c] = 0 // dP may be NaN where the slot is dropped
			} else {
				g.dS[c] *= keep
			}
		}
	}
	var delta float64
	for c, p := range r.scores {
		if p != 0 { // dP may be NaN where the weight is 0
			delta += p * g.dS[c]
		}
	}
	for c, p := range r.scores {
		if p != 0 {
			g.dS[c] = p * (g.dS[c] - delta + g.dLSE)
		} else {
			g.dS[c] = 0
		}
	}
	if w.call.g.DBias != nil {
		dBias := w.call.rowOfDBias(b, h, row)
		for c, dS := range g.dS {
			dBias[w.key(r.entries[c])] += dS
		}
	}
	if w.call.sinks != nil {
		if p := math.Exp(w.logit(h) - g.lse); p != 0 {
			w.call.sinks[b*w.a.Hq+h] -= p * (delta - g.dLSE)
		}
	}
	for c, slope := range g.slope {
		g.dS[c] *= slope
	}
}

// addStored adds what the outputs hold to the gradients of a sequence and key head.
func (w *backwardWorker) addStored(b, kv int) {
	c, group := w.call, w.a.Group()
	add := func(dst []float64, view *problem.HostView, batch, head, row int) {
		narrow := w.narrow[:len(dst)]
		view.ReadRow(narrow, batch, head, row)
		for i, x := range narrow {
			dst[i] += float64(x)
		}
	}
	if c.g.DQ != nil {
		for h := kv * group; h < (kv+1)*group; h++ {
			for row := range w.sequences[b].Rows {
				batch, at := w.queryRow(b, row)
				add(c.rowOfDQ(b, h, row), &c.dQ, batch, h, at)
			}
		}
	}
	for key := range w.sequences[b].Keys {
		batch, at := w.kvRow(b, key)
		if c.g.DK != nil {
			add(c.rowOfDK(b, kv, key), &c.dK, batch, kv, at)
		}
		if c.g.DV != nil {
			add(c.rowOfDV(b, kv, key), &c.dV, batch, kv, at)
		}
	}
}

// addScaled adds x times src to dst. A factor of 0 adds nothing, whatever src holds.
func addScaled(dst []float64, x float64, src []float64) {
	if x == 0 {
		return
	}
	for i, y := range src {
		dst[i] += x * y
	}
}
