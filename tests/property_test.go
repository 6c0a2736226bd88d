package tests

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// tuneProperties sets the number of problems per property, unless a flag does.
func tuneProperties() {
	checks := "60"
	switch {
	case fewPipelines():
		checks = "15"
	case testlevel.IsBrief():
		checks = "10"
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", checks)
	}
	// The seed is printed, so failures need no files in the source tree.
	_ = flag.Set("rapid.nofailfile", "true")
}

// fewPipelines reports whether problems should share pipelines: a driver on the CPU
// compiles one as long as it computes a hundred problems.
func fewPipelines() bool {
	s, err := theSession()
	return err == nil && s.dev != nil && !full()
}

// onTiers runs a property on every tier that executes here; see propertyTurn.
func onTiers(t *testing.T, property func(t *rapid.T, e *engine, tt cases.Target)) {
	s := openTiers(t)
	onTiersThat(t, func(tt cases.Target) bool { return s.propertyTurn(t.Name(), tt) }, property)
}

// onTiersThat is onTiers for some of the tiers.
func onTiersThat(t *testing.T, are func(tt cases.Target) bool, property func(t *rapid.T, e *engine, tt cases.Target)) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !are(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			rapid.Check(t, func(t *rapid.T) { property(t, e, tt) })
			require.NoError(t, e.close())
		})
	}
}

// drawCase draws a small problem.
func drawCase(t *rapid.T) cases.Case {
	drawDims := [][2]int{{8, 8}, {40, 40}, {64, 64}, {16, 48}, {7, 5}}
	drawLayouts := []cases.LayoutKind{cases.Tight, cases.BSHD, cases.Padded, cases.Odd, cases.Even, cases.Woven}
	leastRows := 1
	drawAccess := cases.Accesses
	if fewPipelines() {
		// The table has most of these pipelines too.
		drawDims, drawLayouts, drawAccess = [][2]int{{64, 64}}, []cases.LayoutKind{cases.Tight, cases.BSHD, cases.Odd}, []attention.Access{attention.AccessAuto}
		leastRows = 33
	}
	d := rapid.SampledFrom(drawDims).Draw(t, "dims")
	kv := rapid.IntRange(1, 3).Draw(t, "hkv")
	c := cases.Case{
		D: d[0], Dv: d[1], LSE: true,
		Causal: rapid.SampledFrom(cases.Causals).Draw(t, "causal"),
		Scale:  rapid.SampledFrom(cases.Scales).Draw(t, "scale"),
		Shape: attention.Shape{
			B: rapid.IntRange(1, 2).Draw(t, "b"), Hkv: kv, Hq: kv * rapid.IntRange(1, 3).Draw(t, "group"),
			Sq: rapid.IntRange(leastRows, 80).Draw(t, "sq"), Sk: rapid.IntRange(1, 140).Draw(t, "sk"),
		},
		Layout: rapid.SampledFrom(drawLayouts).Draw(t, "layout"),
		Data:   rapid.SampledFrom([]cases.DataKind{cases.Normal, cases.Uniform, cases.Rising, cases.Falling}).Draw(t, "data"),
		Access: rapid.SampledFrom(drawAccess).Draw(t, "access"),
		Seed:   rapid.Uint64Range(1, 1<<32).Draw(t, "seed"),
	}
	return c
}

func makeProblem(t *rapid.T, c cases.Case, tt cases.Target) *cases.Problem {
	p, err := cases.NewProblem(c, tt.DType)
	require.NoError(t, err)
	return p
}

// compute runs a problem and returns O and LSE, packed.
func (e *engine) compute(t *rapid.T, p *cases.Problem, tt cases.Target) (o, lse []float32) {
	j := &job{Problem: p, cfg: attention.Config(p.Config(tt)), before: p.Image}
	require.NoError(t, e.run([]*job{j}))
	require.NoError(t, p.Trespass(j.before, j.after))
	o, err := p.Read(j.after, cases.TensorO)
	require.NoError(t, err)
	if p.LSE {
		lse, err = p.Read(j.after, cases.TensorLSE)
		require.NoError(t, err)
	}
	return o, lse
}

// values returns the packed inputs of a problem.
func values(t *rapid.T, p *cases.Problem) (v [3][]float32) {
	for i := range v {
		var err error
		v[i], err = p.Read(p.Image, i)
		require.NoError(t, err)
	}
	return v
}

func setValues(t *rapid.T, p *cases.Problem, v [3][]float32) {
	for i := range v {
		require.NoError(t, p.Write(p.Image, i, v[i]))
	}
}

// The result of any problem is within the rules.
func TestPropertyAnyProblem(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		p := makeProblem(t, drawCase(t), tt)
		o, lse := e.compute(t, p, tt)
		judgePacked(t, p, o, lse)
	})
}

// The order of the keys does not matter.
func TestPropertyPermutedKeys(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Causal = attention.CausalNone
		p, permuted := makeProblem(t, c, tt), makeProblem(t, c, tt)
		order := rand.New(rand.NewPCG(c.Seed, 7)).Perm(c.Shape.Sk)
		v := values(t, p)
		for i, dim := range []int{0, c.D, c.Dv} {
			if i == cases.TensorQ {
				continue
			}
			moved := make([]float32, len(v[i]))
			for row := range len(v[i]) / dim {
				head, key := row/c.Shape.Sk, row%c.Shape.Sk
				copy(moved[row*dim:][:dim], v[i][(head*c.Shape.Sk+order[key])*dim:])
			}
			v[i] = moved
		}
		setValues(t, permuted, v)
		o, lse := e.compute(t, permuted, tt)
		judgePacked(t, p, o, lse)
	})
}

// Batch entries are independent: computed alone, each has the same bits.
func TestPropertyBatchIndependence(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Shape.B = 3
		p := makeProblem(t, c, tt)
		o, lse := e.compute(t, p, tt)
		which := rapid.IntRange(0, 2).Draw(t, "which")
		one := c
		one.Shape.B = 1
		alone := makeProblem(t, one, tt)
		v := values(t, p)
		for i := range v {
			n := len(v[i]) / 3
			v[i] = v[i][which*n:][:n]
		}
		setValues(t, alone, v)
		o1, lse1 := e.compute(t, alone, tt)
		sameBits(t, o[which*len(o1):][:len(o1)], o1, "O")
		sameBits(t, lse[which*len(lse1):][:len(lse1)], lse1, "LSE")
	})
}

// A permutation of the heads permutes the heads of the result, bit for bit.
func TestPropertyHeadPermutation(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Shape.B, c.Shape.Hq, c.Shape.Hkv = 1, 4, 4
		p, permuted := makeProblem(t, c, tt), makeProblem(t, c, tt)
		order := rand.New(rand.NewPCG(c.Seed, 9)).Perm(4)
		v := values(t, p)
		for i := range v {
			v[i] = permuteHeads(v[i], order)
		}
		setValues(t, permuted, v)
		o, lse := e.compute(t, p, tt)
		o1, lse1 := e.compute(t, permuted, tt)
		sameBits(t, permuteHeads(o, order), o1, "O")
		sameBits(t, permuteHeads(lse, order), lse1, "LSE")
	})
}

func permuteHeads(x []float32, order []int) []float32 {
	n := len(x) / len(order)
	y := make([]float32, 0, len(x))
	for _, h := range order {
		y = append(y, x[h*n:][:n]...)
	}
	return y
}

// Grouped queries give the bits of repeated keys and values.
func TestPropertyGroupedIsRepeated(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Shape.B, c.Shape.Hkv, c.Shape.Hq = 1, 2, 2*rapid.IntRange(2, 4).Draw(t, "group of")
		many := c
		many.Shape.Hkv = c.Shape.Hq
		p, repeated := makeProblem(t, c, tt), makeProblem(t, many, tt)
		v := values(t, p)
		for _, i := range []int{cases.TensorK, cases.TensorV} {
			var order []int
			for h := range c.Shape.Hq {
				order = append(order, h/c.Shape.Group())
			}
			n := len(v[i]) / 2
			var y []float32
			for _, h := range order {
				y = append(y, v[i][h*n:][:n]...)
			}
			v[i] = y
		}
		setValues(t, repeated, v)
		o, lse := e.compute(t, p, tt)
		o1, lse1 := e.compute(t, repeated, tt)
		sameBits(t, o, o1, "O")
		sameBits(t, lse, lse1, "LSE")
	})
}

// The layout of tensors in memory does not change a bit of the result.
func TestPropertyLayoutIndependence(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Layout = cases.Tight
		moved := c
		to := []cases.LayoutKind{cases.Packed, cases.BSHD, cases.Padded, cases.Odd, cases.Even, cases.Woven}
		if fewPipelines() {
			to = []cases.LayoutKind{cases.Packed, cases.BSHD, cases.Padded, cases.Odd}
		}
		moved.Layout = rapid.SampledFrom(to).Draw(t, "moved to")
		p, q := makeProblem(t, c, tt), makeProblem(t, moved, tt)
		require.Equal(t, values(t, p), values(t, q))
		o, lse := e.compute(t, p, tt)
		o1, lse1 := e.compute(t, q, tt)
		sameBits(t, o, o1, "O")
		sameBits(t, lse, lse1, "LSE")
	})
}

// A power of two may be moved from the scale into Q without changing a bit.
func TestPropertyScaleFolding(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawCase(t)
		c.Data = cases.Uniform // no overflow of f16
		c.Scale = attention.ScaleOf(rapid.SampledFrom([]float32{0.5, 0.1, -0.75, 3}).Draw(t, "scaled"))
		folded := c
		folded.Scale = attention.ScaleOf(c.Scale.Value(0) / 4)
		p, q := makeProblem(t, c, tt), makeProblem(t, folded, tt)
		v := values(t, p)
		v[0] = append([]float32(nil), v[0]...)
		for i := range v[0] {
			v[0][i] *= 4
		}
		setValues(t, q, v)
		o, lse := e.compute(t, p, tt)
		o1, lse1 := e.compute(t, q, tt)
		sameBits(t, o, o1, "O")
		sameBits(t, lse, lse1, "LSE")
	})
}
