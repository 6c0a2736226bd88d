package accuracy

import (
	"math"

	"vkattn/attention"
	"vkattn/attention/internal/par"
)

// Noise is the error that plain float32 attention has to expect in each element
// of O and of LSE because large scores cannot be held any better: nil for the 16-bit types,
// whose Low rounds scores so coarsely that it shows there.
//
// A float32 score of 1e4 is off by some units of 1e-3 in any order of summation,
// and where two such keys compete, their weights by as many parts in a thousand.
// Low is one draw of that error and may be lucky by a factor of ten in the few
// rows that matter, which no correct kernel can follow. A dot product of d terms
// is off by about u sqrt(d)/2 of its size (the probabilistic bound of Higham and
// Mary, 2019, at its typical value), with u = 2^-24; to first order a score's
// error e moves O by sum p e |V - O|, and LSE by e. Use them as Limits.Noise.
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
	if hasOptions(&cfg, &a) {
		return noiseOptions(cfg, a, sample)
	}
	l := low{cfg: cfg, a: a, round: rounding(cfg.DType)}
	if err := l.open(); err != nil {
		return nil, nil, err
	}
	dv := cfg.ValueDim()
	rows := attention.CountRows(sample)
	o, lse = make([]float64, rows*dv), make([]float64, rows)
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, 1) // a row each
	par.Each(int64(len(pieces)), func() func(int64) {
		w := l.worker(1)
		low, lowLSE := make([]float32, dv), make([]float32, 1)
		return func(i int64) {
			p := pieces[i]
			one := sample[p.List]
			one.Rows = one.Rows[p.Lo:p.Hi]
			if e := w.scoreError(one); e > leastNoise {
				w.run(one, low, lowLSE)
				w.spread(one, low, e, o[p.At*dv:][:dv])
				lse[p.At] = e
			}
		}
	})
	return o, lse, nil
}

// leastNoise is the error of a score below which none is counted.
const leastNoise = 1e-7

// scoreError is the error to expect of the row's largest score.
func (w *lowWorker) scoreError(at attention.Rows) float64 {
	d := w.cfg.HeadDim
	n := w.cfg.Causal.Visible(at.Rows[0], w.a.Sq, w.a.Sk)
	w.low.q.ReadRow(w.q[:d], at.B, at.H, at.Rows[0])
	var most float64
	for key := 0; key < n; key += lowKeys {
		count := min(lowKeys, n-key)
		w.k.ReadRows(w.keys, at.B, at.H/w.a.Group(), key, count)
		w.score(w.scores[:count], w.q[:d])
		for _, s := range w.scores[:count] {
			if x := math.Abs(float64(s)); x > most && !math.IsInf(x, 0) {
				most = x
			}
		}
	}
	return math.Ldexp(most, -24) * math.Sqrt(float64(d)) / 2
}

// spread sets noise to e times the mean absolute deviation of V from o, by the
// weights that run left in w.scores.
func (w *lowWorker) spread(at attention.Rows, o []float32, e float64, noise []float64) {
	n := w.cfg.Causal.Visible(at.Rows[0], w.a.Sq, w.a.Sk)
	dv := len(o)
	for key := 0; key < n; key += lowKeys {
		count := min(lowKeys, n-key)
		w.v.ReadRows(w.keys, at.B, at.H/w.a.Group(), key, count)
		for c := range count {
			p := float64(w.scores[key+c]) * e
			if p == 0 {
				continue
			}
			for j := range noise {
				if x := math.Abs(float64(w.keys[c*dv+j]) - float64(o[j])); x < math.MaxFloat32 {
					noise[j] += p * x
				}
			}
		}
	}
}
