package tests

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// Keys computed in two parts and merged by LSE give what they give together:
// what splitting over workgroups, devices and pages of a cache rests on.
func TestPropertySplitKeysMerge(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt tierType) {
		c := drawCase(t)
		c.causal = attention.CausalNone
		c.shape.Sk = max(c.shape.Sk, 2)
		whole := makeProblem(t, c, tt)
		cut := rapid.IntRange(1, c.shape.Sk-1).Draw(t, "cut")
		oa, la := e.compute(t, keysOf(t, whole, 0, cut), tt)
		ob, lb := e.compute(t, keysOf(t, whole, cut, c.shape.Sk), tt)
		for r := range la {
			a, b := float64(la[r]), float64(lb[r])
			most := max(a, b)
			l := most + math.Log(math.Exp(a-most)+math.Exp(b-most))
			for i := r * c.dv; i < (r+1)*c.dv; i++ {
				oa[i] = float32(math.Exp(a-l)*float64(oa[i]) + math.Exp(b-l)*float64(ob[i]))
			}
			la[r] = float32(l)
		}
		judgeMerged(t, whole, oa, la)
	})
}

// judgeMerged allows what the rules do and that each part was rounded to the
// storage type, by at most half a unit of the largest V there is.
func judgeMerged(t *rapid.T, p *problem, o, lse []float32) {
	var x expectation
	require.NoError(t, x.expect(p))
	v, err := p.read(p.image, tensorV)
	require.NoError(t, err)
	var most, lowMost float64
	for _, e := range v {
		most = max(most, math.Abs(float64(e)))
	}
	for i := range x.ref {
		lowMost = max(lowMost, math.Abs(float64(x.low[i])-x.ref[i]))
	}
	unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[p.tt.dtype]
	limit := 2*lowMost + unit*most + 1e-5
	for i := range x.ref {
		require.InDelta(t, x.ref[i], o[i], limit, "%v: O, element %d", p, i)
	}
	limits := accuracy.ForwardLSE(p.tt.dtype)
	limits.Noise = x.noiseLSE
	verdict := accuracy.Judge(limits, 1, lse, x.refLSE, x.lowLSE)
	require.True(t, verdict.Pass(), "%v: LSE: %v", p, verdict.Reasons())
}

// keysOf is a problem with keys [lo, hi) of p alone.
func keysOf(t *rapid.T, p *problem, lo, hi int) *problem {
	c := p.testCase
	c.shape.Sk = hi - lo
	part := makeProblem(t, c, p.tt)
	v := values(t, p)
	for i, dim := range []int{0, c.d, c.dv} {
		if i == tensorQ {
			continue
		}
		var y []float32
		for head := range len(v[i]) / dim / p.shape.Sk {
			y = append(y, v[i][(head*p.shape.Sk+lo)*dim:(head*p.shape.Sk+hi)*dim]...)
		}
		v[i] = y
	}
	setValues(t, part, v)
	return part
}

// judgePacked holds packed outputs to the three rules for problem p.
func judgePacked(t *rapid.T, p *problem, o, lse []float32) {
	var x expectation
	require.NoError(t, x.expect(p))
	limits := accuracy.Forward(p.tt.dtype)
	limits.Noise = x.noise
	verdict := accuracy.Judge(limits, p.dv, o, x.ref, x.low)
	require.True(t, verdict.Pass(), "%v: O: %v", p, verdict.Reasons())
	limits = accuracy.ForwardLSE(p.tt.dtype)
	limits.Noise = x.noiseLSE
	verdict = accuracy.Judge(limits, 1, lse, x.refLSE, x.lowLSE)
	require.True(t, verdict.Pass(), "%v: LSE: %v", p, verdict.Reasons())
}

func sameBits(t *rapid.T, want, got []float32, what string) {
	require.Len(t, got, len(want), what)
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%s: element %d of %d is %v, want %v, bit for bit", what, i, len(want), got[i], want[i])
		}
	}
}
