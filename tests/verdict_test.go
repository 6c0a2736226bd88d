package tests

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// expectation is what the reference says of a problem, for all tiers of one
// storage type.
type expectation struct {
	once        sync.Once
	err         error
	sample      []attention.Rows
	ref, refLSE []float64
	low, lowLSE []float32
	noise       []float64
	noiseLSE    []float64
}

// expect computes the reference once.
func (x *expectation) expect(p *problem) error {
	x.once.Do(func() {
		cfg, args := p.config(p.tt), p.hostArgs(p.image)
		if x.sample = attention.AllRows(p.shape); p.sampleMax > 0 {
			x.sample = accuracy.Sample(p.shape, p.sampleMax, p.seedValue())
		}
		if x.ref, x.refLSE, x.err = attention.ReferenceSample(cfg, args, x.sample); x.err == nil {
			x.low, x.lowLSE, x.err = accuracy.Low(cfg, args, x.sample)
		}
		if x.err == nil {
			x.noise, x.noiseLSE, x.err = accuracy.Noise(cfg, args, x.sample)
		}
	})
	return x.err
}

// judge holds what a call left in memory to the rules of package accuracy, and
// rows with nothing to attend to to exactly 0 and -Inf.
func (x *expectation) judge(p *problem, after [][]byte) error {
	if err := x.expect(p); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	o, lse, err := p.gather(after, x.sample)
	if err != nil {
		return err
	}
	i := 0
	for _, s := range x.sample {
		for _, row := range s.Rows {
			if p.causal.Visible(row, p.shape.Sq, p.shape.Sk) == 0 {
				if err := nothing(o[i*p.dv:][:p.dv], lse, i); err != nil {
					return fmt.Errorf("batch %d, head %d, row %d attends to nothing: %w", s.B, s.H, row, err)
				}
			}
			i++
		}
	}
	limits := accuracy.Forward(p.tt.dtype)
	limits.Noise = x.noise
	verdict := accuracy.Judge(limits, p.dv, o, x.ref, x.low)
	if !verdict.Pass() {
		return fmt.Errorf("O: %v", verdict.Reasons())
	}
	if lse == nil {
		return nil
	}
	limits = accuracy.ForwardLSE(p.tt.dtype)
	limits.Noise = x.noiseLSE
	verdict = accuracy.Judge(limits, 1, lse, x.refLSE, x.lowLSE)
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

// gather reads the rows of a sample; lse is nil when the problem has none.
func (p *problem) gather(images [][]byte, sample []attention.Rows) (o, lse []float32, err error) {
	view, err := p.view(images, tensorO)
	if err != nil {
		return nil, nil, err
	}
	n := attention.CountRows(sample)
	o = make([]float32, n*p.dv)
	var lseView attention.HostView
	if p.lse {
		if lseView, err = p.view(images, tensorLSE); err != nil {
			return nil, nil, err
		}
		lse = make([]float32, n)
	}
	i := 0
	for _, s := range sample {
		for _, row := range s.Rows {
			view.ReadRow(o[i*p.dv:], s.B, s.H, row)
			if p.lse {
				lseView.ReadRow(lse[i:], s.B, s.H, row)
			}
			i++
		}
	}
	return o, lse, nil
}

// sameRows compares the outputs of two calls bit by bit, in the query rows that
// attend to at most limit keys.
func (p *problem) sameRows(a, b [][]byte, limit int) error {
	for _, i := range []int{tensorO, tensorLSE} {
		if p.place.slots[i].memory < 0 {
			continue
		}
		x, err := p.read(a, i)
		if err != nil {
			return err
		}
		y, err := p.read(b, i)
		if err != nil {
			return err
		}
		_, _, dim := p.sizes(i)
		row := 0
		different := 0
		var first error
		p.eachRow(i, func(batch, h, r int) {
			at := row * dim
			row++
			if p.causal.Visible(r, p.shape.Sq, p.shape.Sk) > limit {
				return
			}
			for c := range dim {
				if math.Float32bits(x[at+c]) == math.Float32bits(y[at+c]) {
					continue
				}
				if different == 0 {
					first = fmt.Errorf("%s at batch %d, head %d, row %d, column %d was %v and is %v",
						tensorNames[i], batch, h, r, c, x[at+c], y[at+c])
				}
				different++
			}
		})
		if different > 0 {
			return fmt.Errorf("%d elements differ: %w", different, first)
		}
	}
	return nil
}

// sameMemory compares everything two calls left behind, apart from what was
// different before.
func sameMemory(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
