package cases

import (
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// Truth is what the float64 reference says of a problem, for all tiers of one
// storage type. The zero value is ready; it may be used by many goroutines.
type Truth struct {
	once sync.Once
	err  error

	// Set Sample, or Sample, Ref and RefLSE, before the first use to have other
	// rows than the case's, or those that are known already.
	Sample      []attention.Rows
	Ref, RefLSE []float64

	Low, LowLSE     []float32
	Noise, NoiseLSE []float64
}

// Expect computes the reference once.
func (x *Truth) Expect(p *Problem) error {
	x.once.Do(func() {
		cfg, args := p.Config(Target{DType: p.DType}), p.HostArgs(p.Image)
		switch {
		case x.Sample != nil:
		case p.SampleMax > 0:
			x.Sample = accuracy.Sample(p.Shape, p.SampleMax, p.SeedValue())
		default:
			x.Sample = attention.AllRows(p.Shape)
		}
		if x.Ref == nil {
			x.Ref, x.RefLSE, x.err = attention.ReferenceSample(cfg, args, x.Sample)
		}
		if x.err == nil {
			x.Low, x.LowLSE, x.err = accuracy.Low(cfg, args, x.Sample)
		}
		if x.err == nil {
			x.Noise, x.NoiseLSE, x.err = accuracy.Noise(cfg, args, x.Sample)
		}
	})
	return x.err
}

// Judge holds what a call left in memory to the rules of package accuracy, and
// rows with nothing to attend to to exactly 0 and -Inf.
func (x *Truth) Judge(p *Problem, after [][]byte) error {
	o, lse, err := x.Reports(p, after)
	if err != nil {
		return err
	}
	return Wrong(o, lse)
}

// Wrong is what is wrong with an O and an LSE; lse may be nil.
func Wrong(o accuracy.Report, lse *accuracy.Report) error {
	switch {
	case !o.Pass():
		return fmt.Errorf("wrong O: %v", o.Reasons())
	case lse != nil && !lse.Pass():
		return fmt.Errorf("wrong LSE: %v", lse.Reasons())
	}
	return nil
}

// Reports is Judge with the numbers; lse is nil when the problem has none. The
// error is that of a row with nothing to attend to that shows something.
func (x *Truth) Reports(p *Problem, after [][]byte) (o accuracy.Report, lse *accuracy.Report, err error) {
	if err := x.Expect(p); err != nil {
		return o, nil, fmt.Errorf("reference: %w", err)
	}
	got, gotLSE, err := p.Gather(after, x.Sample)
	if err != nil {
		return o, nil, err
	}
	i := 0
	for _, s := range x.Sample {
		for _, row := range s.Rows {
			if p.Causal.Visible(row, p.Shape.Sq, p.Shape.Sk) == 0 {
				if err := nothing(got[i*p.Dv:][:p.Dv], gotLSE, i); err != nil {
					return o, nil, fmt.Errorf("batch %d, head %d, row %d attends to nothing: %w", s.B, s.H, row, err)
				}
			}
			i++
		}
	}
	limits := accuracy.Forward(p.DType)
	limits.Noise = x.Noise
	o = accuracy.Judge(limits, p.Dv, got, x.Ref, x.Low)
	if gotLSE == nil {
		return o, nil, nil
	}
	limits = accuracy.ForwardLSE(p.DType)
	limits.Noise = x.NoiseLSE
	l := accuracy.Judge(limits, 1, gotLSE, x.RefLSE, x.LowLSE)
	return o, &l, nil
}

func nothing(o, lse []float32, i int) error {
	for _, v := range o {
		if v != 0 {
			return fmt.Errorf("its O has %v, want 0", v)
		}
	}
	if lse != nil && !math.IsInf(float64(lse[i]), -1) {
		return fmt.Errorf("its LSE is %v, want -Inf", lse[i])
	}
	return nil
}

// Gather reads the rows of a sample; lse is nil when the problem has none.
func (p *Problem) Gather(images [][]byte, sample []attention.Rows) (o, lse []float32, err error) {
	view, err := p.View(images, TensorO)
	if err != nil {
		return nil, nil, err
	}
	n := attention.CountRows(sample)
	o = make([]float32, n*p.Dv)
	var lseView attention.HostView
	if p.LSE {
		if lseView, err = p.View(images, TensorLSE); err != nil {
			return nil, nil, err
		}
		lse = make([]float32, n)
	}
	i := 0
	for _, s := range sample {
		for _, row := range s.Rows {
			view.ReadRow(o[i*p.Dv:], s.B, s.H, row)
			if p.LSE {
				lseView.ReadRow(lse[i:], s.B, s.H, row)
			}
			i++
		}
	}
	return o, lse, nil
}
