package bench

import (
	"errors"
	"strings"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
)

// newTruth computes what sampled rows of a problem, of every (sequence, query head) that the budget has a row for, are judged
// by. All its rows share it.
func newTruth(d *data, seed uint64) (*accuracy.Expected, error) {
	sample, err := accuracy.SampleRows(d.args.Args, d.affordable(verifyBudget), 1, attention.CausalNone, seed)
	if err != nil {
		return nil, err
	}
	t := &accuracy.Expected{Sample: sample}
	return t, t.Expect(problem.Config(d.problem.Config), d.args.Args)
}

// judge compares O, in the storage type and layout of d, with the truth, and LSE unless it
// is nil. The error says which limits they exceed.
func (d *data) judge(t *accuracy.Expected, o, lse []byte) (checked Checked, err error) {
	gotO, err := d.read(d.args.O, o, d.problem.Config.DType, d.problem.Config.ValueDim(), t.Sample)
	var gotLSE []float32
	if err == nil && lse != nil {
		gotLSE, err = d.read(d.args.LSE, lse, attention.F32, 1, t.Sample)
	}
	if err != nil {
		return checked, err
	}
	v := t.Judge(gotO, gotLSE)
	w := &v.Tensors[0].Whole
	checked = Checked{Rows: v.Rows, MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	if lse != nil {
		checked.LSEError = Number(v.Tensors[1].Whole.Max)
	}
	if !v.Pass() {
		err = errors.New(strings.ReplaceAll(strings.TrimPrefix(v.String(), "FAIL: "), "\n", "; "))
	}
	return checked, err
}

// verifyBudget bounds the multiply-adds of one verification, for the reference and for
// low-precision attention each: about a second on two cores, several seconds with options.
const verifyBudget = 1 << 30

// affordable is the number of rows that fit the budget if all heads have as many.
func (d *data) affordable(budget uint64) int {
	var keys, sequences uint64
	for _, s := range d.call.Sequences {
		keys, sequences = keys+uint64(s.Keys), sequences+1
	}
	return int(budget * sequences / max(1, keys*uint64(d.problem.Config.HeadDim+d.problem.Config.ValueDim())))
}
