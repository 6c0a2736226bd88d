package attention_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
)

// The order of keys does not matter without a causal mask, up to rounding.
func TestPermutingKeys(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		p.cfg.Causal = attention.CausalNone
		p.cfg.DType = attention.F32
		p = newProblem(p.cfg, p.Shape, attention.BHSD, rapid.Uint64Range(1, 99).Draw(t, "data"))
		o, lse := p.run(t)
		perm := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "perm"), 0)).Perm(p.Sk)
		for _, v := range []attention.HostView{p.viewK(), p.viewV()} {
			for b := range p.B {
				for h := range p.KVHeads() {
					rows := make([][]float32, p.Sk)
					for i := range rows {
						rows[i] = make([]float32, v.Dim())
						v.ReadRow(rows[i], b, h, i)
					}
					for i, j := range perm {
						v.WriteRow(rows[j], b, h, i)
					}
				}
			}
		}
		o2, lse2 := p.run(t)
		for i := range o {
			require.InDelta(t, o[i], o2[i], 2e-4)
		}
		for i := range lse {
			require.InDelta(t, lse[i], lse2[i], 1e-4*(1+math.Abs(float64(lse[i]))))
		}
	})
}

// Keys split in two, computed as two states and merged by LSE, give the whole. Split and
// ring attention rely on it.
func TestSplittingKeysAndMerging(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		p.cfg.Causal = attention.CausalNone
		p.cfg.DType = attention.F32
		p.Shape.Sk = max(p.Sk, 2)
		p = newProblem(p.cfg, p.Shape, attention.BHSD, rapid.Uint64Range(1, 99).Draw(t, "data"))
		o, lse := p.run(t)
		cut := rapid.IntRange(1, p.Sk-1).Draw(t, "cut")
		part := func(first, n int) (o, lse []float32) {
			q := *p
			q.Sk = n
			// Keep the strides of the whole and step over the keys before.
			q.K.Offset += int64(first) * q.K.Strides.Seq
			q.V.Offset += int64(first) * q.V.Strides.Seq
			return q.run(t)
		}
		oa, la := part(0, cut)
		ob, lb := part(cut, p.Sk-cut)
		dv := p.cfg.ValueDim()
		for r := range lse {
			a, b := float64(la[r]), float64(lb[r])
			m := max(a, b)
			l := m + math.Log(math.Exp(a-m)+math.Exp(b-m))
			require.InDelta(t, l, lse[r], 1e-4*(1+math.Abs(l)))
			for i := r * dv; i < (r+1)*dv; i++ {
				merged := math.Exp(a-l)*float64(oa[i]) + math.Exp(b-l)*float64(ob[i])
				require.InDelta(t, merged, o[i], 2e-4)
			}
		}
	})
}

// A batch entry, a head or a run of query rows computed alone has the same bits
// as within the whole.
func TestIndependenceOfTheBatch(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		o, lse := p.run(t)
		dv := p.cfg.ValueDim()
		b := rapid.IntRange(0, p.B-1).Draw(t, "which b")
		h := rapid.IntRange(0, p.Hq-1).Draw(t, "which h")
		one := *p
		one.Shape = attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: p.Sq, Sk: p.Sk}
		kv := int64(h / p.Group())
		for _, x := range []struct {
			t    *attention.Tensor
			head int64
		}{{&one.Q, int64(h)}, {&one.K, kv}, {&one.V, kv}, {&one.O, int64(h)}} {
			x.t.Offset += int64(b)*x.t.Strides.Batch + x.head*x.t.Strides.Head
		}
		one.LSE.Host = make([]byte, 4*p.Sq)
		o1, lse1 := one.run(t)
		at := (b*p.Hq + h) * p.Sq
		sameBits(t, o[at*dv:][:p.Sq*dv], o1, "O of batch %d head %d", b, h)
		sameBits(t, lse[at:][:p.Sq], lse1, "LSE of batch %d head %d", b, h)
		if p.cfg.Causal != attention.CausalNone {
			return // a run of rows would be masked differently
		}
		first := rapid.IntRange(0, p.Sq-1).Draw(t, "first row")
		one.Sq -= first
		one.Q.Offset += int64(first) * one.Q.Strides.Seq
		one.O.Offset += int64(first) * one.O.Strides.Seq
		one.LSE.Host = one.LSE.Host[:4*one.Sq]
		o1, _ = one.run(t)
		sameBits(t, o[(at+first)*dv:][:one.Sq*dv], o1, "O from row %d on", first)
	})
}

// Scale 0 gives every key the same weight.
func TestScaleZeroIsTheMean(t *testing.T) {
	cfg := attention.Config{DType: attention.F32, HeadDim: 8, Scale: attention.ScaleOf(0)}
	p := newProblem(cfg, attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 97}, attention.BHSD, 4)
	mean := make([]float64, 8)
	row := make([]float32, 8)
	for c := range p.Sk {
		p.viewV().ReadRow(row, 0, 0, c)
		for i, x := range row {
			mean[i] += float64(x) / float64(p.Sk)
		}
	}
	o, lse := p.run(t)
	for r := range p.Sq {
		require.InDelta(t, math.Log(97), lse[r], 1e-6)
		for i := range mean {
			require.InDelta(t, mean[i], o[r*8+i], 1e-6)
		}
	}
}

// Negating Q and K, or Q and the scale, changes no score.
func TestNegativeScale(t *testing.T) {
	cfg := attention.Config{HeadDim: 24, Scale: attention.ScaleOf(0.3)}
	p := newProblem(cfg, attention.Shape{B: 1, Hq: 2, Sq: 9, Sk: 70}, attention.BHSD, 4)
	o, lse := p.run(t)
	row := make([]float32, 24)
	q := p.viewQ()
	for h := range 2 {
		for r := range 9 {
			q.ReadRow(row, 0, h, r)
			for i := range row {
				row[i] = -row[i]
			}
			q.WriteRow(row, 0, h, r)
		}
	}
	p.cfg.Scale = attention.ScaleOf(-0.3)
	o2, lse2 := p.run(t)
	sameBits(t, o, o2, "O")
	sameBits(t, lse, lse2, "LSE")
}
