package attention

import (
	"math"
	"slices"
)

// reference is what the workers of one call share.
type reference struct {
	cfg     Config
	a       Args
	q, k, v HostView
}

func (ref *reference) open() (err error) {
	cfg, a := ref.cfg, ref.a
	if ref.q, err = ViewHost(a.Q, cfg.DType, a.Hq, a.Sq, cfg.HeadDim); err != nil {
		return err
	}
	if ref.k, err = ViewHost(a.K, cfg.DType, a.KVHeads(), a.Sk, cfg.HeadDim); err != nil {
		return err
	}
	ref.v, err = ViewHost(a.V, cfg.DType, a.KVHeads(), a.Sk, cfg.ValueDim())
	return err
}

const refKeys = 64 // keys widened at once

// refWorker computes chunks of rows in its own scratch memory. It shares no
// arithmetic with the CPU tier, so that one mistake cannot hide in both.
type refWorker struct {
	*reference
	scale  float64
	narrow []float32 // [refKeys][larger dim], as stored
	wide   []float64 // [refKeys][larger dim], K or V
	q      []float64 // [rows][HeadDim]
	scores []float64 // [rows][Sk], then the weights
}

func (ref *reference) worker(rows int) *refWorker {
	d, most := ref.cfg.HeadDim, max(ref.cfg.HeadDim, ref.cfg.ValueDim())
	return &refWorker{
		reference: ref,
		scale:     float64(ref.cfg.ScaleValue()),
		narrow:    make([]float32, refKeys*most),
		wide:      make([]float64, refKeys*most),
		q:         make([]float64, rows*d),
		scores:    make([]float64, rows*ref.a.Sk),
	}
}

// run computes some rows of one head into o and lse.
func (w *refWorker) run(at Rows, o, lse []float64) {
	d, dv, sk := w.cfg.HeadDim, w.cfg.ValueDim(), w.a.Sk
	kv := at.H / w.a.Group()
	visible := make([]int, len(at.Rows))
	for i, row := range at.Rows {
		visible[i] = w.cfg.Causal.Visible(row, w.a.Sq, sk)
		copy(w.q[i*d:], w.widen(&w.reference.q, at.B, at.H, row, 1))
	}
	keys := slices.Max(visible)
	for key := 0; key < keys; key += refKeys {
		k := w.widen(&w.k, at.B, kv, key, min(refKeys, keys-key))
		for i, n := range visible {
			if n = min(n-key, refKeys); n > 0 {
				dots64(w.scores[i*sk+key:][:n], w.scale, w.q[i*d:][:d], k)
			}
		}
	}
	for i, n := range visible {
		lse[i] = softmax64(w.scores[i*sk:][:n], math.Inf(-1))
	}
	clear(o[:len(visible)*dv])
	for key := 0; key < keys; key += refKeys {
		v := w.widen(&w.v, at.B, kv, key, min(refKeys, keys-key))
		for i, n := range visible {
			if math.IsInf(lse[i], -1) {
				continue // nothing to attend to
			}
			if n = min(n-key, refKeys); n > 0 {
				weigh64(o[i*dv:][:dv], w.scores[i*sk+key:][:n], v)
			}
		}
	}
}

// widen reads n rows from (b, h, row) on, good until the next call.
func (w *refWorker) widen(v *HostView, b, h, row, n int) []float64 {
	narrow := w.narrow[:n*v.Dim()]
	v.ReadRows(narrow, b, h, row, n)
	for i, x := range narrow {
		w.wide[i] = float64(x)
	}
	return w.wide[:len(narrow)]
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

// softmax64 turns scores into weights and returns their logsumexp, that of a sink
// (-Inf: none) included: -Inf when there is nothing to attend to, NaN when a score
// is NaN or +Inf.
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
// arithmetic; that shows only where they meet an Inf in V.
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
