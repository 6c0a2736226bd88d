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
	once        sync.Once
	err         error
	Sample      []attention.Rows
	Ref, RefLSE []float64
	Low, LowLSE []float32
	Noise       []float64
	NoiseLSE    []float64
}

// Expect computes the reference once.
func (x *Truth) Expect(p *Problem) error {
	x.once.Do(func() {
		cfg, args := p.Config(Target{DType: p.DType}), p.HostArgs(p.Image)
		if x.Sample = attention.AllRows(p.Shape); p.SampleMax > 0 {
			x.Sample = accuracy.Sample(p.Shape, p.SampleMax, p.SeedValue())
		}
		if x.Ref, x.RefLSE, x.err = attention.ReferenceSample(cfg, args, x.Sample); x.err == nil {
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
	if err := x.Expect(p); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	o, lse, err := p.Gather(after, x.Sample)
	if err != nil {
		return err
	}
	i := 0
	for _, s := range x.Sample {
		for _, row := range s.Rows {
			if p.Causal.Visible(row, p.Shape.Sq, p.Shape.Sk) == 0 {
				if err := nothing(o[i*p.Dv:][:p.Dv], lse, i); err != nil {
					return fmt.Errorf("batch %d, head %d, row %d attends to nothing: %w", s.B, s.H, row, err)
				}
			}
			i++
		}
	}
	limits := accuracy.Forward(p.DType)
	limits.Noise = x.Noise
	verdict := accuracy.Judge(limits, p.Dv, o, x.Ref, x.Low)
	if !verdict.Pass() {
		return fmt.Errorf("O: %v", verdict.Reasons())
	}
	if lse == nil {
		return nil
	}
	limits = accuracy.ForwardLSE(p.DType)
	limits.Noise = x.NoiseLSE
	verdict = accuracy.Judge(limits, 1, lse, x.RefLSE, x.LowLSE)
	if !verdict.Pass() {
		return fmt.Errorf("LSE: %v", verdict.Reasons())
	}
	return nil
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
