package bench

import (
	"errors"
	"math/rand/v2"
	"strings"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/oracle"
)

// truth is the float64 reference of a problem's sampled rows, with the result of plain
// attention in the storage type, whose error sets the limit of a row's.
type truth struct {
	problem Problem
	sample  []attention.Rows // of every (sequence, query head) that has rows
	o, lse  expected
}

// expected is the part of a truth that judges O or LSE: the sampled rows, packed.
type expected struct {
	ref   []float64
	low   []float32
	noise []float64
}

// newTruth computes the truth of a problem. All its rows share it.
func newTruth(d *data, seed uint64) (*truth, error) {
	p := d.problem
	t := &truth{problem: p}
	t.sample = d.sample(verifyBudget, rand.New(rand.NewPCG(seed, 1)))
	var err error
	if t.o.ref, t.lse.ref, err = attention.ReferenceSample(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	if t.o.low, t.lse.low, err = oracle.Low(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	t.o.noise, t.lse.noise, err = oracle.Noise(p.Config, d.args, t.sample)
	return t, err
}

// judge compares O, in the storage type and layout of d, with the truth, and LSE unless it
// is nil. The error says which limits they exceed.
func (t *truth) judge(d *data, o, lse []byte) (Checked, error) {
	c := t.problem.Config
	place := d.args.O
	place.Host = o
	report, err := t.o.judge(t, d, place, c.DType, c.ValueDim(), accuracy.Forward(c.DType))
	if err != nil {
		return Checked{}, err
	}
	w := &report.Whole
	checked := Checked{Rows: attention.CountRows(t.sample), Of: t.problem.rows(), MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	pass, why := report.Pass(), report.Reasons()
	if lse != nil {
		place = d.args.LSE
		place.Host = lse
		if report, err = t.lse.judge(t, d, place, attention.F32, 1, accuracy.ForwardLSE(c.DType)); err != nil {
			return Checked{}, err
		}
		pass, checked.LSEError = pass && report.Pass(), Number(report.Whole.Max)
		for _, reason := range report.Reasons() {
			why = append(why, "LSE: "+reason)
		}
	}
	if pass {
		return checked, nil
	}
	return checked, errors.New(strings.Join(why, "; "))
}

// judge compares the sampled rows of a tensor of d, of a width, with what is expected.
func (e *expected) judge(t *truth, d *data, place attention.Tensor, dtype attention.DType, width int, limits accuracy.Limits) (accuracy.Report, error) {
	_, rows := d.queryExtent()
	view, err := attention.ViewHost(place, dtype, t.problem.Shape.Hq, rows, width)
	if err != nil {
		return accuracy.Report{}, err
	}
	got := make([]float32, len(e.ref))
	at := 0
	for _, rows := range t.sample {
		for _, row := range rows.Rows {
			batch, r := d.queryRow(rows.B, row)
			view.ReadRow(got[at:at+width], batch, rows.H, r)
			at += width
		}
	}
	limits.Noise = e.noise
	return accuracy.Judge(limits, width, got, e.ref, e.low), nil
}
