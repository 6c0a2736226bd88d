package tests

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// Properties of merges: the order of states does not matter, states without keys change
// nothing, merges associate, and splits of keys merge to the whole.

func drawMerge(t *rapid.T, dev *vk.Device) mergeCase {
	c := mergeCase{
		dtype:  rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype"),
		dim:    rapid.SampledFrom([]int{7, 64}).Draw(t, "dim"),
		layout: rapid.SampledFrom([]cases.LayoutKind{cases.Tight, cases.Odd, cases.BSHD}).Draw(t, "layout"),
		access: rapid.SampledFrom(mergeAccesses(dev)).Draw(t, "access"),
		spread: rapid.SampledFrom([]float64{0, 1, 30, 1e5}).Draw(t, "spread"),
		seed:   rapid.Uint64().Draw(t, "seed"),
		counts: [2]int{1, 1},
	}
	c.shape = attention.Shape{B: rapid.IntRange(1, 2).Draw(t, "b"), Hq: rapid.IntRange(1, 3).Draw(t, "hq"), Sq: rapid.IntRange(1, 40).Draw(t, "sq")}
	return c
}

func runMerge(t *rapid.T, p *mergeProblem, dev *vk.Device) (o, lse []float32) {
	after, err := p.run(dev)
	require.NoError(t, err)
	require.NoError(t, p.trespass(after))
	require.NoError(t, p.judge(after))
	return p.merged(after)
}

// with makes a problem of the same kind from these states.
func (p *mergeProblem) with(counts [2]int, o, lse [][]float32) *mergeProblem {
	c := p.mergeCase
	c.counts = counts
	q := newMergeProblem(c)
	for n := range o {
		q.setState(n, o[n], lse[n])
	}
	return q
}

// The order of two states changes no bit, in place or not.
func TestPropertyMergeOrder(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			p := newMergeProblem(c)
			o, lse := runMerge(t, p, dev)
			p.inPlace = rapid.IntRange(0, 2).Draw(t, "in place")
			swapped := p.with([2]int{1, 1}, [][]float32{p.o[1], p.o[0]}, [][]float32{p.lse[1], p.lse[0]})
			o2, lse2 := runMerge(t, swapped, dev)
			sameBits(t, o, o2, "O")
			sameBits(t, lse, lse2, "LSE")
		})
	})
}

// A state without keys changes no number of another state. Neither does a state whose
// weight is almost 0.
func TestPropertyMergeIdentity(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			p := newMergeProblem(c)
			nothing := [2][]float32{make([]float32, len(p.o[0])), make([]float32, len(p.lse[0]))}
			for i := range nothing[0] {
				nothing[0][i] = nan
			}
			for i := range nothing[1] {
				nothing[1][i] = -inf
				if x := p.lse[0][i]; i%2 == 1 && x != -inf {
					nothing[1][i] = x - 81 - float32(math.Abs(float64(x)))/1000
				}
			}
			order := [2]int{0, 1}
			if rapid.Bool().Draw(t, "nothing first") {
				order = [2]int{1, 0}
			}
			var os, lses [2][]float32
			os[order[0]], lses[order[0]] = p.o[0], p.lse[0]
			os[order[1]], lses[order[1]] = nothing[0], nothing[1]
			q := p.with([2]int{1, 1}, os[:], lses[:])
			after, err := q.run(dev)
			require.NoError(t, err)
			o, lse := q.merged(after)
			for r := range lse {
				require.Equal(t, p.lse[0][r], lse[r])
				for d := r * c.dim; d < (r+1)*c.dim; d++ {
					want := p.o[0][d]
					if lse[r] == -inf {
						want = 0
					}
					require.Equal(t, want, o[d])
				}
			}
		})
	})
}

// Merging two states and then a third gives the result of merging all three, up to one
// more rounding.
func TestPropertyMergeAssociates(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			c.counts = [2]int{rapid.IntRange(0, 2).Draw(t, "first") + 1, 0}
			c.counts[1] = 3 - c.counts[0]
			c.spread = min(c.spread, 30)
			p := newMergeProblem(c)
			o, lse := runMerge(t, p, dev)
			oab, lab := runMerge(t, p.with([2]int{1, 1}, p.o[:2], p.lse[:2]), dev)
			oabc, labc := runMerge(t, p.with([2]int{1, 1}, [][]float32{oab, p.o[2]}, [][]float32{lab, p.lse[2]}), dev)
			unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[c.dtype]
			for r := range lse {
				require.NoError(t, near(float64(labc[r]), float64(lse[r]), 4e-7*(1+math.Abs(float64(lse[r])))))
				for d := r * c.dim; d < (r+1)*c.dim; d++ {
					most := 0.0
					for n := range 3 {
						if p.lse[n][r] != -inf {
							most = max(most, math.Abs(float64(p.o[n][d])))
						}
					}
					require.NoError(t, near(float64(oabc[d]), float64(o[d]), (3*unit+1e-5)*most+0x1p-24))
				}
			}
		})
	})
}

// Keys computed in two or more splits, some of a single key, and merged give the result of
// one call over all keys.
func TestMergeOfSplitKeys(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Causal = attention.CausalNone
		splits := rapid.SampledFrom([]int{2, 2, 3, 8}).Draw(t, "splits")
		c.Shape.Sk = max(c.Shape.Sk, splits)
		whole := makeProblem(t, c, tt)
		m := mergeCase{dtype: tt.DType, dim: c.Dv, shape: c.Shape, seed: 1, layout: cases.Tight, access: c.Access, counts: [2]int{splits, 0}}
		if e.dev == nil {
			m.access = attention.AccessAuto
		}
		if splits == 2 {
			m.counts = [2]int{1, 1}
		}
		p := newMergeProblem(m)
		rng := rand.New(rand.NewPCG(c.Seed, 2))
		cuts := []int{0}
		for n := range splits {
			next := cuts[n] + 1 + rng.IntN(c.Shape.Sk-cuts[n]-(splits-1-n))
			if n == splits-1 {
				next = c.Shape.Sk
			}
			o, lse := e.compute(t, keysOf(t, whole, cuts[n], next), tt)
			p.setState(n, o, lse)
			cuts = append(cuts, next)
		}
		after, err := p.run(e.dev)
		require.NoError(t, err)
		o, lse := p.merged(after)
		judgeMerged(t, whole, o, lse)
	})
}
