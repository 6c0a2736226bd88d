package oracle_test

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// chain is plain attention as the docs of Low say it, one operation after the other: the definition of what is
// rounded where. It has no tiles, no lists and no expression.
func chain(x *chainCall, round func(float32) float32) (o, lse []float32) {
	largest := float32(math.MaxFloat32)
	if x.cfg.DType == attention.F16 {
		largest = 65504
	}
	d, s := x.cfg.HeadDim, x.a.Shape
	for h := range s.Hq {
		for i := range s.Sq {
			p, most := make([]float32, s.Sk), float32(math.Inf(-1))
			for j := range p {
				var sum float32
				for c := range d {
					sum += x.q[(h*s.Sq+i)*d+c] * x.k[(h*s.Sk+j)*d+c]
				}
				cap := x.cfg.Softcap
				y := cap * float32(math.Tanh(float64(x.cfg.ScaleValue()*sum/cap)))
				y += x.bias[(h*s.Sq+i)*s.Sk+j]
				distance := float32(math.Abs(float64(i + s.Sk - s.Sq - j)))
				y -= x.slopes[h] * distance
				p[j] = round(max(min(y, largest), -largest))
				most = max(most, p[j])
			}
			var sum float32
			for j, y := range p {
				p[j] = float32(math.Exp(float64(y - most)))
				sum += p[j]
			}
			row := make([]float32, d)
			for j := range p {
				for c := range row {
					row[c] += round(p[j]/sum) * x.v[(h*s.Sk+j)*d+c]
				}
			}
			for _, y := range row {
				o = append(o, round(y))
			}
			lse = append(lse, most+float32(math.Log(float64(sum))))
		}
	}
	return o, lse
}

type chainCall struct {
	cfg                   attention.Config
	a                     attention.Args
	q, k, v, bias, slopes []float32
}

// newChainCall has scores of all sizes up to some hundreds, and with a large Q beyond the range of f16.
func newChainCall(dtype attention.DType) *chainCall {
	x := &chainCall{cfg: attention.Config{DType: dtype, HeadDim: 16, Softcap: 700, Align: attention.BottomRight}}
	s := attention.Shape{B: 1, Hq: 2, Sq: 20, Sk: 37}
	numbers := func(n int, seed uint64, size float32, dtype attention.DType) ([]byte, []float32) {
		b, list := inputs.New(int64(n), dtype, inputs.Normal, seed), make([]float32, n)
		dtype.Decode(list, b)
		for i := range list {
			list[i] *= size
		}
		dtype.Encode(b, list)
		dtype.Decode(list, b)
		return b, list
	}
	d := x.cfg.HeadDim
	x.a.Shape = s
	x.a.Q.Host, x.q = numbers(s.Hq*s.Sq*d, 1, 8, dtype)
	x.a.K.Host, x.k = numbers(s.Hq*s.Sk*d, 2, 1, dtype)
	x.a.V.Host, x.v = numbers(s.Hq*s.Sk*d, 3, 1, dtype)
	bias := &attention.Bias{DType: attention.F32}
	bias.Host, x.bias = numbers(s.Hq*s.Sq*s.Sk, 4, 1, attention.F32)
	x.bias[3] = 9e4 // more than f16 holds
	half.EncodeF32(bias.Host, x.bias)
	x.a.Bias = bias
	x.a.ALiBi.Host, x.slopes = numbers(s.Hq, 5, 0.1, attention.F32)
	return x
}

// Low is the chain of its docs, bit by bit, and with a fault planted in a rounding it is not.
func TestLowIsTheChainOfItsDocs(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("compilers for other processors fuse a multiplication and an addition")
	}
	identity := func(x float32) float32 { return x }
	short := []attention.DType{attention.F16, attention.BF16} // they round the score itself more coarsely
	long := []attention.DType{attention.F32}                  // it has no other roundings
	for dtype, round := range map[attention.DType]func(float32) float32{
		attention.F16:  func(x float32) float32 { return half.F16ToFloat32(half.F16FromFloat32(x)) },
		attention.BF16: func(x float32) float32 { return half.BF16ToFloat32(half.BF16FromFloat32(x)) },
		attention.F32:  identity,
	} {
		x := newChainCall(dtype)
		o, lse := chain(x, round)
		for _, f := range []struct {
			name  string
			plant func(*oracle.Roundings)
			blind []attention.DType // types in which it changes nothing
		}{
			{name: "none", plant: func(*oracle.Roundings) {}},
			{name: "operations of the score are not rounded", blind: short, plant: func(r *oracle.Roundings) {
				r.Score = nil
			}},
			{name: "operations of the score are rounded to zero", blind: short, plant: func(r *oracle.Roundings) {
				r.Score = func(y float64) float64 {
					z := float32(y)
					if math.Abs(float64(z)) > math.Abs(y) {
						z = math.Nextafter32(z, 0)
					}
					return float64(z)
				}
			}},
			{name: "operations of the score are rounded to bf16", plant: func(r *oracle.Roundings) {
				r.Score = func(y float64) float64 {
					return float64(half.BF16ToFloat32(half.BF16FromFloat32(float32(y))))
				}
			}},
			{name: "scores are not rounded", blind: long, plant: func(r *oracle.Roundings) {
				r.Store = identity
			}},
			{name: "P and O are not rounded", blind: long, plant: func(r *oracle.Roundings) {
				r.Round = identity
			}},
			{name: "scores beyond f16 become Inf",
				blind: []attention.DType{attention.BF16, attention.F32}, plant: func(r *oracle.Roundings) {
					r.Store = r.Round
				}},
		} {
			if slices.Contains(f.blind, dtype) {
				continue
			}
			t.Run(dtype.String()+", "+f.name, func(t *testing.T) {
				got, gotLSE, err := oracle.LowWith(problem.Config(x.cfg), x.a, attention.AllRows(x.a.Shape), f.plant)
				require.NoError(t, err)
				if f.name == "none" {
					require.Equal(t, o, got)
					require.Equal(t, lse, gotLSE)
					direct, directLSE, err := oracle.Low(problem.Config(x.cfg), x.a, attention.AllRows(x.a.Shape))
					require.NoError(t, err)
					require.Equal(t, got, direct)
					require.Equal(t, gotLSE, directLSE)
					return
				}
				require.False(t, slices.Equal(o, got))
			})
		}
	}
}
