package cases

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/oracle"
)

// Truth is the float64 reference of a problem, for all tiers of one storage type. The zero
// value is ready to use and safe for concurrent use.
type Truth struct {
	once sync.Once
	err  error

	// To judge other rows than the case's, set Sample before the first use. If their
	// reference is known, set Ref and RefLSE too.
	Sample      []attention.Rows
	Ref, RefLSE []float64

	Low, LowLSE     []float32
	Noise, NoiseLSE []float64
}

// lowLimit bounds the NMSE of plain attention in a storage type, generously. Above it, low
// and the reference compute different things.
var lowLimit = map[attention.DType]float64{attention.F16: 1e-3, attention.BF16: 2e-2, attention.F32: 1e-8}

// Expect computes the reference once.
func (x *Truth) Expect(p *Problem) error {
	x.once.Do(func() {
		cfg, args := p.Config(Target{DType: p.DType}), p.HostArgs(p.Image)
		if x.Sample == nil {
			x.Sample = p.SampleRows()
		}
		if x.Ref == nil {
			x.Ref, x.RefLSE, x.err = attention.ReferenceSample(cfg, args, x.Sample)
		}
		if x.err == nil {
			x.Low, x.LowLSE, x.err = oracle.Low(cfg, args, x.Sample)
		}
		if x.err == nil {
			x.Noise, x.NoiseLSE, x.err = oracle.Noise(cfg, args, x.Sample)
		}
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

// Judge applies the rules of package accuracy to what a call left in memory. Rows with
// nothing to attend to must be exactly 0 and -Inf.
func (x *Truth) Judge(p *Problem, after [][]byte) error {
	o, lse, err := x.Reports(p, after)
	if err != nil {
		return err
	}
	return x.Wrong(o, lse)
}

// Wrong reports which rule O or LSE breaks, and where; lse may be nil. A problem without
// rows breaks none.
func (x *Truth) Wrong(o accuracy.Report, lse *accuracy.Report) error {
	switch {
	case len(x.Ref) == 0:
		return nil
	case !o.Pass():
		return fmt.Errorf("wrong O: %v; %s", o.Reasons(), x.worstRow(o))
	case lse != nil && !lse.Pass():
		return fmt.Errorf("wrong LSE: %v; %s", lse.Reasons(), x.worstRow(*lse))
	}
	return nil
}

// Reports is Judge with the numbers and without the verdict, which is Wrong's. If the
// problem has no rows they are zero; lse is nil if it has no LSE. The error names a row
// with nothing to attend to whose O or LSE is not exact.
func (x *Truth) Reports(p *Problem, after [][]byte) (o accuracy.Report, lse *accuracy.Report, err error) {
	if err := x.Expect(p); err != nil {
		return o, nil, fmt.Errorf("reference: %w", err)
	}
	got, gotLSE := p.Gather(after, x.Sample)
	if len(got) == 0 {
		return o, nil, nil
	}
	i := 0
	for _, s := range x.Sample {
		for _, row := range s.Rows {
			if math.IsInf(x.RefLSE[i], -1) {
				if err := nothing(got[i*p.Dv:][:p.Dv], gotLSE, i); err != nil {
					return o, nil, fmt.Errorf("sequence %d, head %d, row %d attends to nothing: %w", s.B, s.H, row, err)
				}
			}
			i++
		}
	}
	limits := accuracy.Forward(p.DType)
	limits.Noise = x.Noise
	o = accuracy.Judge(limits, p.Dv, got, x.Ref, x.Low)
	if !p.LSE {
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

// worstRow names the row with the largest error.
func (x *Truth) worstRow(r accuracy.Report) string {
	n := r.Whole.Worst / r.Width
	for _, s := range x.Sample {
		if n < len(s.Rows) {
			return fmt.Sprintf("the worst of all in sequence %d, head %d, row %d", s.B, s.H, s.Rows[n])
		}
		n -= len(s.Rows)
	}
	return ""
}

// SampleRows are the rows to judge: all of them, or about SampleMax.
func (p *Problem) SampleRows() []attention.Rows {
	if p.Seqs == nil {
		if p.SampleMax > 0 {
			return accuracy.Sample(p.Shape, p.SampleMax, p.SeedValue())
		}
		return attention.AllRows(p.Shape)
	}
	var sample []attention.Rows
	for b, s := range p.sequences() {
		if s.Rows == 0 {
			continue
		}
		one := attention.Shape{B: 1, Hq: p.Hq, Hkv: p.KVHeads(), Sq: s.Rows, Sk: max(s.Keys, 1)}
		rows := attention.AllRows(one)
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
func (p *Problem) Gather(images [][]byte, sample []attention.Rows) (o, lse []float32) {
	_, rows := p.queryExtent()
	size := int64(p.DType.Size())
	for _, s := range sample {
		for _, row := range s.Rows {
			batch, at := p.queryRow(s.B, row)
			e := size * p.element(&p.args.O, p.Hq, rows, p.Dv, batch, s.H, at)
			o = append(o, decodeFloats(images[p.piece[pieceO]][e:e+size*int64(p.Dv)], p.DType)...)
			if p.LSE {
				e := 4 * p.element(&p.args.LSE, p.Hq, rows, 1, batch, s.H, at)
				lse = append(lse, math.Float32frombits(binary.LittleEndian.Uint32(images[p.piece[pieceLSE]][e:])))
			}
		}
	}
	return o, lse
}
