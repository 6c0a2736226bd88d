package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// truth is the float64 reference of a problem's sampled rows, with the result of plain
// attention in the storage type, whose error sets the limit of a row's.
type truth struct {
	problem Problem
	sample  []attention.Rows // of every (sequence, query head) that has rows
	ref     []float64        // O of the sampled rows, packed
	low     []float32
	noise   []float64
}

// newTruth computes the truth of a problem. All its rows share it.
func newTruth(d *data, seed uint64) (*truth, error) {
	p := d.problem
	t := &truth{problem: p}
	t.sample = d.sample(verifyBudget, rand.New(rand.NewPCG(seed, 1)))
	var err error
	if t.ref, _, err = attention.ReferenceSample(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	if t.low, _, err = accuracy.Low(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	t.noise, _, err = accuracy.Noise(p.Config, d.args, t.sample)
	return t, err
}

// judge compares O, in the storage type and layout of d, with the truth. The error says
// which limits O exceeds.
func (t *truth) judge(d *data, o []byte) (Checked, error) {
	c := t.problem.Config
	dv := c.ValueDim()
	place := d.args.O
	place.Host = o
	_, rows := d.queryExtent()
	view, err := attention.ViewHost(place, c.DType, t.problem.Shape.Hq, rows, dv)
	if err != nil {
		return Checked{}, err
	}
	got := make([]float32, len(t.ref))
	at := 0
	for _, rows := range t.sample {
		for _, row := range rows.Rows {
			batch, r := d.queryRow(rows.B, row)
			view.ReadRow(got[at:at+dv], batch, rows.H, r)
			at += dv
		}
	}
	limits := accuracy.Forward(c.DType)
	limits.Noise = t.noise
	report := accuracy.Judge(limits, dv, got, t.ref, t.low)
	w := &report.Whole
	checked := Checked{Rows: at / dv, Of: t.problem.rows(), MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	if report.Pass() {
		return checked, nil
	}
	return checked, fmt.Errorf("%s", strings.Join(report.Reasons(), "; "))
}
