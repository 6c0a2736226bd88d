package attention

import (
	"math"
	"slices"

	"vkattn/attention/internal/par"
)

// refOptions computes rows of a call with features, one at a time, by the plain
// formula: every score of the row, its softmax with the sink, the weighted sum.
type refOptions struct {
	*hostCall
	scale    float64
	keys     []int
	bias     []float32
	narrow   []float32 // a row as stored
	q        []float64 // [HeadDim]
	k, value *keyRows[float64]
	scores   []float64
}

// referenceOptions is ReferenceSample of checked arguments with features.
func referenceOptions(cfg Config, a Args, sample []Rows, o, lse []float64) error {
	var call hostCall
	if err := call.open(&cfg, &a); err != nil {
		return err
	}
	dv := cfg.ValueDim()
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	reuse := a.Sq > 1 || a.Group() > 1
	pieces := par.Pieces(lengths, refBlockRows(CountRows(sample), a.Sk))
	par.Each(int64(len(pieces)), func() func(int64) {
		most := max(cfg.HeadDim, dv)
		w := refOptions{
			hostCall: &call, scale: float64(cfg.ScaleValue()),
			narrow: make([]float32, most), q: make([]float64, cfg.HeadDim),
		}
		w.k = newKeyRows(a.Sk, cfg.HeadDim, reuse, w.reader(&call.k))
		w.value = newKeyRows(a.Sk, dv, reuse, w.reader(&call.v))
		return func(i int64) {
			p := pieces[i]
			for n, row := range sample[p.List].Rows[p.Lo:p.Hi] {
				lse[p.At+n] = w.compute(sample[p.List].B, sample[p.List].H, row, o[(p.At+n)*dv:][:dv])
			}
		}
	})
	return nil
}

// compute computes one row into o, which is 0, and returns its LSE.
func (w *refOptions) compute(b, h, row int, o []float64) (lse float64) {
	if row >= w.sequences[b].Rows {
		return math.Inf(-1) // there is no such row
	}
	kv := h / w.a.Group()
	batch, at := w.queryRow(b, row)
	narrow := w.narrow[:w.cfg.HeadDim]
	w.hostCall.q.ReadRow(narrow, batch, h, at)
	widen(w.q, narrow, 1)
	w.keys = w.visible(w.keys[:0], b, h, row)
	w.scores = slices.Grow(w.scores[:0], len(w.keys))[:len(w.keys)]
	for i := 0; i < len(w.keys); {
		n := runOf(w.keys[i:])
		dots64(w.scores[i:i+n], w.scale, w.q, w.k.run(b, kv, w.keys[i], n))
		i += n
	}
	w.modify(b, h, row)
	most := math.Inf(-1)
	for _, x := range w.scores {
		most = max(most, x)
	}
	lse = softmax64(w.scores, w.logit(h))
	switch {
	case math.IsNaN(lse):
		for i := range o {
			o[i] = lse
		}
	case !math.IsInf(most, -1): // something to attend to
		for i := 0; i < len(w.keys); {
			n := runOf(w.keys[i:])
			weigh64(o, w.scores[i:i+n], w.value.run(b, kv, w.keys[i], n))
			i += n
		}
	}
	return lse
}

// modify applies softcap, bias and ALiBi to the scores, in this order.
func (w *refOptions) modify(b, h, row int) {
	if limit := float64(w.cfg.Softcap); limit != 0 {
		for i, x := range w.scores {
			w.scores[i] = limit * math.Tanh(x/limit)
		}
	}
	if w.a.Bias != nil {
		w.bias = slices.Grow(w.bias[:0], len(w.keys))[:len(w.keys)]
		w.readBias(w.bias, b, h, row, w.keys)
		for i, x := range w.bias {
			w.scores[i] += float64(x)
		}
	}
	if w.a.ALiBi.Given() {
		slope, at := float64(w.slope(h)), w.position(b, row)
		for i, key := range w.keys {
			w.scores[i] -= slope * math.Abs(float64(at-int64(key)))
		}
	}
}

// logit is the head's sink, -Inf for none.
func (w *refOptions) logit(h int) float64 {
	if x, ok := w.sink(h); ok {
		return float64(x)
	}
	return math.Inf(-1)
}

// reader widens the elements of a key's row.
func (w *refOptions) reader(v *kvView) func(dst []float64, b, kv, key int) {
	return func(dst []float64, b, kv, key int) {
		batch, at := w.kvRow(b, key)
		narrow := w.narrow[:v.rows.dim]
		scale := v.read(narrow, batch, kv, at)
		widen(dst, narrow, float64(scale))
	}
}

// widen sets dst to scale times src, which is exact for what is quantised.
func widen(dst []float64, src []float32, scale float64) {
	for i, x := range src {
		dst[i] = scale * float64(x)
	}
}
