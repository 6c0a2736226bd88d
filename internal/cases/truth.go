package cases

import (
	"errors"
	"fmt"
	"sync"

	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Truth is the float64 reference of a problem, for all tiers of one storage type. The zero
// value is ready to use and safe for concurrent use.
//
// To judge other rows than the case's, set Sample before the first use. If their
// reference is known, set Ref and RefLSE too.
type Truth struct {
	accuracy.Expected
	once sync.Once
	err  error
}

// lowLimit bounds the NMSE of plain attention in a storage type, generously. Above it, low
// and the reference compute different things.
var lowLimit = map[problem.DType]float64{problem.F16: 1e-3, problem.BF16: 2e-2, problem.F32: 1e-8}

// Expect computes the reference once.
func (x *Truth) Expect(p *Problem) error {
	x.once.Do(func() {
		if x.Sample == nil {
			x.Sample = p.SampleRows()
		}
		x.err = x.Expected.Expect(p.Config(Target{DType: p.DType}), p.HostArgs(p.Image))
		if x.err == nil && p.Seqs != nil && p.Data <= Uniform && len(x.Ref) > 0 {
			r := accuracy.Judge(accuracy.Forward(p.DType), p.Dv, x.Low, x.Ref, x.Low)
			if !r.Whole.Kind || r.Whole.NMSE > lowLimit[p.DType] {
				x.err = fmt.Errorf("plain attention in %v and the reference do not agree: NMSE %.3g, %d elements of another kind",
					p.DType, r.Whole.NMSE, r.Whole.WrongKind)
			}
		}
	})
	return x.err
}

// Judge applies the rules of package accuracy to what a call left in memory.
func (x *Truth) Judge(p *Problem, after [][]byte) error {
	v, err := x.Verdict(p, after)
	if err == nil && !v.Pass() {
		return errors.New(v.String())
	}
	return err
}

// Verdict is Judge with the numbers.
func (x *Truth) Verdict(p *Problem, after [][]byte) (*accuracy.Verdict, error) {
	if err := x.Expect(p); err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return x.Expected.Judge(p.Gather(after, x.Sample)), nil
}

// SampleRows are the rows to judge: all of them, or about SampleMax.
func (p *Problem) SampleRows() []problem.Rows {
	if p.Seqs == nil {
		if p.SampleMax > 0 {
			return accuracy.Sample(p.Shape, p.SampleMax, p.SeedValue())
		}
		return tensors.AllRows(p.Shape)
	}
	var sample []problem.Rows
	for b, s := range p.sequences() {
		if s.Rows == 0 {
			continue
		}
		one := problem.Shape{B: 1, Hq: p.Hq, Hkv: p.KVHeads(), Sq: s.Rows, Sk: max(s.Keys, 1)}
		rows := tensors.AllRows(one)
		if p.SampleMax > 0 {
			// Each sequence gets its share by rows, and at least a few.
			var all int
			for _, o := range p.sequences() {
				all += o.Rows
			}
			rows = accuracy.Sample(one, max(p.SampleMax*s.Rows/all, 2), p.seed+uint64(b))
		}
		for _, r := range rows {
			r.B = b
			sample = append(sample, r)
		}
	}
	return sample
}

// Gather reads rows of O and LSE; lse is nil if the problem has none.
func (p *Problem) Gather(images [][]byte, sample []problem.Rows) (o, lse []float32) {
	for i, to := range map[int]*[]float32{TensorO: &o, TensorLSE: &lse} {
		if p.tensors[i].image < 0 {
			continue
		}
		view, err := p.View(images, i)
		if err != nil {
			panic(err) // images are in host memory
		}
		n := tensors.CountRows(sample)
		*to = make([]float32, 0, n*view.Dim())
		for _, s := range sample {
			for _, row := range s.Rows {
				batch, at := p.queryRow(s.B, row)
				first := len(*to)
				*to = (*to)[:first+view.Dim()]
				view.ReadRow((*to)[first:], batch, s.H, at)
			}
		}
	}
	return o, lse
}
