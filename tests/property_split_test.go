package tests

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
)

// Keys computed in two splits and merged by LSE give the result of one call over all keys.
// Splitting keys over workgroups, devices and pages of a cache relies on it.
func TestPropertySplitKeysMerge(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Causal = attention.CausalNone
		c.Shape.Sk = max(c.Shape.Sk, 2)
		whole := makeProblem(t, c, tt)
		cut := rapid.IntRange(1, c.Shape.Sk-1).Draw(t, "cut")
		oa, la := e.compute(t, keysOf(t, whole, 0, cut), tt)
		ob, lb := e.compute(t, keysOf(t, whole, cut, c.Shape.Sk), tt)
		for r := range la {
			a, b := float64(la[r]), float64(lb[r])
			most := max(a, b)
			l := most + math.Log(math.Exp(a-most)+math.Exp(b-most))
			for i := r * c.Dv; i < (r+1)*c.Dv; i++ {
				oa[i] = float32(math.Exp(a-l)*float64(oa[i]) + math.Exp(b-l)*float64(ob[i]))
			}
			la[r] = float32(l)
		}
		judgeMerged(t, whole, oa, la)
	})
}

// judgeMerged allows the error of the rules and two more. Each split is rounded to the
// storage type, by at most half a unit of the largest V. Its LSE is rounded to float32:
// weights that are off by a factor of 1 +- d move the mean by d times the mean distance of
// the splits from it, which is at most the largest V.
func judgeMerged(t *rapid.T, p *cases.Problem, o, lse []float32) {
	var x cases.Truth
	require.NoError(t, x.Expect(p))
	v, err := p.Read(p.Image, cases.TensorV)
	require.NoError(t, err)
	var most, lowMost, lseMost float64
	for _, e := range v {
		most = max(most, math.Abs(float64(e)))
	}
	for i := range x.Ref {
		lowMost = max(lowMost, math.Abs(float64(x.Low[i])-x.Ref[i]))
	}
	for _, l := range x.RefLSE {
		if !math.IsInf(l, 0) {
			lseMost = max(lseMost, math.Abs(l))
		}
	}
	unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[p.DType]
	limit := 2*lowMost + (unit+0x1p-24*lseMost)*most + 1e-5
	for i := range x.Ref {
		require.InDelta(t, x.Ref[i], o[i], limit, "%v: O, element %d", p, i)
	}
	limits := accuracy.ForwardLSE(p.DType)
	limits.Noise = x.NoiseLSE
	verdict := accuracy.Judge(limits, 1, lse, x.RefLSE, x.LowLSE)
	require.True(t, verdict.Pass(), "%v: LSE: %v", p, verdict.Reasons())
}

// keysOf returns a problem with only the keys [lo, hi) of p.
func keysOf(t *rapid.T, p *cases.Problem, lo, hi int) *cases.Problem {
	c := p.Case
	c.Shape.Sk = hi - lo
	part := makeProblem(t, c, cases.Target{DType: p.DType})
	v := values(t, p)
	for i, dim := range []int{0, c.D, c.Dv} {
		if i == cases.TensorQ {
			continue
		}
		var y []float32
		for head := range len(v[i]) / dim / p.Shape.Sk {
			y = append(y, v[i][(head*p.Shape.Sk+lo)*dim:(head*p.Shape.Sk+hi)*dim]...)
		}
		v[i] = y
	}
	setValues(t, part, v)
	return part
}

// judgePacked judges packed outputs by the three rules for problem p.
func judgePacked(t *rapid.T, p *cases.Problem, o, lse []float32) {
	var x cases.Truth
	require.NoError(t, x.Expect(p))
	v := x.Expected.Judge(o, lse)
	require.True(t, v.Pass(), "%v: %v", p, v)
}

func sameBits(t *rapid.T, want, got []float32, what string) {
	require.Len(t, got, len(want), what)
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%s: element %d of %d is %v, want %v, bit for bit", what, i, len(want), got[i], want[i])
		}
	}
}
