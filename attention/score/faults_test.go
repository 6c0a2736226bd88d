package score_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/oracle"
)

// Planted faults of the evaluator and of the derivative. The reference, and with it every judge that takes it, is then
// wrong. So two parties that do not evaluate the expression have to notice: the formula of the cases refuses the
// reference's O, and the rules refuse what the CPU tier computes, in O or in the gradients.
func TestOthersNoticeFaultsOfExpressions(t *testing.T) {
	c := cases.Case{Name: "faults", D: 32, Dv: 32, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Seed: 99,
		Align: attention.BottomRight, Seqs: []cases.Seq{{ID: 0, Rows: 20, Keys: 70}}, Softcap: 1.5, ALiBi: true,
		Bias: cases.BiasKind{Spread: cases.Spread{On: true, Heads: true, Rows: true}, DType: attention.F32}}
	for _, dtype := range attention.DTypes() {
		b, err := cases.NewBackward(c, dtype)
		require.NoError(t, err)
		cfg := b.Config(cases.On(attention.TierCPU, dtype))
		op, err := attention.New(nil, attention.Config(cfg))
		require.NoError(t, err)
		a := b.BackwardHostArgs(b.Image)
		require.NoError(t, op.Forward(nil, a.Args))
		require.NoError(t, op.Backward(nil, a))
		require.NoError(t, op.Close())
		for _, f := range []struct {
			name     string
			fault    score.Fault
			backward bool // it is one of the derivative
		}{
			{name: "none", fault: score.Fault{Op: "add"}},
			{name: "tanh 5 % too small", fault: score.Fault{Op: "tanh", One: func(x float64) float64 {
				return 0.95 * math.Tanh(x)
			}}},
			{name: "the softcap divides by nothing", fault: score.Fault{Op: "div", Two: func(x, _ float64) float64 {
				return x
			}}},
			{name: "the bias is not added", fault: score.Fault{Op: "add", Two: func(x, _ float64) float64 {
				return x
			}}},
			{name: "the slope is added", fault: score.Fault{Op: "sub", Two: func(x, y float64) float64 {
				return x + y
			}}},
			{name: "distances keep their sign", fault: score.Fault{Op: "abs", One: func(x float64) float64 {
				return x
			}}},
			{name: "derivative of tanh is 1", backward: true,
				fault: score.Fault{Op: "sech2", One: func(float64) float64 {
					return 1
				}}},
			{name: "derivative of tanh is not squared", backward: true,
				fault: score.Fault{Op: "sech2", One: func(x float64) float64 {
					return 1 / math.Cosh(x)
				}}},
			{name: "derivative of a quotient forgets the divisor", backward: true, fault: score.Fault{Op: "div",
				Diff: func(_ score.Expr, d []score.Expr) score.Expr { return d[0] }}},
		} {
			t.Run(dtype.String()+", "+f.name, func(t *testing.T) {
				defer f.fault.Plant()()
				sample := b.SampleRows()
				ref, refLSE, err := oracle.ReferenceSample(cfg, a.Args, sample)
				require.NoError(t, err)
				formula := cases.NewFormula(b.Problem)
				judged := formula.JudgeRows(sample, stored(ref, dtype), stored(refLSE, attention.F32))
				forward, err := accuracy.Verify(cfg, a.Args, accuracy.Options{Rows: -1})
				require.NoError(t, err)
				backward, err := accuracy.VerifyBackward(cfg, a, accuracy.Options{Rows: -1})
				require.NoError(t, err)
				switch {
				case f.name == "none" || f.backward:
					require.NoError(t, judged.Err())
					require.True(t, forward.Pass(), forward)
				default:
					require.Error(t, judged.Err(), "the formula of the cases")
					require.False(t, forward.Pass(), "the rules")
				}
				require.Equal(t, f.name == "none", backward.Pass(), backward)
			})
		}
	}
}

// stored is x in a storage type.
func stored(x []float64, dtype attention.DType) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	b := make([]byte, len(x)*dtype.Size())
	dtype.Encode(b, y)
	dtype.Decode(y, b)
	return y
}
