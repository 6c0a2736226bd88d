package oracle

import (
	"math"

	"vkattn/internal/half"
	"vkattn/internal/problem"
)

// The two arithmetics, and the sums of the formula.

// number is a type in which the formula is computed.
type number interface{ float32 | float64 }

// arithmetic says what operations do with what they store.
type arithmetic[T number] struct {
	low   bool      // they store it in the storage type
	round func(T) T // what they store
	store func(T) T // a score
	least T         // a smaller weight is 0
}

// exact is the arithmetic of the reference.
var exact = arithmetic[float64]{
	round: func(x float64) float64 { return x },
	store: func(x float64) float64 { return x },
	// The least normal float32. Smaller weights vanish in float32 arithmetic, which shows only if they
	// meet an Inf in V.
	least: 0x1p-126,
}

// lowOf is the arithmetic of a storage type.
func lowOf(t problem.DType) arithmetic[float32] {
	a := arithmetic[float32]{low: true}
	switch t {
	case problem.F16:
		a.round = func(x float32) float32 { return half.F16ToFloat32(half.F16FromFloat32(x)) }
		const most = 65504
		a.store = func(x float32) float32 {
			if math.IsInf(float64(x), 0) {
				return x
			}
			return a.round(max(min(x, most), -most)) // both keep NaN
		}
		return a
	case problem.BF16:
		a.round = func(x float32) float32 { return half.BF16ToFloat32(half.BF16FromFloat32(x)) }
	default:
		a.round = func(x float32) float32 { return x }
	}
	a.store = a.round
	return a
}

// dots sets s[i] to scale times the product of q with row i of k. Four keys go together,
// which keeps the adders busy; each sum runs in order of the elements.
func dots[T number](s []T, scale T, q, k []T) {
	d, last := len(q), len(s)-1
	for c := 0; c <= last; c += 4 {
		c1, c2, c3 := min(c+1, last), min(c+2, last), min(c+3, last)
		k0, k1, k2, k3 := k[c*d:][:d], k[c1*d:][:d], k[c2*d:][:d], k[c3*d:][:d]
		var s0, s1, s2, s3 T
		for i, x := range q {
			s0 += x * k0[i]
			s1 += x * k1[i]
			s2 += x * k2[i]
			s3 += x * k3[i]
		}
		s[c], s[c1], s[c2], s[c3] = scale*s0, scale*s1, scale*s2, scale*s3
	}
}

// weigh adds the rows of v, weighted, to o, in order.
func weigh[T number](o, weights, v []T) {
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

// addScaled adds x times src to dst. A factor of 0 adds nothing, whatever src holds.
func addScaled[T number](dst []T, x T, src []T) {
	if x == 0 {
		return
	}
	for i, y := range src {
		dst[i] += x * y
	}
}

// softmax turns scores into weights and returns their logsumexp, in which a sink (-Inf: none) is
// one more term. It returns -Inf if there is nothing to attend to, NaN if a score is NaN or +Inf.
func (a *arithmetic[T]) softmax(s []T, sink T) (lse T) {
	most := sink
	for _, x := range s {
		most = max(most, x) // NaN if any is
	}
	if math.IsInf(float64(most), -1) {
		return most
	}
	sum := T(math.Exp(float64(sink - most)))
	for i, x := range s {
		p := T(math.Exp(float64(x - most)))
		if p < a.least {
			p = 0
		}
		s[i] = p
		sum += p
	}
	for i := range s {
		s[i] /= sum
	}
	return most + T(math.Log(float64(sum)))
}
