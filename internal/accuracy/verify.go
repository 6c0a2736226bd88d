package accuracy

import (
	"fmt"
	"math"
	"strings"

	"vkattn/internal/hostmem"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Expected is what rows of a call are judged by.
type Expected struct {
	Sample          []problem.Rows
	Ref, RefLSE     []float64 // the reference, of O and of LSE
	Low, LowLSE     []float32
	Noise, NoiseLSE []float64

	dtype problem.DType
	width int
}

// Expect computes what the rows of Sample are judged by. A reference that is there is taken.
func (e *Expected) Expect(cfg problem.Config, a problem.Args) (err error) {
	if e == nil {
		return &problem.ShapeError{Field: "Expected", Got: "nil", Want: "room for what a call is judged by"}
	}
	e.dtype, e.width = cfg.DType, cfg.ValueDim()
	if e.Ref == nil {
		if e.Ref, e.RefLSE, err = oracle.ReferenceSample(cfg, a, e.Sample); err != nil {
			return err
		}
	}
	if e.Low, e.LowLSE, err = oracle.Low(cfg, a, e.Sample); err == nil {
		e.Noise, e.NoiseLSE, err = oracle.Noise(cfg, a, e.Sample)
	}
	return err
}

// Judge applies the rules to O and LSE of the sample; lse is nil, and so is its report, if the call
// has none. The error names a row with nothing to attend to whose O or LSE is not exact.
func (e *Expected) Judge(o, lse []float32) (r Report, rLSE *Report, err error) {
	if e == nil || e.width < 1 {
		return r, nil, &problem.ShapeError{Field: "Expected", Got: "nothing", Want: "what Expect computed"}
	}
	limits := Forward(e.dtype)
	limits.Noise = e.Noise
	r = Judge(limits, e.width, o, e.Ref, e.Low)
	if lse != nil {
		limits := ForwardLSE(e.dtype)
		limits.Noise = e.NoiseLSE
		l := Judge(limits, 1, lse, e.RefLSE, e.LowLSE)
		rLSE = &l
	}
	for i, want := range e.RefLSE {
		if !math.IsInf(want, -1) || r.Unjudged != "" || rLSE != nil && rLSE.Unjudged != "" {
			continue
		}
		nothing := func(format string, got float32) error {
			b, h, row := RowOf(e.Sample, i)
			return fmt.Errorf("batch %d, head %d, row %d attends to nothing: "+format, b, h, row, got)
		}
		for _, x := range o[i*e.width:][:e.width] {
			if x != 0 {
				return r, rLSE, nothing("its O has %v, want 0", x)
			}
		}
		if lse != nil && !math.IsInf(float64(lse[i]), -1) {
			return r, rLSE, nothing("its LSE is %v, want -Inf", lse[i])
		}
	}
	return r, rLSE, nil
}

// RowOf returns the batch, query head and row of the n-th row of a sample; -1 each if there is
// no such row.
func RowOf(sample []problem.Rows, n int) (b, h, row int) {
	for _, s := range sample {
		if n >= 0 && n < len(s.Rows) {
			return s.B, s.H, s.Rows[n]
		}
		n -= len(s.Rows)
	}
	return -1, -1, -1
}

// Options say how many rows of a call to verify.
type Options struct {
	Rows int    // about how many rows; 0: a second or two of work; negative: all
	Seed uint64 // of the sample
}

// Verdict is the outcome of Verify.
type Verdict struct {
	Rows   int   // rows verified
	Of     int64 // rows of the problem
	O, LSE Report
	HasLSE bool
	sample []problem.Rows
	wrong  error // of a row with nothing to attend to
}

// Verify judges the O and, if given, the LSE that a call left in host memory against the
// reference. An error means that they could not be judged; a wrong result is a Verdict that
// does not pass.
func Verify(cfg problem.Config, a problem.Args, opt Options) (*Verdict, error) {
	if err := tensors.CheckArgs(cfg, a); err != nil {
		return nil, err
	}
	rows := opt.Rows
	switch {
	case rows == 0:
		rows = affordable(cfg, a.Shape)
	case rows < 0:
		rows = int(a.Shape.Rows())
	}
	if err := tensors.CheckHost("Verify", hostmem.Product(int(min(int64(rows), a.Shape.Rows())), cfg.ValueDim()+1, 4)); err != nil {
		return nil, err
	}
	c, err := openCall(&cfg, &a)
	if err != nil {
		return nil, err
	}
	sample, err := SampleArgs(a, rows, opt.Seed)
	if err != nil {
		return nil, err
	}
	sample = c.within(sample)
	e := Expected{Sample: sample}
	if err := e.Expect(cfg, a); err != nil {
		return nil, err
	}
	x, xLSE, err := c.read(sample)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Rows: tensors.CountRows(sample), Of: a.Shape.Rows(), sample: sample}
	o, lse, wrong := e.Judge(x, xLSE)
	v.O, v.HasLSE, v.wrong = o, lse != nil, wrong
	if lse != nil {
		v.LSE = *lse
	}
	return v, nil
}

// affordable is the number of rows that take a second or two on a few CPUs.
func affordable(cfg problem.Config, s problem.Shape) int {
	const products = 4e9
	perRow := float64(s.Sk) * float64(cfg.HeadDim+cfg.ValueDim())
	return int(min(max(products/perRow, 64), 1<<20))
}

// read reads the sampled rows of the result.
func (c *call) read(sample []problem.Rows) (o, lse []float32, err error) {
	_, rows := tensors.QueryExtent(c.Args)
	view, err := problem.ViewHost(c.Args.O, c.Cfg.OType(), c.Args.Hq, rows, c.Cfg.ValueDim())
	if err != nil {
		return nil, nil, err
	}
	n, dv := tensors.CountRows(sample), c.Cfg.ValueDim()
	o = make([]float32, n*dv)
	var lseView problem.HostView
	if c.Args.LSE.Given() {
		if lseView, err = problem.ViewHost(c.Args.LSE, problem.F32, c.Args.Hq, rows, 1); err != nil {
			return nil, nil, err
		}
		lse = make([]float32, n)
	}
	i := 0
	for _, s := range sample {
		for _, row := range s.Rows {
			batch, at := c.QueryRow(s.B, row)
			view.ReadRow(o[i*dv:], batch, s.H, at)
			if lse != nil {
				lseView.ReadRow(lse[i:], batch, s.H, at)
			}
			i++
		}
	}
	return o, lse, nil
}

// Pass reports whether all rules hold for O and LSE.
func (v *Verdict) Pass() bool {
	return v != nil && v.wrong == nil && v.O.Pass() && (!v.HasLSE || v.LSE.Pass())
}

// RowOf returns the batch, query head and row of the n-th verified row; -1 each if there is
// no such row.
func (v *Verdict) RowOf(n int) (b, h, row int) {
	if v == nil {
		return -1, -1, -1
	}
	return RowOf(v.sample, n)
}

// String is one line if the verdict passes, otherwise the reasons.
func (v *Verdict) String() string {
	if v == nil {
		return "FAIL: nothing was judged"
	}
	w := &v.O.Whole
	if v.Pass() {
		return fmt.Sprintf("ok: %d of %d rows, max error %.2g (low %.2g), mean %.2g (low %.2g), NMSE %.2g",
			v.Rows, v.Of, w.Max, w.LowMax, w.Mean, w.LowMean, w.NMSE)
	}
	var lines []string
	if v.wrong != nil {
		lines = append(lines, v.wrong.Error())
	}
	for _, t := range []struct {
		name   string
		r      *Report
		judged bool
	}{{"O", &v.O, true}, {"LSE", &v.LSE, v.HasLSE}} {
		if !t.judged || t.r.Pass() {
			continue
		}
		line := t.name + ": " + strings.Join(t.r.Reasons(), "; ")
		if t.r.Width > 0 {
			if b, h, row := v.RowOf(t.r.worst().Worst / t.r.Width); b >= 0 {
				line += fmt.Sprintf(" (batch %d, head %d, row %d)", b, h, row)
			}
		}
		lines = append(lines, line)
	}
	return "FAIL: " + strings.Join(lines, "\n")
}
