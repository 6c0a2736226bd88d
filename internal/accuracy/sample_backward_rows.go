package accuracy

import (
	"math"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/par"
)

// dQ of the rows of a sample: float64 sums over the keys of each.

// rows judges dQ of the rows of a sample.
func (s *gradientSample) rows(sample []attention.Rows) error {
	d, dv := s.cfg.HeadDim, s.cfg.ValueDim()
	r := gradientRows{name: "dQ", dtype: s.cfg.GradientType(), width: d}
	read, err := s.reader(s.a.DQ, false, d)
	if err != nil {
		return err
	}
	k, v := make([]float32, s.a.Sk*d), make([]float32, s.a.Sk*dv)
	for _, head := range sample {
		kv := head.H / s.a.Group()
		for t := range s.keys[head.B] {
			s.readKey(k[t*d:][:d], false, head.B, kv, t)
			s.readKey(v[t*dv:][:dv], true, head.B, kv, t)
		}
		ref, low := make([]float64, len(head.Rows)*d), make([]float32, len(head.Rows)*d)
		var noise []float64
		var errors []RowError
		if s.cfg.DType != attention.F32 {
			noise, errors = make([]float64, len(ref)), make([]RowError, len(head.Rows))
		}
		par.Each(int64(len(head.Rows)), func() func(int64) {
			w := &rowWork{gradientSample: s, scorer: s.scorer(), q: make([]float32, d), dO: make([]float32, dv), o: make([]float32, dv), meanKey: make([]float64, d)}
			return func(i int64) {
				at := int(i) * d
				w.row(head.B, head.H, head.Rows[i], k, v, ref[at:][:d], low[at:][:d])
				if errors != nil {
					errors[i] = w.draws.row(s.cfg.GradientType(), low[at:][:d])
					copy(noise[at:], w.meanKey)
				}
			}
		})
		for i, row := range head.Rows {
			r.add(rowPosition{head.B, head.H, row}, read, ref[i*d:][:d], low[i*d:][:d], part(noise, i*d, d), part(errors, i, 1), !s.attends(head.B, head.H, row))
		}
	}
	s.verdict.Rows = len(r.at)
	s.judge(&r)
	return nil
}

// rowWork computes dQ of one row after the other.
type rowWork struct {
	*gradientSample
	scorer           *scorer
	q, dO            []float32
	entries          []int32
	p, dP, slopes    []float64
	low              lowRow
	lowDP, lowSlopes []float32

	o       []float32 // of low
	draws   draws
	meanKey []float64 // Σ P K, then the noise of dQ
}

func (w *rowWork) row(b, h, row int, k, v []float32, ref []float64, low []float32) {
	d, dv := w.cfg.HeadDim, w.cfg.ValueDim()
	batch, at := w.queryRow(b, row)
	w.q, w.dO = w.q[:d], w.dO[:dv]
	w.call.q.ReadRow(w.q, batch, h, at)
	w.gradientSample.dO.ReadRow(w.dO, batch, h, at)
	clear(w.o)
	clear(w.meanKey)
	w.draws = draws{}
	w.entries = w.visible(w.entries[:0], b, h, row)
	w.p, w.dP, w.slopes = w.p[:0], w.dP[:0], w.slopes[:0]
	w.low.scores, w.low.skip, w.lowDP, w.lowSlopes = w.low.scores[:0], false, w.lowDP[:0], w.lowSlopes[:0]
	scale := w.cfg.ScaleValue()
	for i, entry := range w.entries {
		if w.lists != nil {
			entry = w.lists[b*w.a.KVHeads()+h/w.a.Group()][entry]
			w.entries[i] = entry
		}
		t := int(entry)
		x, y := dot(w.q, k[t*d:][:d])
		at := w.scorer.one(float64(scale)*x, scale*y, b, h, row, t)
		w.p, w.slopes = append(w.p, at.score), append(w.slopes, at.slope)
		w.low.scores, w.lowSlopes = append(w.low.scores, at.lowScore), append(w.lowSlopes, at.lowSlope)
		x, y = dot(w.dO, v[t*dv:][:dv])
		y = w.round(y)
		if keep := w.keep(b, h, row, t); keep == 0 {
			x, y = 0, 0
		} else if keep != 1 {
			x, y = x*dropout.Scale(w.cfg.Dropout), w.round(y*keep)
		}
		w.dP, w.lowDP = append(w.dP, x), append(w.lowDP, y)
	}
	sink := w.sink(h)
	w.low.softmax(sink, w.round)
	if w.low.skip {
		return // nothing to attend to
	}
	softmax(w.p, float64(sink))
	dLSE := w.readDLSE(b, h, row)
	var delta float64
	for i, p := range w.p {
		t := int(w.entries[i])
		if p != 0 {
			delta += p * w.dP[i]
		}
		if q := w.low.scores[i]; q != 0 {
			addTimes(w.o, w.round(q*w.keep(b, h, row, t)), v[t*dv:][:dv])
		}
	}
	lowDelta, deltaError := w.delta(w.dO, w.o)
	for i, p := range w.p {
		key := k[int(w.entries[i])*d:][:d]
		if p != 0 {
			dS := float64(scale) * p * (w.dP[i] - delta + float64(dLSE)) * w.slopes[i]
			for c, x := range key {
				ref[c] += dS * float64(x)
			}
		}
		if q := w.low.scores[i]; q != 0 {
			dS := w.lowGradient(q, w.lowDP[i], lowDelta, dLSE, w.lowSlopes[i])
			addTimes(low, scale*dS, key)
			if deltaError != 0 {
				w.draws.round(w.cfg.DType, dS, scale, sizeOf(key))
				for c, x := range key {
					w.meanKey[c] += float64(q * w.lowSlopes[i] * x)
				}
			}
		}
	}
	w.draws.moveDelta(float64(scale)*deltaError, w.meanKey)
	for c, x := range low {
		low[c] = w.round(x)
	}
}

// softmax turns scores into weights, with a sink (-Inf: none) as one more term. Weights
// that vanish in float32 are 0.
func softmax(s []float64, sink float64) {
	most := sink
	for _, x := range s {
		most = max(most, x)
	}
	sum := math.Exp(sink - most)
	for i, x := range s {
		if s[i] = math.Exp(x - most); s[i] < leastWeight {
			s[i] = 0
		}
		sum += s[i]
	}
	for i := range s {
		s[i] /= sum
	}
}

// leastWeight is the least normal float32.
const leastWeight = 0x1p-126
