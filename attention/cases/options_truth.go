package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// OptionsTruth is what the float64 reference says of a OptionsProblem, for all
// tiers of one storage type. The zero value is ready; it may be used by many
// goroutines.
type OptionsTruth struct {
	once sync.Once
	err  error

	Sample          []attention.Rows
	Ref, RefLSE     []float64
	Low, LowLSE     []float32
	Noise, NoiseLSE []float64
}

// Rows are the rows of a problem, or about as many of them as its case says.
func (p *OptionsProblem) Rows() []attention.Rows {
	var sample []attention.Rows
	for b, s := range p.Seqs {
		if s.Rows == 0 {
			continue
		}
		one := attention.Shape{B: 1, Hq: p.Hq, Hkv: p.Hkv, Sq: s.Rows, Sk: max(s.Keys, 1)}
		rows := attention.AllRows(one)
		if p.Sample > 0 {
			// Each sequence gets its share by rows, and a few at least.
			var all int
			for _, o := range p.Seqs {
				all += o.Rows
			}
			rows = accuracy.Sample(one, max(p.Sample*s.Rows/all, 2), p.seed+uint64(b))
		}
		for _, r := range rows {
			r.B = b
			sample = append(sample, r)
		}
	}
	return sample
}

// lowLimit is the NMSE that plain attention in a storage type stays below by far:
// above it, low and the reference do not mean the same.
var lowLimit = map[attention.DType]float64{attention.F16: 1e-3, attention.BF16: 2e-2, attention.F32: 1e-8}

// Expect computes the reference once.
func (x *OptionsTruth) Expect(p *OptionsProblem) error {
	x.once.Do(func() {
		cfg, args := p.Config(Target{DType: p.DType}), p.HostArgs(p.Image)
		x.Sample = p.Rows()
		x.Ref, x.RefLSE, x.err = attention.ReferenceSample(cfg, args, x.Sample)
		if x.err == nil {
			x.Low, x.LowLSE, x.err = accuracy.Low(cfg, args, x.Sample)
		}
		if x.err == nil {
			x.Noise, x.NoiseLSE, x.err = accuracy.Noise(cfg, args, x.Sample)
		}
		if x.err == nil && p.Data <= Uniform && len(x.Ref) > 0 {
			r := accuracy.Judge(accuracy.Forward(p.DType), p.Dv, x.Low, x.Ref, x.Low)
			if !r.Whole.Kind || r.Whole.NMSE > lowLimit[p.DType] {
				x.err = fmt.Errorf("plain attention in %v and the reference do not agree: NMSE %.3g, %d elements of another kind",
					p.DType, r.Whole.NMSE, r.Whole.WrongKind)
			}
		}
	})
	return x.err
}

// Judge holds what a call left in memory to the rules of package accuracy, and
// rows with nothing to attend to to exactly 0 and -Inf.
func (x *OptionsTruth) Judge(p *OptionsProblem, after [][]byte) error {
	_, _, err := x.Reports(p, after)
	return err
}

// Reports is Judge with the numbers. They are those of nothing where the problem has
// no rows; lse is nil when it has no LSE.
func (x *OptionsTruth) Reports(p *OptionsProblem, after [][]byte) (o accuracy.Report, lse *accuracy.Report, err error) {
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
	if o = accuracy.Judge(limits, p.Dv, got, x.Ref, x.Low); !o.Pass() {
		err = fmt.Errorf("wrong O: %v; %s", o.Reasons(), x.worstRow(o))
	}
	if !p.LSE {
		return o, nil, err
	}
	limits = accuracy.ForwardLSE(p.DType)
	limits.Noise = x.NoiseLSE
	l := accuracy.Judge(limits, 1, gotLSE, x.RefLSE, x.LowLSE)
	if err == nil && !l.Pass() {
		err = fmt.Errorf("wrong LSE: %v; %s", l.Reasons(), x.worstRow(l))
	}
	return o, &l, err
}

// place says which row of which sequence the worst element is of.
func (x *OptionsTruth) worstRow(r accuracy.Report) string {
	n := r.Whole.Worst / r.Width
	for _, s := range x.Sample {
		if n < len(s.Rows) {
			return fmt.Sprintf("the worst of all in sequence %d, head %d, row %d", s.B, s.H, s.Rows[n])
		}
		n -= len(s.Rows)
	}
	return ""
}

// Gather reads rows of O and LSE; lse is nil when the problem has none.
func (p *OptionsProblem) Gather(images [][]byte, sample []attention.Rows) (o, lse []float32) {
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

// Trespass reports the first byte that changed without being an output.
func (p *OptionsProblem) Trespass(before, after [][]byte) error {
	for m := range before {
		if p.written[m] == nil && bytes.Equal(before[m], after[m]) {
			continue
		}
		for i := range before[m] {
			if before[m][i] == after[m][i] || p.written[m] != nil && p.written[m][i] {
				continue
			}
			return fmt.Errorf("byte %d of %d of the memory of %s was overwritten: %#02x became %#02x",
				i, len(before[m]), p.nameOf(m), before[m][i], after[m][i])
		}
	}
	return nil
}

func (p *OptionsProblem) nameOf(m int) string {
	for which, piece := range p.piece {
		if piece == m {
			return pieceNames[which]
		}
	}
	return "nothing"
}

// Same compares the outputs of two calls bit by bit.
func (p *OptionsProblem) Same(a, b [][]byte) error {
	different := 0
	var first error
	p.eachOutput(func(which, seq, h, row int, at, n int64) {
		m := p.piece[which]
		x, y := a[m][at:at+n], b[m][at:at+n]
		if bytes.Equal(x, y) {
			return
		}
		if different == 0 {
			first = fmt.Errorf("%s of sequence %d, head %d, row %d was %v and is %v", pieceNames[which], seq, h, row,
				p.numbers(which, x), p.numbers(which, y))
		}
		different++
	})
	if different > 0 {
		return fmt.Errorf("%d rows differ: %w", different, first)
	}
	return nil
}

// numbers are the first few of some bytes of O or LSE.
func (p *OptionsProblem) numbers(which int, b []byte) []float32 {
	dtype := p.DType
	if which == pieceLSE {
		dtype = attention.F32
	}
	return decodeFloats(b[:min(len(b), 4*dtype.Size())], dtype)
}
