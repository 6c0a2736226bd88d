package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// truth is the reference of a problem's sampled rows, with what plain
// attention in the storage type makes of them: the measure of an allowed error.
type truth struct {
	problem Problem
	sample  []attention.Rows // of every (batch, query head)
	ref     []float64        // O of the sampled rows, packed
	low     []float32
	noise   []float64
}

// newTruth computes the rows, once for all tiers of a problem.
func newTruth(p Problem, in *hostInputs, seed uint64) (*truth, error) {
	t := &truth{problem: p}
	r := rand.New(rand.NewPCG(seed, 1))
	each := rowsPerHead(p, verifyBudget)
	for head := range p.Shape.B * p.Shape.Hq {
		t.sample = append(t.sample, attention.Rows{B: head / p.Shape.Hq, H: head % p.Shape.Hq, Rows: sampleRows(p.Shape.Sq, each, head, r)})
	}
	args := attention.Args{Shape: p.Shape, Q: attention.Tensor{Host: in[0]}, K: attention.Tensor{Host: in[1]}, V: attention.Tensor{Host: in[2]}}
	var err error
	if t.ref, _, err = attention.ReferenceSample(p.Config, args, t.sample); err != nil {
		return nil, err
	}
	if t.low, _, err = accuracy.Low(p.Config, args, t.sample); err != nil {
		return nil, err
	}
	t.noise, _, err = accuracy.Noise(p.Config, args, t.sample)
	return t, err
}

// judge compares O, packed in the storage type, with the truth. The error says
// how it is wrong.
func (t *truth) judge(o []byte) (Checked, error) {
	s, c := t.problem.Shape, t.problem.Config
	dv := c.ValueDim()
	view, err := attention.ViewHost(attention.Tensor{Host: o}, c.DType, s.Hq, s.Sq, dv)
	if err != nil {
		return Checked{}, err
	}
	got := make([]float32, len(t.ref))
	at := 0
	for _, rows := range t.sample {
		for _, row := range rows.Rows {
			view.ReadRow(got[at:at+dv], rows.B, rows.H, row)
			at += dv
		}
	}
	limits := accuracy.Forward(c.DType)
	limits.Noise = t.noise
	report := accuracy.Judge(limits, dv, got, t.ref, t.low)
	w := &report.Whole
	checked := Checked{Rows: at / dv, Of: s.Rows(), MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	if report.Pass() {
		return checked, nil
	}
	return checked, fmt.Errorf("%s", strings.Join(report.Reasons(), "; "))
}
