package attention_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// everyExponent lists positive float32: the ends of the range, and one of every few exponents.
func everyExponent(r *rand.Rand) []float32 {
	const most = math.MaxFloat32 / math.Log2E // times log2(e), the largest finite number
	list := []float32{math.SmallestNonzeroFloat32, 1e-40, 9e-39, 0x1p-126, 0x1p-100, 0x1p104, 0x1p126, most * (1 - 0x1p-20), most * (1 + 0x1p-20), math.MaxFloat32}
	for e := -148 + r.IntN(4); e < 128; e += 4 {
		list = append(list, float32(math.Ldexp(1+r.Float64(), e)))
	}
	return list
}

// scaledProblem has random tensors whose products Q K^T are about 2^exponent.
func scaledProblem(cfg attention.Config, exponent int, withBias bool) *hostProblem {
	p := newProblem(cfg, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 5, Sk: 19}, attention.BHSD, 3)
	for i, x := range []*attention.Tensor{&p.Q, &p.K} {
		numbers := make([]float32, len(x.Host)/cfg.DType.Size())
		cfg.DType.Decode(numbers, x.Host)
		for j := range numbers {
			numbers[j] = float32(math.Ldexp(float64(numbers[j]), (exponent+i)/2))
		}
		cfg.DType.Encode(x.Host, numbers)
	}
	if withBias {
		p.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 4*p.Sk)}, DType: attention.F32, Batches: 1, Heads: 1, Rows: 1}
		numbers := make([]float32, p.Sk)
		for i := range numbers {
			numbers[i] = float32(i%3) / 4
		}
		half.EncodeF32(p.Bias.Host, numbers)
	}
	return p
}

// backward is the backward call of p, with dO = V of the same rows and gradients of NaN.
func (p *hostProblem) backward() attention.BackwardArgs {
	a := attention.BackwardArgs{Args: p.Args}
	like := func(x attention.Tensor) attention.Tensor {
		x.Host = nans(len(x.Host) / 4)
		return x
	}
	a.DQ, a.DK, a.DV, a.DO = like(p.Q), like(p.K), like(p.V), like(p.O)
	numbers := make([]float32, len(a.DO.Host)/4)
	for i := range numbers {
		numbers[i] = float32(i%7)/4 - 0.75
	}
	half.EncodeF32(a.DO.Host, numbers)
	return a
}

// near compares numbers with the float64 formula, relative to the largest of them and to least.
func near(t *testing.T, want []float64, got []float32, limit, least float64, what string, args ...any) bool {
	t.Helper()
	most := max(1, least)
	for _, x := range want {
		if !math.IsInf(x, 0) && !math.IsNaN(x) {
			most = max(most, math.Abs(x))
		}
	}
	if most > math.MaxFloat32 {
		return true // no float32 holds them
	}
	for i, x := range want {
		if math.IsNaN(x) != (got[i] != got[i]) || float32(x) != got[i] && math.Abs(x-float64(got[i])) > limit*most {
			t.Errorf("%s: element %d is %v, want %v", fmt.Sprintf(what, args...), i, got[i], x)
			return false
		}
	}
	return true
}

// judge compares O, LSE and, where there are any, the gradients of a call with the formula.
func (p *hostProblem) judge(t *testing.T, a *attention.BackwardArgs, limit float64) {
	t.Helper()
	o, lse, err := attention.Reference(p.cfg, p.Args)
	require.NoError(t, err)
	if fast := p.cfg.Tier == attention.TierCoopMat || p.cfg.Tier == attention.TierCoopMat2; fast && p.cfg.Softcap == 0 && p.Bias == nil {
		dim := len(o) / len(lse)
		for row, score := range lse { // no less than the row max, and near it at such magnitudes
			if math.Abs(score) > attention.MaxFastScore {
				lse[row] = math.NaN()
				for i := range dim {
					o[row*dim+i] = math.NaN()
				}
			}
		}
	}
	gotO, gotLSE := p.outputs()
	near(t, o, gotO, limit, 1, "O of %v", p)
	near(t, lse, gotLSE, 1e-5, 1, "LSE of %v", p)
	if a == nil {
		return
	}
	g, err := attention.ReferenceBackward(p.cfg, *a)
	require.NoError(t, err)
	d, scale := p.cfg.HeadDim, math.Abs(float64(p.cfg.ScaleValue()))
	for _, x := range []struct {
		name       string
		want       []float64
		got        attention.Tensor
		heads, seq int
		factor     float64 // of dS, whose sums cancel
	}{
		{"dQ", g.DQ, a.DQ, p.Hq, p.Sq, scale * largest(p.K, p.cfg.DType)},
		{"dK", g.DK, a.DK, p.KVHeads(), p.Sk, scale * largest(p.Q, p.cfg.DType)},
		{"dV", g.DV, a.DV, p.KVHeads(), p.Sk, 1},
	} {
		got, view := make([]float32, len(x.want)), p.view(x.got, x.heads, x.seq, d)
		for h := range x.heads {
			for r := range x.seq {
				view.ReadRow(got[(h*x.seq+r)*d:], 0, h, r)
			}
		}
		near(t, x.want, got, limit, x.factor, "%s of %v", x.name, p)
	}
}

// largest is the largest magnitude of a tensor's numbers.
func largest(x attention.Tensor, dtype attention.DType) (most float64) {
	numbers := make([]float32, len(x.Host)/dtype.Size())
	dtype.Decode(numbers, x.Host)
	for _, n := range numbers {
		if m := math.Abs(float64(n)); m > most { // not the NaN around the rows
			most = m
		}
	}
	return most
}

// scalarCase is a scale and a softcap of the sweep.
type scalarCase struct {
	cfg      attention.Config
	exponent int // of the products
	bias     bool
}

// scalarCases lists the calls of the sweep: every softcap, and every scale without and with
// one, where scores have no bias and where they have one.
func scalarCases(r *rand.Rand, cfg attention.Config) (list []scalarCase) {
	for _, bias := range []bool{false, true} {
		for _, x := range everyExponent(r) {
			c := cfg
			c.Softcap = x
			list = append(list, scalarCase{c, 3, bias})
			exponent := 2
			if cfg.DType == attention.F32 { // scores near 1, if float32 holds products and scale
				exponent = max(-100, min(100, -math.Ilogb(float64(x))))
			}
			for _, sign := range []float32{1, -1} {
				c = cfg
				c.Scale = attention.ScaleOf(sign * x)
				list = append(list, scalarCase{c, exponent, bias})
			}
			c.Softcap = 30
			list = append(list, scalarCase{c, exponent, bias})
		}
		c := cfg
		c.Scale = attention.ScaleOf(0)
		list = append(list, scalarCase{c, 3, bias})
	}
	return list
}

// Every finite scale and softcap gives the numbers of the float64 formula, forward and
// backward, or is refused by name.
func TestScalesAndSoftcapsOfEveryExponent(t *testing.T) {
	seed := testlevel.Seed(t)
	base := attention.Config{HeadDim: 16, Causal: attention.BottomRight, Tuning: attention.TuningOff}
	t.Run("cpu", func(t *testing.T) {
		testlevel.HostOnly(t)
		cfg := base
		cfg.DType = attention.F32
		for _, c := range scalarCases(rand.New(rand.NewPCG(seed, 1)), cfg) {
			p := scaledProblem(c.cfg, c.exponent, c.bias)
			a := p.backward()
			require.NoError(t, attention.ForwardCPU(c.cfg, p.Args))
			require.NoError(t, attention.BackwardCPU(c.cfg, a))
			p.judge(t, &a, 1e-4)
		}
	})
	all := testlevel.Get() == testlevel.All || testlevel.IsExhaustive()
	for _, x := range []struct {
		tier  attention.Tier
		dtype attention.DType
		first bool // in the first share, but on SwiftShader: the others compile for 40 s on the CPU
		gpus  bool // at level all alone
	}{{attention.TierScalar, attention.F32, true, false}, {attention.TierCoopMat, attention.F16, false, false}, {attention.TierCoopMat2, attention.F16, false, true}} {
		if !testlevel.Share(x.first && os.Getenv("VKATTN_DRIVER") != "swiftshader") || x.gpus && !all {
			continue
		}
		t.Run(x.tier.String(), func(t *testing.T) {
			dev := testdevice.Open(t)
			s := testdevice.Stream(t, dev, "scalars")
			cfg := base
			cfg.Tier, cfg.DType = x.tier, x.dtype
			if op, err := attention.New(attention.On(dev), cfg); errors.Is(err, attention.ErrUnsupported) && x.tier > attention.TierScalar {
				return // the driver lacks it
			} else {
				require.NoError(t, err)
				require.NoError(t, op.Close())
			}
			computed, refused := 0, 0
			for _, c := range scalarCases(rand.New(rand.NewPCG(seed, 2)), cfg) {
				if math.Ldexp(math.Abs(float64(c.cfg.ScaleValue())), c.exponent+4) > math.MaxFloat32 {
					continue // no float32 holds the scores
				}
				if err := onDevice(t, dev, s, c); err != nil {
					require.ErrorIs(t, err, attention.ErrUnsupported)
					require.ErrorContains(t, err, "scale", "%v", c.cfg)
					refused++
					continue
				}
				computed++
			}
			t.Logf("%d calls computed, %d refused", computed, refused)
			require.Greater(t, computed, refused)
		})
	}
}

// onDevice computes a call of the sweep on a device and judges it, or returns the refusal.
// Calls of float32 have gradients.
func onDevice(t *testing.T, dev *vk.Device, s *vk.Stream, c scalarCase) error {
	t.Helper()
	op, err := attention.New(attention.On(dev), c.cfg)
	if err != nil {
		return err
	}
	t.Cleanup(func() { require.NoError(t, op.Close()) }) // the calls share their pipelines
	p := scaledProblem(c.cfg, c.exponent, c.bias)
	d := backwardDevice{dev: dev, stream: s}
	if c.cfg.DType != attention.F32 {
		u := d.upload(t, attention.BackwardArgs{Args: p.Args})
		err := op.Forward(attention.OnStream(s), u.Args)
		u.download(t, &d)
		if err == nil {
			p.judge(t, nil, 4e-3)
		}
		return err
	}
	a := p.backward()
	u := d.upload(t, a)
	if err = op.Forward(attention.OnStream(s), u.Args); err == nil {
		require.NoError(t, s.Barrier())
		err = op.Backward(attention.OnStream(s), u.BackwardArgs)
	}
	require.NoError(t, s.Wait(context.Background()))
	u.download(t, &d)
	if err == nil {
		gradients := &a
		if math.Abs(math.Ldexp(float64(c.cfg.ScaleValue()), c.exponent)) > 0x1p20 {
			gradients = nil // rounding an LSE of that size makes P anything
		}
		p.judge(t, gradients, 1e-4)
	}
	return err
}
