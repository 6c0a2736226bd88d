package host

import (
	"math"
	"slices"

	"vkattn/internal/dropout"
	"vkattn/internal/problem"
	"vkattn/internal/score"
	"vkattn/internal/tensors"
)

// The rows of the float64 reference: scores, softmax and weighted sum of V by the formula.

const refKeys = 64 // keys widened at once

// refWorker computes chunks of rows of one head by the formula: every score of a row, its
// softmax with the sink, the weighted sum of V. It goes over the keys in tiles and widens
// each key of a tile once for all rows. It has its own scratch memory and shares no
// arithmetic with the CPU tier, so that one mistake cannot hide in both.
type refWorker struct {
	*hostCall
	scale  float64
	rows   []refRow
	list   []int     // keys of the sparse tokens of the head; nil: entry i is key i
	narrow []float32 // a row as stored
	wide   []float64 // [refKeys][larger dim]: K or V of the tile's entries
	have   [refKeys]bool
	keys   []int // of a row, where entries are not keys

	score      *score.Evaluator
	slotsOfRow refSlots
}

// refRow is a query row of a chunk.
type refRow struct {
	q       []float64 // [HeadDim]
	entries []int     // the row attends to these entries of the head's keys, ascending
	scores  []float64 // of the entries, then their weights
	next    int       // first entry that no tile has reached
	skip    bool      // there is no weighted sum
}

func newRefWorker(call *hostCall, rows int) *refWorker {
	most := max(call.cfg.HeadDim, call.cfg.ValueDim())
	w := &refWorker{
		hostCall: call, scale: float64(call.cfg.ScaleValue()), rows: make([]refRow, rows),
		narrow: make([]float32, most), wide: make([]float64, refKeys*most), score: score.NewEvaluator(scoreOf(call.cfg, call.a), nil),
	}
	for i := range w.rows {
		w.rows[i].q = make([]float64, call.cfg.HeadDim)
	}
	return w
}

// run computes rows of one head into o and lse.
func (w *refWorker) run(at problem.Rows, o, lse []float64) {
	d, dv, kv := w.cfg.HeadDim, w.cfg.ValueDim(), at.H/w.a.Group()
	w.list = w.sparseKeys(w.list[:0], at.B, kv)
	rows := w.rows[:len(at.Rows)]
	for i, row := range at.Rows {
		w.begin(&rows[i], at.B, at.H, row)
	}
	w.eachRun(rows, at.B, kv, &w.k, d, func(i int, scores, keys []float64) {
		dots64(scores, w.scale, rows[i].q, keys)
	})
	clear(o[:len(rows)*dv])
	for i, row := range at.Rows {
		lse[i] = w.softmax(&rows[i], at.B, at.H, row, o[i*dv:][:dv])
		if w.dropout.Threshold != 0 {
			for c := range rows[i].scores {
				rows[i].scores[c] *= w.keep(at.B, at.H, row, w.key(rows[i].entries[c]))
			}
		}
	}
	w.eachRun(rows, at.B, kv, &w.v, dv, func(i int, weights, values []float64) {
		if !rows[i].skip {
			weigh64(o[i*dv:][:dv], weights, values)
		}
	})
}

// begin reads a row of Q and finds its keys. A row past the end of its sequence has none.
func (w *refWorker) begin(r *refRow, b, h, row int) {
	r.entries, r.scores = r.entries[:0], r.scores[:0]
	if row >= w.sequences[b].Rows {
		return
	}
	batch, at := w.queryRow(b, row)
	narrow := w.narrow[:w.cfg.HeadDim]
	w.q.ReadRow(narrow, batch, h, at)
	widen(r.q, narrow, 1)
	if w.a.SparseTokens == nil {
		r.entries = w.visible(r.entries, b, h, row)
	} else {
		lo, hi := w.span(b, row)
		for i, key := range w.list {
			if key >= lo && key < hi {
				r.entries = append(r.entries, i)
			}
		}
	}
	r.scores = slices.Grow(r.scores, len(r.entries))[:len(r.entries)]
}

// sparseKeys appends the keys that the list of a sequence and key head names.
func (w *refWorker) sparseKeys(keys []int, b, kv int) []int {
	if w.a.SparseTokens != nil {
		for at, end := w.hostCall.list(b, kv); at < end; at++ {
			keys = append(keys, tensors.IntAt(&w.a.SparseTokens.Tokens, at))
		}
	}
	return keys
}

// key returns the key of an entry.
func (w *refWorker) key(entry int) int {
	if w.a.SparseTokens != nil {
		return w.list[entry]
	}
	return entry
}

// eachRun goes over the keys of the rows in tiles. It visits each row's runs of
// consecutive entries with their scores and the widened rows of K or V.
func (w *refWorker) eachRun(rows []refRow, b, kv int, view *tensors.KVView, dim int, visit func(i int, scores, wide []float64)) {
	end := 0
	for i := range rows {
		rows[i].next = 0
		if n := len(rows[i].entries); n > 0 {
			end = max(end, rows[i].entries[n-1]+1)
		}
	}
	for tile := 0; tile < end; tile += refKeys {
		w.have = [refKeys]bool{}
		for i := range rows {
			r := &rows[i]
			for r.next < len(r.entries) && r.entries[r.next] < tile+refKeys {
				from, first := r.next, r.entries[r.next]-tile
				for r.next < len(r.entries) && r.entries[r.next]-tile == first+r.next-from && r.entries[r.next] < tile+refKeys {
					w.load(tile, first+r.next-from, b, kv, view, dim)
					r.next++
				}
				visit(i, r.scores[from:r.next], w.wide[first*dim:][:(r.next-from)*dim])
			}
		}
	}
}

// load widens entry n of a tile, once.
func (w *refWorker) load(tile, n, b, kv int, view *tensors.KVView, dim int) {
	if w.have[n] {
		return
	}
	w.have[n] = true
	batch, at := w.kvRow(b, w.key(tile+n))
	scale := view.Read(w.narrow[:dim], batch, kv, at)
	widen(w.wide[n*dim:][:dim], w.narrow[:dim], float64(scale))
}

// softmax turns a row's scores into weights and returns its LSE. It sets o to NaN, and
// skips the weighted sum, if a score is NaN or +Inf.
func (w *refWorker) softmax(r *refRow, b, h, row int, o []float64) (lse float64) {
	r.skip = true
	if row >= w.sequences[b].Rows {
		return math.Inf(-1) // the row does not exist
	}
	w.score.Eval(r.scores, w.slots(r, b, h, row))
	most := math.Inf(-1)
	for _, x := range r.scores {
		most = max(most, x)
	}
	lse = softmax64(r.scores, w.logit(h))
	if math.IsNaN(lse) {
		for i := range o {
			o[i] = lse
		}
		return lse
	}
	r.skip = math.IsInf(most, -1) // nothing to attend to
	return lse
}

// keep returns the factor that dropout gives the weight of a slot: 0, or 1 / (1 - Dropout).
func (w *refWorker) keep(b, h, row, key int) float64 {
	switch {
	case w.dropout.Threshold == 0:
		return 1
	case w.dropout.Keeps(w.dropoutHead(b, h), uint32(row), uint32(key)):
		return dropout.Scale(w.cfg.Dropout)
	}
	return 0
}

// logit is the head's sink, -Inf without sinks.
func (w *refWorker) logit(h int) float64 {
	if x, ok := w.sink(h); ok {
		return float64(x)
	}
	return math.Inf(-1)
}

// widen sets dst to scale times src. That is exact for quantized elements.
func widen(dst []float64, src []float32, scale float64) {
	for i, x := range src {
		dst[i] = scale * float64(x)
	}
}

// dots64 sets s[i] to scale times the product of q with row i of k. Four keys
// go together, which keeps the adders busy; each sum runs in order of d.
func dots64(s []float64, scale float64, q, k []float64) {
	d, last := len(q), len(s)-1
	for c := 0; c <= last; c += 4 {
		c1, c2, c3 := min(c+1, last), min(c+2, last), min(c+3, last)
		k0, k1, k2, k3 := k[c*d:][:d], k[c1*d:][:d], k[c2*d:][:d], k[c3*d:][:d]
		var s0, s1, s2, s3 float64
		for i, x := range q {
			s0 += x * k0[i]
			s1 += x * k1[i]
			s2 += x * k2[i]
			s3 += x * k3[i]
		}
		s[c], s[c1], s[c2], s[c3] = scale*s0, scale*s1, scale*s2, scale*s3
	}
}

// softmax64 turns scores into weights and returns their logsumexp, including a sink (-Inf:
// none). It returns -Inf if there is nothing to attend to, NaN if a score is NaN or +Inf.
func softmax64(s []float64, sink float64) (lse float64) {
	most := sink
	for _, x := range s {
		most = max(most, x) // NaN if any is
	}
	if math.IsInf(most, -1) {
		return most
	}
	var sum float64
	for i, x := range s {
		p := math.Exp(x - most)
		if p < smallestWeight {
			p = 0
		}
		s[i] = p
		sum += p
	}
	sum += math.Exp(sink - most)
	for i := range s {
		s[i] /= sum
	}
	return most + math.Log(sum)
}

// smallestWeight is the least normal float32. Smaller weights vanish in float32
// arithmetic, which shows only if they meet an Inf in V.
const smallestWeight = 0x1p-126

// weigh64 adds the rows of v, weighted, to o, in order.
func weigh64(o, weights, v []float64) {
	dv := len(o)
	for len(weights) >= 4 {
		w0, w1, w2, w3 := weights[0], weights[1], weights[2], weights[3]
		v0, v1, v2, v3 := v[:dv], v[dv:][:dv], v[2*dv:][:dv], v[3*dv:][:dv]
		for i, x := range o {
			o[i] = x + w0*v0[i] + w1*v1[i] + w2*v2[i] + w3*v3[i]
		}
		weights, v = weights[4:], v[4*dv:]
	}
	for c, w := range weights {
		row := v[c*dv:][:dv]
		for i, x := range o {
			o[i] = x + w*row[i]
		}
	}
}
