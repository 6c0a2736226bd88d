package accuracy

import (
	"math"
	"runtime"
	"slices"

	"vkattn/attention"
	"vkattn/attention/half"
	"vkattn/attention/internal/par"
)

// Low computes rows of a call by plain attention in the storage type, as a
// chain of separate operations would, each rounding what it stores:
//
//	S = round(scale * Q Kᵀ)     accumulated in float32
//	P = round(softmax(S))       computed in float32
//	O = round(P V)              accumulated in float32
//	LSE = log sum exp S         float32, never rounded to the storage type
//
// For f32 there is nothing to round: it is the naive float32 formula, summed in
// order. A finite score that overflows f16 becomes the largest finite value.
//
// Of the features of a call, a score is modified (softcap, bias, ALiBi, each in
// float32) before it is rounded, a sink is one more term of the softmax, quantised
// K and V are dequantised and rounded to the storage type beforehand, and slots
// that a row does not attend to are left out. A kept token listed twice is there
// twice. Rows that a sequence does not have must not be in the sample.
//
// It returns O packed [rows, HeadDimV] and LSE [rows], in the order of the
// sample; a.O and a.LSE may be zero. Tensors must lie in host memory.
func Low(cfg attention.Config, a attention.Args, sample []attention.Rows) (o, lse []float32, err error) {
	if err := attention.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	if err := room("Low", cfg, a, attention.CountRows(sample), 4); err != nil {
		return nil, nil, err
	}
	if hasOptions(&cfg, &a) {
		return lowOptions(cfg, a, sample)
	}
	l := low{cfg: cfg, a: a, round: rounding(cfg.DType)}
	if err := l.open(); err != nil {
		return nil, nil, err
	}
	n, dv := attention.CountRows(sample), cfg.ValueDim()
	o, lse = make([]float32, n*dv), make([]float32, n)
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	block := max(1, min(64, 8<<20/a.Sk, n/(4*runtime.GOMAXPROCS(0))))
	pieces := par.Pieces(lengths, block)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := l.worker(block)
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			s.Rows = s.Rows[p.Lo:p.Hi]
			w.run(s, o[p.At*dv:], lse[p.At:])
		}
	})
	return o, lse, nil
}

// rounding is rounding to a storage type and back.
func rounding(t attention.DType) func(float32) float32 {
	switch t {
	case attention.F16:
		return func(f float32) float32 { return half.F16ToFloat32(half.F16FromFloat32(f)) }
	case attention.BF16:
		return func(f float32) float32 { return half.BF16ToFloat32(half.BF16FromFloat32(f)) }
	}
	return func(f float32) float32 { return f }
}

const maxF16 = 65504

type low struct {
	cfg     attention.Config
	a       attention.Args
	round   func(float32) float32
	q, k, v attention.HostView
}

func (l *low) open() (err error) {
	cfg, a := l.cfg, l.a
	if l.q, err = attention.ViewHost(a.Q, cfg.DType, a.Hq, a.Sq, cfg.HeadDim); err != nil {
		return err
	}
	if l.k, err = attention.ViewHost(a.K, cfg.DType, a.KVHeads(), a.Sk, cfg.HeadDim); err != nil {
		return err
	}
	l.v, err = attention.ViewHost(a.V, cfg.DType, a.KVHeads(), a.Sk, cfg.ValueDim())
	return err
}

const lowKeys = 64 // keys widened at once

type lowWorker struct {
	*low
	scale  float32
	q      []float32 // [rows][HeadDim]
	keys   []float32 // [lowKeys][larger dim], K or V
	scores []float32 // [rows][Sk]
}

func (l *low) worker(rows int) *lowWorker {
	d := l.cfg.HeadDim
	return &lowWorker{
		low: l, scale: l.cfg.ScaleValue(),
		q:      make([]float32, rows*d),
		keys:   make([]float32, lowKeys*max(d, l.cfg.ValueDim())),
		scores: make([]float32, rows*l.a.Sk),
	}
}

func (w *lowWorker) run(at attention.Rows, o, lse []float32) {
	d, dv, sk := w.cfg.HeadDim, w.cfg.ValueDim(), w.a.Sk
	kv := at.H / w.a.Group()
	visible := make([]int, len(at.Rows))
	for i, row := range at.Rows {
		visible[i] = w.cfg.Causal.Visible(row, w.a.Sq, sk)
		w.low.q.ReadRow(w.q[i*d:], at.B, at.H, row)
	}
	most := slices.Max(visible)
	for key := 0; key < most; key += lowKeys {
		w.k.ReadRows(w.keys, at.B, kv, key, min(lowKeys, most-key))
		for i, n := range visible {
			if n = min(n-key, lowKeys); n > 0 {
				w.score(w.scores[i*sk+key:][:n], w.q[i*d:][:d])
			}
		}
	}
	for i, n := range visible {
		lse[i] = w.softmax(w.scores[i*sk:][:n])
	}
	clear(o[:len(visible)*dv])
	for key := 0; key < most; key += lowKeys {
		w.v.ReadRows(w.keys, at.B, kv, key, min(lowKeys, most-key))
		for i, n := range visible {
			if math.IsInf(float64(lse[i]), -1) {
				continue // nothing to attend to
			}
			for c := range max(min(n-key, lowKeys), 0) {
				p, out, v := w.scores[i*sk+key+c], o[i*dv:][:dv], w.keys[c*dv:][:dv]
				for j := range out {
					out[j] += p * v[j]
				}
			}
		}
	}
	for i := range o[:len(visible)*dv] {
		o[i] = w.round(o[i])
	}
}

// score sets s to the rounded scores of one query with the widened keys. Four
// keys go together, for speed; each sum runs in order.
func (w *lowWorker) score(s, q []float32) {
	d, last := len(q), len(s)-1
	for c := 0; c <= last; c += 4 {
		c1, c2, c3 := min(c+1, last), min(c+2, last), min(c+3, last)
		k0, k1, k2, k3 := w.keys[c*d:][:d], w.keys[c1*d:][:d], w.keys[c2*d:][:d], w.keys[c3*d:][:d]
		var s0, s1, s2, s3 float32
		for i, x := range q {
			s0 += x * k0[i]
			s1 += x * k1[i]
			s2 += x * k2[i]
			s3 += x * k3[i]
		}
		s[c], s[c1], s[c2], s[c3] = w.store(s0), w.store(s1), w.store(s2), w.store(s3)
	}
}

// store scales and rounds a score.
func (w *lowWorker) store(s float32) float32 {
	s *= w.scale
	if w.cfg.DType == attention.F16 && !math.IsInf(float64(s), 0) {
		s = max(min(s, maxF16), -maxF16) // both keep NaN
	}
	return w.round(s)
}

// softmax turns scores into rounded weights and returns their logsumexp.
func (w *lowWorker) softmax(s []float32) (lse float32) {
	most := float32(math.Inf(-1))
	for _, x := range s {
		most = max(most, x)
	}
	if math.IsInf(float64(most), -1) {
		return most
	}
	var sum float32
	for i, x := range s {
		s[i] = float32(math.Exp(float64(x - most)))
		sum += s[i]
	}
	for i := range s {
		s[i] = w.round(s[i] / sum)
	}
	return most + float32(math.Log(float64(sum)))
}
