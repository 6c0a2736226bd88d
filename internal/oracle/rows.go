package oracle

import (
	"math"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/dropout"
	"vkattn/internal/hostcall"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Rows of attention by the formula: scores, softmax, weighted sum of V.

const tileKeys = 64 // keys widened at once

// worker computes blocks of rows of one query head. It goes over the keys in tiles and widens
// each key of a tile once for all rows. It has its own scratch memory.
type worker[T number] struct {
	*hostcall.Call
	arithmetic[T]
	scale  T
	rows   []row[T]
	b, h   int
	list   []int     // keys of the sparse tokens of the head, or of its rows one after the other; nil: entry i is key i
	column []int     // of each key its place in a sample, -1 where it is not in it; nil: all keys
	narrow []float32 // a row as stored
	wide   []T       // [tileKeys][larger dim]: K or V of the tile's entries
	have   [tileKeys]bool
	sized  bool // the sizes of these rows are asked for
	sizes  [tileKeys]size

	score     *score.Evaluator
	slope     *score.Evaluator // of the derivative of the score; nil where it is 1, or nobody asks
	biasSlope *score.Evaluator // likewise with respect to the bias
	slots     hostcall.Slots
	places    []tablePlace // of tables with gradients

	keys    []int     // of a row
	results []float64 // of package score
}

// row is a query row of a block.
type row[T number] struct {
	number  int // in its sequence
	q       []T
	entries []int // the row attends to these entries of the head's keys, ascending
	scores  []T   // of the entries, then their weights
	slopes  []T   // of the entries: derivative of the score; empty where it is 1
	biases  []T   // likewise with respect to the bias
	places  []placeOfRow[T]
	most    float64 // largest finite magnitude of a scaled product
	lse     T
	next    int   // first entry that no tile has reached
	rounded draws // of the weights, where low stores them in 16 bits

	rowGradients[T]
}

func newWorker[T number](call *hostcall.Call, how arithmetic[T], rows int) *worker[T] {
	cfg := call.Cfg
	most := max(cfg.HeadDim, cfg.ValueDim())
	w := &worker[T]{
		Call: call, arithmetic: how, scale: T(cfg.ScaleValue()), rows: make([]row[T], rows),
		narrow: make([]float32, most), wide: make([]T, tileKeys*most),
	}
	var round func(float64) float64
	if how.low {
		round = score.Float32
	}
	w.score = score.NewEvaluator(scoreOf(call), round)
	for i := range w.rows {
		w.rows[i].q = make([]T, cfg.HeadDim)
	}
	return w
}

// forward computes rows of one head into o and lse.
func (w *worker[T]) forward(at problem.Rows, o, lse []T) {
	dv := w.Cfg.ValueDim()
	rows := w.begin(at.B, at.H, at.Rows)
	clear(o[:len(rows)*dv])
	for i := range rows {
		r := &rows[i]
		w.weights(r)
		lse[i] = r.lse
		if math.IsNaN(float64(r.lse)) {
			for j := range dv {
				o[i*dv+j] = r.lse
			}
			r.drop()
		}
		if w.Dropout.Threshold != 0 {
			for c, p := range r.scores {
				r.scores[c] = w.round(p * w.keep(r.number, w.key(r.entries[c])))
			}
		}
	}
	for i := range rows {
		rows[i].o, rows[i].rounded = o[i*dv:][:dv], draws{}
	}
	w.sized = w.low && w.Cfg.DType != problem.F32
	w.eachRun(rows, &w.V, func(r *row[T], weights, values []T) {
		weigh(r.o, weights, values)
		if w.sized {
			w.addWeights(r, weights)
		}
	})
	w.sized = false
	for i, x := range o[:len(rows)*dv] {
		o[i] = w.round(x)
	}
}

// addWeights adds the roundings of a run of a row's weights, which ends at r.next. The rounding of 1 is no draw, as in addValue.
func (w *worker[T]) addWeights(r *row[T], weights []T) {
	one := float32(1)
	if w.Dropout.Threshold != 0 {
		one = float32(w.round(T(dropout.Scale(w.Cfg.Dropout))))
	}
	for i, entry := range r.entries[r.next-len(weights) : r.next] {
		if x := float32(weights[i]); x != one {
			r.rounded.round(w.Cfg.DType, x, 1, w.sizes[entry%tileKeys])
		}
	}
}

// begin reads rows of Q and computes their scores.
func (w *worker[T]) begin(b, h int, numbers []int) []row[T] {
	w.b, w.h = b, h
	w.list = w.list[:0]
	rows := w.rows[:len(numbers)]
	for i, number := range numbers {
		w.read(&rows[i], number)
	}
	w.eachRun(rows, &w.K, func(r *row[T], scores, keys []T) { dots(scores, w.scale, r.q, keys) })
	for i := range rows {
		w.modify(&rows[i])
	}
	return rows
}

// readList reads the keys that the list of a row names, unless the rows of the head share one. It returns the first entry.
func (w *worker[T]) readList(row int) (first int) {
	if !w.Args.SparseTokens.PerRow && len(w.list) > 0 {
		return 0
	}
	first = len(w.list)
	for at, end := w.SparseList(w.b, w.h/w.Args.Group(), row); at < end; at++ {
		w.list = append(w.list, tensors.IntAt(&w.Args.SparseTokens.Tokens, at))
	}
	return first
}

// read reads a row of Q and finds its keys. A row past the end of its sequence has none.
func (w *worker[T]) read(r *row[T], number int) {
	r.number, r.entries, r.most = number, r.entries[:0], 0
	defer func() { r.scores = slices.Grow(r.scores[:0], len(r.entries))[:len(r.entries)] }()
	if number >= w.Sequences[w.b].Rows {
		return
	}
	batch, at := w.QueryRow(w.b, number)
	narrow := w.narrow[:w.Cfg.HeadDim]
	w.Q.ReadRow(narrow, batch, w.h, at)
	widen(r.q, narrow)
	if w.Args.SparseTokens == nil {
		r.entries = w.Visible(r.entries, w.b, w.h, number)
	} else {
		lo, hi := w.Span(w.b, number)
		first := w.readList(number)
		for i, key := range w.list[first:] {
			if key >= lo && key < hi {
				r.entries = append(r.entries, first+i)
			}
		}
		r.entries = w.Unmasked(r.entries, w.key, w.b, w.h, number)
	}
	if w.column != nil {
		r.entries = slices.DeleteFunc(r.entries, func(entry int) bool { return w.column[w.key(entry)] < 0 })
	}
}

// key returns the key of an entry.
func (w *worker[T]) key(entry int) int {
	if w.Args.SparseTokens != nil {
		return w.list[entry]
	}
	return entry
}

// eachRun goes over the keys of the rows in tiles. It visits each row's runs of
// consecutive entries, which end at r.next, with their scores and the widened rows of K or V.
func (w *worker[T]) eachRun(rows []row[T], view *tensors.KVView, visit func(r *row[T], scores, wide []T)) {
	end, dim := 0, view.Rows.Dim()
	for i := range rows {
		rows[i].next = 0
		if n := len(rows[i].entries); n > 0 {
			end = max(end, rows[i].entries[n-1]+1)
		}
	}
	for tile := 0; tile < end; tile += tileKeys {
		w.have = [tileKeys]bool{}
		for i := range rows {
			r := &rows[i]
			for r.next < len(r.entries) && r.entries[r.next] < tile+tileKeys {
				from, first := r.next, r.entries[r.next]-tile
				for r.next < len(r.entries) && r.entries[r.next]-tile == first+r.next-from && r.entries[r.next] < tile+tileKeys {
					w.load(tile, first+r.next-from, view)
					r.next++
				}
				visit(r, r.scores[from:r.next], w.wide[first*dim:][:(r.next-from)*dim])
			}
		}
	}
}

// load widens entry n of a tile, once. A quantized element is a stored number times a scale.
func (w *worker[T]) load(tile, n int, view *tensors.KVView) {
	if w.have[n] {
		return
	}
	w.have[n] = true
	batch, at := w.KVRow(w.b, w.key(tile+n))
	narrow := w.narrow[:view.Rows.Dim()]
	scale := T(view.Read(narrow, batch, w.h/w.Args.Group(), at))
	dst := w.wide[n*len(narrow):]
	for i, x := range narrow {
		dst[i] = T(x)
		if w.Cfg.KeyType != problem.KVSame {
			dst[i] = w.round(scale * T(x))
		}
	}
	if w.sized {
		w.sizes[n] = sizeOf(dst[:len(narrow)])
	}
}

// widen sets dst to src.
func widen[T number](dst []T, src []float32) {
	for i, x := range src {
		dst[i] = T(x)
	}
}

// modify turns scaled products of a row into scores, and computes their derivatives.
func (w *worker[T]) modify(r *row[T]) {
	w.keys = w.keys[:0]
	for _, entry := range r.entries {
		w.keys = append(w.keys, w.key(entry))
	}
	s := w.slots.Of(w.Call, w.b, w.h, r.number, w.keys)
	w.results = slices.Grow(w.results[:0], len(w.keys))[:len(w.keys)]
	if w.Args.Bias != nil {
		s.Bias = slices.Grow(s.Bias[:0], len(w.keys))[:len(w.keys)]
		w.ReadBias(s.Bias, w.b, w.h, r.number, w.keys)
	}
	for i, x := range r.scores {
		size := math.Abs(float64(x))
		if !math.IsInf(size, 0) {
			r.most = max(r.most, size)
		}
		s.S[i] = float64(x)
	}
	r.slopes, r.biases = w.derivatives(r.slopes[:0], w.slope, s), w.derivatives(r.biases[:0], w.biasSlope, s)
	w.readPlaces(r, s)
	w.score.Eval(w.results, s)
	for i, x := range w.results {
		r.scores[i] = w.store(T(x))
	}
}

// derivatives appends derivatives of the scores of a row, if they are asked for.
func (w *worker[T]) derivatives(dst []T, e *score.Evaluator, s *score.Slots) []T {
	if e != nil {
		e.Eval(w.results, s)
		for _, x := range w.results {
			dst = append(dst, T(x))
		}
	}
	return dst
}

// weights turns the scores of a row into P and sets its LSE. A row with nothing to attend to
// loses its entries.
func (w *worker[T]) weights(r *row[T]) {
	r.lse = T(math.Inf(-1))
	if r.number >= w.Sequences[w.b].Rows {
		return
	}
	most := math.Inf(-1)
	for _, x := range r.scores {
		most = max(most, float64(x))
	}
	r.lse = w.softmax(r.scores, w.logit())
	if math.IsInf(most, -1) {
		r.drop()
	}
	for i, p := range r.scores {
		r.scores[i] = w.round(p)
	}
}

// drop removes the entries of a row.
func (r *row[T]) drop() {
	r.entries, r.scores, r.slopes, r.biases = r.entries[:0], r.scores[:0], r.slopes[:0], r.biases[:0]
}

// keep returns the factor that dropout gives the weight of a slot: 0, or 1 / (1 - Dropout).
func (w *worker[T]) keep(row, key int) T {
	switch {
	case w.Dropout.Threshold == 0:
		return 1
	case w.Dropout.Keeps(w.DropoutHead(w.b, w.h), uint32(row), uint32(key)):
		return T(dropout.Scale(w.Cfg.Dropout))
	}
	return 0
}

// logit is the head's sink, -Inf without sinks.
func (w *worker[T]) logit() T {
	if x, ok := w.Sink(w.h); ok {
		return T(x)
	}
	return T(math.Inf(-1))
}

// scoreOf is the expression of a call's scores: softcap, bias and ALiBi, and the score modifier.
func scoreOf(c *hostcall.Call) score.Expr {
	s := optionsOf(c)
	if c.Cfg.ScoreMod.Given() {
		s = c.Cfg.ScoreMod.Of(s)
	}
	return s
}

// optionsOf is the expression of scores in front of the score modifier: softcap, bias and ALiBi, in this order.
func optionsOf(c *hostcall.Call) score.Expr {
	s := score.S
	if c.Cfg.Softcap != 0 {
		s = score.Softcap(s, float64(c.Cfg.Softcap))
	}
	if c.Args.Bias != nil {
		s = score.Add(s, score.Bias)
	}
	if c.Args.ALiBi.Given() {
		s = score.ALiBi(s, score.Slope)
	}
	return s
}
