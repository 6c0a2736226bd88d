package accuracy

import (
	"math"

	"vkattn/attention"
	"vkattn/internal/tensors"
)

// keysPerHead is the number of keys sampled of a KV head, keyHeads of how many heads.
const keysPerHead, keyHeads = 32, 2

// gradientSample computes gradients of some rows and keys, in float64 and by plain
// attention in the storage type, from the inputs of the call. Of one head at a time it holds
// all rows of Q and dO, or all keys of K and V, in float32.
type gradientSample struct {
	*gradientCheck
	dO, dLSE attention.HostView
	dlse     bool
}

// sampled compares about opt.Rows rows, and some keys of the first and the last head among
// theirs.
func (g *gradientCheck) sampled(opt Options) error {
	a, dv := &g.a, g.cfg.ValueDim()
	n := opt.Rows
	if n == 0 {
		n = sampledRows(g.cfg, a.Shape)
	}
	sample, err := SampleArgs(a.Args, n, opt.Seed)
	if err != nil {
		return err
	}
	sample = g.within(sample)
	if err := g.sampleRoom(attention.CountRows(sample)); err != nil {
		return err
	}
	s := gradientSample{gradientCheck: g, dlse: a.DLSE.Given()}
	_, extent := tensors.QueryExtent(&a.Args)
	if s.dO, err = attention.ViewHost(a.DO, g.cfg.DType, a.Hq, extent, dv); err != nil {
		return err
	}
	if s.dlse {
		if s.dLSE, err = attention.ViewHost(a.DLSE, attention.F32, a.Hq, extent, 1); err != nil {
			return err
		}
	}
	want := tensors.GradientsOf(a)
	if want.Q {
		if err := s.rows(sample); err != nil {
			return err
		}
	}
	if want.K || want.V {
		if err := s.keysOf(sample, want, opt.Seed); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		wanted bool
		name   string
	}{{want.Bias, "dBias"}, {want.Sinks, "dSinks"}} {
		if t.wanted {
			g.judge(&gradientRows{name: t.name, refused: "the problem is sampled"})
		}
	}
	return nil
}

// dot is the product of two rows, in float64 and in float32.
func dot(x, y []float32) (exact float64, low float32) {
	for i, v := range x {
		exact += float64(v) * float64(y[i])
		low += v * y[i]
	}
	return exact, low
}

// readDLSE is the gradient of a row's LSE.
func (s *gradientSample) readDLSE(b, h, row int) float32 {
	if !s.dlse {
		return 0
	}
	var one [1]float32
	batch, at := s.queryRow(b, row)
	s.dLSE.ReadRow(one[:], batch, h, at)
	return one[0]
}

// delta is the product of dO with O in the storage type, and twice the standard deviation of what rounding O does to it.
func (c *call) delta(dO, o []float32) (delta float32, off float64) {
	var squares float64
	for j, x := range o {
		if x != 0 { // dO may hold anything where the row attends to its sink alone
			rounded := c.round(x)
			delta += dO[j] * rounded
			e := float64(dO[j]) * float64(rounded-x)
			squares += e * e
		}
	}
	return delta, 2 * math.Sqrt(squares)
}

// lowGradient is the gradient of a score in the storage type.
func (s *gradientSample) lowGradient(p, dP, delta, dLSE, slope float32) float32 {
	x := s.round(p * (dP - delta + dLSE))
	if s.sloped() {
		x = s.round(x * slope)
	}
	return x
}
