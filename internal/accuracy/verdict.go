package accuracy

import (
	"fmt"
	"slices"
	"strings"

	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// Verdict is the outcome of Verify and of VerifyBackward.
type Verdict struct {
	Rows, Keys     int   // rows of O or dQ that were judged, and keys of KV heads whose dK and dV were
	OfRows, OfKeys int64 // rows and keys of the problem; OfKeys of 0: the call has no gradients
	Tensors        []Tensor
}

// Tensor is the judgement of one result.
type Tensor struct {
	Name string // "O", "LSE", "dQ", "dK", "dV", "dBias", "dSinks" or "dTables[name]"
	Report
	Unjudged string // why it was not judged; "" if it was

	notZero   int // elements that have to be exactly 0 and are not
	zeroAt    int
	zeroGot   float32
	positions []position // of the rows that were judged, in order
}

// position is a row of a tensor.
type position struct{ b, h, row int }

func (p position) String() string {
	return fmt.Sprintf("batch %d, head %d, row %d", p.b, p.h, p.row)
}

// tensorRows are the rows of one result to judge.
type tensorRows struct {
	name    string
	stored  problem.DType
	width   int
	x, low  []float32
	ref     []float64
	noise   []float64         // nil: none
	errors  []oracle.RowError // nil: none
	at      []position
	zero    []bool // rows that must be exactly 0; nil: none
	refused string
}

// judge applies the rules to one result.
func (v *Verdict) judge(l Limits, r *tensorRows) {
	out := Tensor{Name: r.name, Unjudged: r.refused, positions: r.at}
	if out.Unjudged == "" {
		l.Stored, l.Noise, l.Rows = r.stored, r.noise, r.errors
		out.Report = Judge(l, r.width, r.x, r.ref, r.low)
	}
	for i, zero := range r.zero {
		for _, x := range r.x[min(i*r.width, len(r.x)):min((i+1)*r.width, len(r.x))] {
			if zero && x != 0 {
				if out.notZero == 0 {
					out.zeroAt, out.zeroGot = i, x
				}
				out.notZero++
			}
		}
	}
	v.Tensors = append(v.Tensors, out)
}

// Pass reports whether all rules hold for a result, or it was not judged.
func (t *Tensor) Pass() bool { return t.Unjudged != "" || t.notZero == 0 && t.Report.Pass() }

// Reasons says what failed and where; it is empty if the result passes.
func (t *Tensor) Reasons() (why []string) {
	if t.Pass() {
		return nil
	}
	if t.notZero > 0 {
		why = append(why, fmt.Sprintf("%d elements are not exactly 0, such as %v at %v", t.notZero, t.zeroGot, t.positions[t.zeroAt]))
	}
	if !t.Report.Pass() {
		why = append(why, t.Report.Reasons()...)
		if i := t.worst().Worst / max(t.Width, 1); i < len(t.positions) {
			why = append(why, "the worst at "+t.positions[i].String())
		}
	}
	return why
}

// Pass reports whether all results that were judged pass, and any was.
func (v *Verdict) Pass() bool {
	wrong := slices.ContainsFunc(v.Tensors, func(t Tensor) bool { return !t.Pass() })
	return !wrong && slices.ContainsFunc(v.Tensors, func(t Tensor) bool { return t.Unjudged == "" })
}

// Worst returns the largest error and NMSE of the results.
func (v *Verdict) Worst() (maxError, nmse float64) {
	for i := range v.Tensors {
		w := &v.Tensors[i].Whole
		maxError, nmse = max(maxError, w.Max), max(nmse, w.NMSE)
	}
	return maxError, nmse
}

// String is one line if the verdict passes, otherwise the reasons.
func (v *Verdict) String() string {
	var lines, notes []string
	for i := range v.Tensors {
		t := &v.Tensors[i]
		switch w := &t.Whole; {
		case t.Unjudged != "":
			notes = append(notes, t.Name+" not judged: "+t.Unjudged)
		case !t.Pass():
			lines = append(lines, t.Name+": "+strings.Join(t.Reasons(), "; "))
		default:
			notes = append(notes, fmt.Sprintf("%s max error %.2g (low %.2g), NMSE %.2g", t.Name, w.Max, w.LowMax, w.NMSE))
		}
	}
	if len(lines) > 0 {
		return "FAIL: " + strings.Join(lines, "\n")
	}
	if !v.Pass() {
		return "FAIL: nothing was judged: " + strings.Join(notes, ", ")
	}
	judged := fmt.Sprintf("%d of %d rows", v.Rows, v.OfRows)
	if v.OfKeys > 0 {
		judged += fmt.Sprintf(", %d of %d keys", v.Keys, v.OfKeys)
	}
	return "ok: " + judged + ", " + strings.Join(notes, ", ")
}
