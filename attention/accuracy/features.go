package accuracy

import (
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/attention/internal/par"
)

// lowRow computes single rows of calls with features, as Low does those of others.
type lowRow struct {
	lowWorker
	rows    *attention.RowReader
	list    []int
	addends []float32
	q, row  []float32
	// The largest magnitude of a score, before a softcap and with what is added.
	largest float64
}

// newLowRow shares rows among workers.
func newLowRow(cfg attention.Config, a attention.Args, rows *attention.RowReader) *lowRow {
	return &lowRow{
		lowWorker: lowWorker{low: &low{cfg: cfg, a: a, round: rounding(cfg.DType)}, scale: cfg.ScaleValue()},
		rows:      rows, q: make([]float32, cfg.HeadDim), row: make([]float32, max(cfg.HeadDim, cfg.ValueDim())),
	}
}

// eachFeatured calls visit for every row of a sample, from many goroutines: i is the
// row's place in the sample.
func eachFeatured(cfg attention.Config, a attention.Args, sample []attention.Rows, visit func(w *lowRow, b, h, row, i int)) error {
	reader, err := attention.NewRowReader(cfg, a)
	if err != nil {
		return err
	}
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, 1)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newLowRow(cfg, a, reader)
		return func(n int64) {
			p := pieces[n]
			s := sample[p.List]
			visit(w, s.B, s.H, s.Rows[p.Lo], p.At)
		}
	})
	return nil
}

// compute is Low of one row: quantised K and V are rounded to the storage type, the
// score is rounded again after the softcap and after what is added to it.
func (w *lowRow) compute(b, h, row int, o []float32) (lse float32) {
	clear(o)
	w.list, w.largest = w.list[:0], 0
	sink := w.rows.Sink(h)
	if row < w.rows.Sequence(b).Rows {
		w.list = w.rows.AppendKeys(w.list, b, h, row)
		w.rows.ReadQ(w.q, b, h, row)
	} else {
		sink = float32(math.Inf(-1))
	}
	n := len(w.list)
	w.scores = slices.Grow(w.scores[:0], n)[:n]
	w.addends = slices.Grow(w.addends[:0], n)[:n]
	w.rows.ReadAddends(w.addends, b, h, row, w.list)
	for i, key := range w.list {
		w.rows.ReadK(w.row, b, h, key)
		var s float32
		for d, x := range w.q {
			s += x * w.round(w.row[d])
		}
		s = w.store(s)
		w.note(s)
		if c := w.cfg.Softcap; c != 0 {
			s = w.round(c * float32(math.Tanh(float64(s/c))))
		}
		if x := w.addends[i]; x != 0 {
			s = w.clamp(s + x)
			w.note(s)
		}
		w.scores[i] = s
	}
	lse = w.softmaxSink(w.scores, sink)
	if math.IsInf(float64(lse), -1) {
		return lse
	}
	for i, key := range w.list {
		w.rows.ReadV(w.row, b, h, key)
		for d := range o {
			o[d] += w.scores[i] * w.round(w.row[d])
		}
	}
	for d := range o {
		o[d] = w.round(o[d])
	}
	return lse
}

func (w *lowRow) note(s float32) {
	if x := math.Abs(float64(s)); x > w.largest && !math.IsInf(x, 0) {
		w.largest = x
	}
}

// softmaxSink is softmax with a logit beside the scores.
func (w *lowRow) softmaxSink(s []float32, sink float32) (lse float32) {
	all := append(s, sink)
	lse = w.softmax(all)
	w.scores = all[:len(s)]
	return lse
}

// noise is Noise of one row.
func (w *lowRow) noise(b, h, row int, o []float64) (lse float64) {
	low := make([]float32, len(o))
	if math.IsInf(float64(w.compute(b, h, row, low)), -1) {
		return 0 // exact: there are no weights
	}
	e := math.Ldexp(w.largest, -24) * math.Sqrt(float64(w.cfg.HeadDim)) / 2
	if e <= 1e-7 {
		return 0
	}
	for i, key := range w.list {
		w.rows.ReadV(w.row, b, h, key)
		w.spreadRow(w.row[:len(o)], low, float64(w.scores[i])*e, o)
	}
	return e
}
