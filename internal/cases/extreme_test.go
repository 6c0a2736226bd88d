package cases

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// The reference computes what the formula says of extreme compositions too.
func TestReferenceOfExtremes(t *testing.T) {
	for seed := range uint64(90) {
		if seed >= 60 {
			seed |= ExtremeMods
		}
		kvs := attention.KVTypes()
		dtype, kv := attention.DTypes()[seed%3], kvs[seed/3%uint64(len(kvs))]
		c := RandomExtreme(seed, int(seed%7), kv, dtype)
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p, err := NewProblem(c, dtype)
			require.NoError(t, err)
			cfg, args := p.Config(Target{Tier: attention.TierCPU, DType: dtype}), p.HostArgs(p.Spoiled())
			require.NoError(t, attention.CheckArgs(attention.Config(cfg), args))
			sample := p.SampleRows()
			ref, refLSE, err := attention.ReferenceSample(attention.Config(cfg), args, sample)
			require.NoError(t, err)
			verdict := NewFormula(p).JudgeRows(sample, narrowed(ref, dtype), narrowed(refLSE, attention.F32))
			require.NoErrorf(t, verdict.Err(), "%v/%v", dtype, kv)
		})
	}
}

func narrowed(x []float64, dtype attention.DType) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return decodeFloats(encodeFloats(y, dtype), dtype)
}

// Draws of a seed differ in numbers and share what pipelines depend on.
func TestDrawsOfExtremesShareAPipeline(t *testing.T) {
	pipelines, all := map[string]bool{}, map[string]bool{}
	for seed := range uint64(40) {
		for draw := range 5 {
			c := RandomExtreme(seed, draw, attention.KVSame, attention.F16)
			again := RandomExtreme(seed, draw, attention.KVSame, attention.F16)
			require.Equal(t, fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", again)) // which has NaN
			require.NoError(t, c.Config(Target{}).Validate(), "%v", c)
			require.LessOrEqual(t, c.Flops(), int64(MaxExtremeFlops))
			pipelines[c.Pipeline()] = true
			all[c.String()] = true
		}
	}
	require.Greater(t, len(all), 190)
	require.Less(t, len(pipelines), 60)
}

// Each way to be wrong is found, and no other row is blamed.
func TestFormulaFindsWrongRows(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	base := Case{Name: "formula", D: 32, Dv: 32, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Seqs: []Seq{{0, 5, 40}}, Sinks: true,
		Bias: BiasKind{Spread: Spread{On: true, Heads: true, Rows: true}, DType: attention.F32}}
	large := base
	large.Sinks, large.Bias, large.Extremes = false, BiasKind{}, Extremes{Q: 1e5, K: 1e5}
	for _, x := range []struct {
		name   string
		c      Case
		dtype  attention.DType
		change func(o, lse []float32, dv int)
		says   string
	}{
		{"NaN", base, attention.F16, func(o, _ []float32, dv int) { o[7*dv+3] = nan }, "O[3] is NaN"},
		{"Inf", base, attention.F32, func(o, _ []float32, dv int) { o[7*dv+3] = inf }, "O[3] is +Inf"},
		{"a row of 0", base, attention.BF16, func(o, _ []float32, dv int) { clear(o[7*dv:][:dv]) }, "O[0] is 0"},
		{"LSE", base, attention.F32, func(_, lse []float32, _ int) { lse[7] += 1e-3 }, "LSE is"},
		{"LSE of -Inf", base, attention.F16, func(_, lse []float32, _ int) { lse[7] = -inf }, "LSE is -Inf"},
		{"one part in 200", base, attention.F16, func(o, _ []float32, dv int) {
			for i := range dv {
				o[7*dv+i] *= 1.005
			}
		}, "want"},
		{"0 where scores are 1e10", large, attention.F32, func(o, _ []float32, dv int) { clear(o[7*dv:][:dv]) }, "want"},
		{"another key where scores are 1e10", large, attention.F32, func(o, _ []float32, dv int) {
			copy(o[7*dv:][:dv], o[8*dv:][:dv])
		}, "want"},
	} {
		t.Run(x.name, func(t *testing.T) {
			p, err := NewProblem(x.c, x.dtype)
			require.NoError(t, err)
			sample := p.SampleRows()
			ref, refLSE, err := attention.ReferenceSample(attention.Config(p.Config(Target{DType: x.dtype})), p.HostArgs(p.Image), sample)
			require.NoError(t, err)
			o, lse := narrowed(ref, x.dtype), narrowed(refLSE, attention.F32)
			f := NewFormula(p)
			before := f.JudgeRows(sample, o, lse)
			require.NoError(t, before.Err())
			x.change(o, lse, p.Dv)
			verdict := f.JudgeRows(sample, o, lse)
			require.Equal(t, 1, verdict.Wrong)
			require.ErrorContains(t, verdict.Err(), x.says)
			var wrong *RowError
			require.True(t, errors.As(verdict.Err(), &wrong))
			require.Equal(t, []int{0, 1, 2}, []int{wrong.B, wrong.H, wrong.Row}, "the row that was changed")
		})
	}
}

// If all scores of a row equal one large bias, O is the mean of V. Splits keep only an
// LSE, which then does not say how many keys they had: with splits O lies between the
// values.
func TestFormulaOfEqualLargeBiases(t *testing.T) {
	c := Case{Name: "formula", D: 8, Dv: 8, Shape: attention.Shape{Hq: 8, Hkv: 2}, LSE: true, Seqs: []Seq{{0, 9, 40}},
		Bias:     BiasKind{Spread: Spread{On: true, Heads: true, Rows: true}, DType: attention.F32},
		Extremes: Extremes{Bias: []float32{-math.MaxFloat32}}}
	p, err := NewProblem(c, attention.F32)
	require.NoError(t, err)
	f := NewFormula(p)
	found := 0
	for h := range c.Hq {
		for row := range 9 {
			f.score(0, h, row)
			if f.row.most != -math.MaxFloat32 {
				continue
			}
			found++
			one := []attention.Rows{{B: 0, H: h, Rows: []int{row}}}
			mean, first := make([]float64, c.Dv), narrowed(f.row.value[0], attention.F32)
			for _, v := range f.row.value {
				for j, x := range v {
					mean[j] += x / float64(len(f.row.value))
				}
			}
			lse := []float32{-math.MaxFloat32}
			judge := func(o []float32) error {
				judged := f.JudgeRows(one, o, lse)
				return judged.Err()
			}
			require.NoError(t, judge(narrowed(mean, attention.F32)))
			require.Error(t, judge(first))
			f.Rounded = true
			require.NoError(t, judge(narrowed(mean, attention.F32)))
			require.NoError(t, judge(first))
			lse[0] = float32(math.Inf(-1))
			require.Error(t, judge(first))
			f.Rounded = false
		}
	}
	require.Positive(t, found)
}

// A bias of -1e9 rounds scores away in float32 and not in float64: both are right.
func TestFormulaOfAbsorbedScores(t *testing.T) {
	c := Case{Name: "formula", D: 8, Dv: 8, Shape: attention.Shape{Hq: 2, Hkv: 1}, LSE: true, Seqs: []Seq{{0, 9, 40}},
		Bias: BiasKind{Spread: Spread{On: true, Heads: true, Rows: true}, DType: attention.F32}, Extremes: Extremes{Bias: []float32{-1e9}}}
	p, err := NewProblem(c, attention.F32)
	require.NoError(t, err)
	cfg, args, sample := p.Config(Target{}), p.HostArgs(p.Image), p.SampleRows()
	cfg.DType = attention.F32
	ref, refLSE, err := attention.ReferenceSample(attention.Config(cfg), args, sample)
	require.NoError(t, err)
	f := NewFormula(p)
	judged := f.JudgeRows(sample, narrowed(ref, attention.F32), narrowed(refLSE, attention.F32))
	require.NoError(t, judged.Err(), "in float64")
	op, err := attention.New(nil, attention.Config(cfg))
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, args))
	judged = f.Judge(p.Image)
	require.NoError(t, judged.Err(), "in float32")
	require.NoError(t, op.Close())
}

// What kernels promise of far rows depends on score modifiers, not on masks.
func TestMasksChangeNoScores(t *testing.T) {
	kinds := map[[2]bool]int{}
	for mods := range 12 {
		c := Case{Mods: mods}
		s, mask := c.modifiers()
		require.Equal(t, s.String() != "none", c.ChangesScores(), "mods %d: %v, %v", mods, s, mask)
		kinds[[2]bool{c.ChangesScores(), mask.String() != "none"}]++
	}
	require.Len(t, kinds, 4)
	require.True(t, (&Case{ALiBi: true}).ChangesScores())
	require.True(t, (&Case{Softcap: 30}).ChangesScores())
}
