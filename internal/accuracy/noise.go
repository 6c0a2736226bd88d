package accuracy

import (
	"math"
	"slices"

	"vkattn/attention"
)

// Noise is the error to expect of plain float32 attention in each element of O and of LSE
// because float32 cannot hold large scores better. It is nil for the 16-bit types, whose
// Low rounds scores so coarsely that the error shows there.
//
// A float32 score of 1e4 is off by some units of 1e-3 in any order of summation. If two
// such keys compete, their weights are off by as many parts in a thousand. Low is one draw
// of that error. It may be lucky by a factor of ten in the few rows that matter, and no
// correct kernel can follow. A dot product of d terms is off by about u sqrt(d)/2 of its
// size, with u = 2^-24 (the probabilistic bound of Higham and Mary, 2019, at its typical
// value). To first order a score's error e moves O by sum p e |V - O| and LSE by e. Use the
// results as Limits.Noise.
func Noise(cfg attention.Config, a attention.Args, sample []attention.Rows) (o, lse []float64, err error) {
	if cfg.DType != attention.F32 {
		return nil, nil, nil
	}
	if err := attention.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	if err := room("Noise", cfg, a, attention.CountRows(sample), 8); err != nil {
		return nil, nil, err
	}
	n, dv := attention.CountRows(sample), cfg.ValueDim()
	o, lse = make([]float64, n*dv), make([]float64, n)
	err = eachLow(cfg, a, sample, func(w *lowWorker, s attention.Rows, at int) {
		w.scores(s)
		if !slices.ContainsFunc(w.rows[:len(s.Rows)], func(r lowRow) bool { return w.scoreError(&r) > leastNoise }) {
			return
		}
		low, lowLSE := make([]float32, len(s.Rows)*dv), make([]float32, len(s.Rows))
		w.weigh(s, low, lowLSE)
		w.spread(s, low, o[at*dv:], lse[at:])
	})
	return o, lse, err
}

// leastNoise: smaller errors of a score do not count.
const leastNoise = 1e-7

// scoreError is the error to expect of the row's largest score.
func (w *lowWorker) scoreError(r *lowRow) float64 {
	return math.Ldexp(r.most, -24) * math.Sqrt(float64(w.cfg.HeadDim)) / 2
}

// spread sets the noise of LSE to the error e of a row's largest score, and the noise of O
// to e times the mean absolute deviation of V from low by the weights of the row. Rows
// with errors below leastNoise have none.
func (w *lowWorker) spread(s attention.Rows, low []float32, o, lse []float64) {
	dv := w.cfg.ValueDim()
	for i := range s.Rows {
		r := &w.rows[i]
		if e := w.scoreError(r); e > leastNoise {
			lse[i] = e
		} else {
			r.skip = true
		}
	}
	w.eachRun(w.rows[:len(s.Rows)], s.B, s.H/w.a.Group(), true, func(r *lowRow, i int, weights, values []float32) {
		e := w.scoreError(r)
		for c, x := range weights {
			p := float64(x) * e
			if p == 0 {
				continue
			}
			for j, v := range values[c*dv:][:dv] {
				if x := math.Abs(float64(v) - float64(low[i*dv+j])); x < math.MaxFloat32 {
					o[i*dv+j] += p * x
				}
			}
		}
	})
}
