package score

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slots are the variables of a row, as a test has them.
type slots struct {
	s, bias []float64
	slope   float64
	at      int
}

func (r *slots) Number(v Variable) float64 {
	if v == I {
		return float64(r.at)
	}
	return r.slope
}

func (r *slots) Load(dst []float64, v Variable) {
	for i := range dst {
		switch v {
		case S:
			dst[i] = r.s[i]
		case Bias:
			dst[i] = r.bias[i]
		case J:
			dst[i] = float64(i)
		}
	}
}

func all() (list []Options) {
	for _, softcap := range []float64{0, 3, 30} {
		for i := range 4 {
			list = append(list, Options{Softcap: softcap, Bias: i&1 != 0, ALiBi: i&2 != 0})
		}
	}
	return list
}

func random(r *rand.Rand) *slots {
	row := &slots{slope: float64(float32(r.Float64())), at: r.IntN(40)}
	for range 33 {
		row.s = append(row.s, float64(float32(20*r.NormFloat64())))
		row.bias = append(row.bias, float64(float32(r.NormFloat64())))
	}
	return row
}

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// The expression is the formula, in float64 and with float32 arithmetic.
func TestScoreIsTheFormula(t *testing.T) {
	r := seeded(t)
	for _, o := range all() {
		row := random(r)
		exact, low := make([]float64, len(row.s)), make([]float64, len(row.s))
		NewEvaluator(o.Score(), nil).Eval(exact, row)
		NewEvaluator(o.Score(), Float32).Eval(low, row)
		for j, s := range row.s {
			x, y := s, float32(s)
			if o.Softcap != 0 {
				x = float64(o.Softcap * math.Tanh(x/o.Softcap)) // a conversion rounds: Go may fuse a product with a sum
				y = float32(float32(o.Softcap) * float32(math.Tanh(float64(y/float32(o.Softcap)))))
			}
			if o.Bias {
				x += row.bias[j]
				y += float32(row.bias[j])
			}
			if o.ALiBi {
				distance := math.Abs(float64(row.at - j))
				x -= float64(row.slope * distance)
				y -= float32(float32(row.slope) * float32(distance))
			}
			require.Equal(t, x, exact[j], "%v", o.Score())
			require.Equal(t, float64(y), low[j], "%v", o.Score())
		}
	}
}

// The derivative is the limit of differences.
func TestDiffIsTheDerivative(t *testing.T) {
	r := seeded(t)
	s := Var(S)
	list := []Expr{Mul(s, s), Div(Const(3), Add(Mul(s, s), Const(1))), Abs(s), Mul(Tanh(s), Tanh(Mul(s, Var(Slope)))), Sub(Const(2), Softcap(Softcap(s, 9), 5)),
		Softcap(s, 4).Diff(), Mul(Var(Bias), Abs(Sub(s, Var(J))))}
	for _, o := range all() {
		list = append(list, o.Score())
	}
	const h = 1e-5
	for _, e := range list {
		row := random(r)
		n := len(row.s)
		above, below, diff := make([]float64, n), make([]float64, n), make([]float64, n)
		NewEvaluator(e.Diff(), nil).Eval(diff, row)
		base := row.s
		for k, dst := range [][]float64{above, below} {
			row.s = make([]float64, n)
			for i, x := range base {
				row.s[i] = x + []float64{h, -h}[k]
			}
			NewEvaluator(e, nil).Eval(dst, row)
		}
		for i := range diff {
			require.InDelta(t, (above[i]-below[i])/(2*h), diff[i], 1e-4*math.Max(1, math.Abs(above[i])), "%v at %v", e, base[i])
		}
	}
	for _, x := range []float64{0, 1, 20, 300, 1e6} { // without cancellation
		d := []float64{0}
		NewEvaluator(Softcap(s, 1).Diff(), nil).Eval(d, &slots{s: []float64{x}})
		cosh := math.Cosh(x)
		require.Equal(t, 1/(cosh*cosh), d[0])
	}
}

func TestTextsOfExpressions(t *testing.T) {
	s := Var(S)
	for want, e := range map[string]Expr{
		"S": Options{}.Score(),
		"30 * tanh(S / 30) + bias - slope * abs(I - J)": Options{30, true, true}.Score(),
		"sech2(S / 30)":       Options{30, true, true}.Score().Diff(),
		"1":                   Options{Bias: true, ALiBi: true}.Score().Diff(),
		"S - (I - J)":         Sub(s, Sub(Var(I), Var(J))),
		"S - I - J":           Sub(Sub(s, Var(I)), Var(J)),
		"(S + bias) * (-2)":   Mul(Add(s, Var(Bias)), Const(-2)),
		"S / (slope * slope)": Div(s, Mul(Var(Slope), Var(Slope))),
		"none":                {},
	} {
		require.Equal(t, want, e.String())
	}
	require.True(t, Options{}.Score().Diff().Is(1))
}

// An evaluator needs no memory beyond its first row, and results may lie where scores do.
func TestEvaluatingRowsAllocatesNothing(t *testing.T) {
	row := random(seeded(t))
	w := NewEvaluator(Options{30, true, true}.Score(), nil)
	fresh := make([]float64, len(row.s))
	w.Eval(fresh, row)
	require.Zero(t, testing.AllocsPerRun(10, func() { w.Eval(fresh, row) }))
	w.Eval(row.s, row)
	require.Equal(t, fresh, row.s)
}
