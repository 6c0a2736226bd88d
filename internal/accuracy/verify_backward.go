package accuracy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"vkattn/attention/score"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// BackwardVerdict is the outcome of VerifyBackward.
type BackwardVerdict struct {
	Rows, Keys     int   // rows whose dQ was judged, and keys of KV heads whose dK and dV were
	OfRows, OfKeys int64 // rows and keys of the problem
	Gradients      []GradientReport
}

// GradientReport is the judgement of one gradient.
type GradientReport struct {
	Name string // "dQ", "dK", "dV", "dBias", "dSinks" or "dTables[name]"
	Report
	Unjudged string // why the gradient was not judged; "" if it was

	notZero   int // elements that have to be exactly 0 and are not
	zeroAt    int
	zeroGot   float32
	positions []rowPosition // of the rows that were judged, in order
}

// rowPosition is a row of a gradient.
type rowPosition struct{ b, h, row int }

func (p rowPosition) String() string {
	return fmt.Sprintf("batch %d, head %d, row %d", p.b, p.h, p.row)
}

// VerifyBackward judges the gradients that a backward call left in host memory. It reads
// neither O nor LSE, because the reference computes them from the inputs. [Gradient] has
// the rules.
//
// dQ of a row that attends to no key, and dK and dV of a key that no row of its group attends
// to, must be exactly 0. A row attends to the keys that its sequence's length, the causal
// mask, the window, Mask, Blocks and SparseTokens leave to it, except those with a bias of
// -Inf. A P that underflows excuses nothing and demands nothing: the rules alone judge it.
//
// A small problem is compared whole with the reference. Of a large one,
// opt.Rows rows of dQ (0: a second or two of work) and keys of dK and dV are compared with
// float64 sums over all keys and rows. The keys need row statistics: LSE and the product
// of dO and O. They come from the CPU tier, so that they do not depend on the device. A
// large LSE, which float32 does not hold well enough, is computed in float64. dBias, dSinks
// and gradients of tables of a large problem are sums over all of it and are not judged.
//
// An error means that the gradients could not be judged. Accumulate must be false: what
// the outputs held before is gone. So must PartialKeys: the reference has no other keys.
func VerifyBackward(cfg problem.Config, a problem.BackwardArgs, opt Options) (*BackwardVerdict, error) {
	switch {
	case a.Accumulate:
		return nil, &problem.ShapeError{Field: "Accumulate", Got: true, Want: "false: what the gradients held before is not known"}
	case a.PartialKeys:
		return nil, &problem.ShapeError{Field: "PartialKeys", Got: true, Want: "false: the reference has no other keys"}
	}
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return nil, err
	}
	g, err := openGradients(cfg, a)
	if err != nil {
		return nil, err
	}
	if !(opt.Rows < 0 || opt.Rows == 0 && gradientProducts(cfg, a.Shape) <= wholeProducts || int64(opt.Rows) >= a.Rows()) {
		return g.verdict, g.sampled(opt)
	}
	e, err := ExpectGradients(cfg, a)
	if err != nil {
		return nil, err
	}
	return g.verdict, g.whole(e)
}

func openGradients(cfg problem.Config, a problem.BackwardArgs) (*gradientCheck, error) {
	c, err := openCall(&cfg, &a.Args)
	return &gradientCheck{call: c, cfg: cfg, a: a, verdict: &BackwardVerdict{OfRows: a.Rows(), OfKeys: int64(a.B) * int64(a.KVHeads()) * int64(a.Sk)}}, err
}

// wholeProducts are the multiply-adds of a reference that takes a second or two on a few
// CPUs.
const wholeProducts = 2e9

func gradientProducts(cfg problem.Config, s problem.Shape) float64 {
	return float64(s.B) * float64(s.Hq) * float64(s.Sq) * float64(s.Sk) * float64(3*cfg.HeadDim+2*cfg.ValueDim())
}

// gradientCheck is one call of VerifyBackward.
type gradientCheck struct {
	*call
	cfg     problem.Config
	a       problem.BackwardArgs
	verdict *BackwardVerdict
}

// gradientRows are the rows of one gradient to judge.
type gradientRows struct {
	name    string
	dtype   problem.DType // in which it is stored
	width   int
	x, low  []float32
	ref     []float64
	noise   []float64         // nil: none
	errors  []oracle.RowError // nil: none
	at      []rowPosition
	zero    []bool // rows that must be exactly 0; nil: none
	refused string
}

// ExpectedGradients are what all gradients of a call are judged by. They need its inputs alone.
type ExpectedGradients struct {
	cfg   problem.Config
	shape problem.Shape
	ref   problem.Gradients
	low   oracle.LowGradients
}

// ExpectGradients computes them. Outputs in a may be zero.
func ExpectGradients(cfg problem.Config, a problem.BackwardArgs) (*ExpectedGradients, error) {
	a.DQ, a.DK, a.DV, a.DBias, a.DSinks = problem.Tensor{}, problem.Tensor{}, problem.Tensor{}, problem.Tensor{}, problem.Vector{}
	a.DTables = nil
	e := &ExpectedGradients{cfg: cfg, shape: a.Shape}
	var err error
	if e.ref, err = oracle.ReferenceBackward(cfg, a); err == nil {
		e.low, err = oracle.LowBackward(cfg, a)
	}
	return e, err
}

// Judge judges the gradients that a call with these inputs left in host memory.
func (e *ExpectedGradients) Judge(a problem.BackwardArgs) (*BackwardVerdict, error) {
	if e == nil || a.Shape != e.shape {
		return nil, &problem.ShapeError{Field: "Shape", Got: a.Shape, Want: "the expected call's"}
	}
	if err := tensors.CheckBackward(&a, &e.cfg); err != nil {
		return nil, err
	}
	g, err := openGradients(e.cfg, a)
	if err != nil {
		return nil, err
	}
	return g.verdict, g.whole(e)
}

// whole compares every row and key that exists.
func (g *gradientCheck) whole(e *ExpectedGradients) error {
	a, ref, low := g.a, &e.ref, &e.low
	want := tensors.GradientsOf(&g.cfg, &a)
	for _, t := range []struct {
		name   string
		wanted bool
		kv     bool
		tensor problem.Tensor
		dim    int
		x      oracle.SampledGradient
	}{
		{"dQ", want.Q, false, a.DQ, g.cfg.HeadDim, oracle.SampledGradient{Ref: ref.DQ, Low: low.DQ, Noise: low.Noise.DQ, Errors: low.Rows.DQ}},
		{"dK", want.K, true, a.DK, g.cfg.HeadDim, oracle.SampledGradient{Ref: ref.DK, Low: low.DK, Noise: low.Noise.DK, Errors: low.Rows.DK}},
		{"dV", want.V, true, a.DV, g.cfg.ValueDim(), oracle.SampledGradient{Ref: ref.DV, Low: low.DV, Noise: low.Noise.DV, Errors: low.Rows.DV}},
	} {
		if !t.wanted {
			continue
		}
		heads, extent := a.Hq, a.Sq
		if t.kv {
			heads, extent = a.KVHeads(), a.Sk
		}
		r := gradientRows{name: t.name, dtype: g.cfg.GradientType(), width: t.dim}
		read, err := g.reader(t.tensor, t.kv, t.dim)
		if err != nil {
			return err
		}
		for b := range a.B {
			for h := range heads {
				for row, attended := range g.attended(t.kv, b, h) {
					r.add(rowPosition{b, h, row}, read, &t.x, (b*heads+h)*extent+row, !attended)
				}
			}
		}
		if t.kv {
			g.verdict.Keys = len(r.at)
		} else {
			g.verdict.Rows = len(r.at)
		}
		g.judge(&r)
	}
	if want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		r := gradientRows{name: "dBias", dtype: problem.F32, width: a.Sk, ref: ref.DBias, low: low.DBias, noise: low.Noise.DBias}
		view, err := problem.ViewHost(a.DBias, problem.F32, n[1], n[2], a.Sk)
		if err != nil {
			return err
		}
		r.x = make([]float32, len(ref.DBias))
		for i := range n[0] * n[1] * n[2] {
			at := rowPosition{i / n[2] / n[1], i / n[2] % n[1], i % n[2]}
			view.ReadRow(r.x[i*a.Sk:], at.b, at.h, at.row)
			r.at = append(r.at, at)
		}
		g.judge(&r)
	}
	if want.Sinks {
		r := gradientRows{name: "dSinks", dtype: problem.F32, width: 1, ref: ref.DSinks, low: low.DSinks, noise: low.Noise.DSinks}
		for h := range a.Hq {
			r.x = append(r.x, tensors.FloatAt(&a.DSinks, h))
			r.at = append(r.at, rowPosition{0, h, 0})
		}
		g.judge(&r)
	}
	g.judgeTables(e, want)
	return nil
}

func nameOfTable(t score.Table) string { return "dTables[" + t.Name() + "]" }

// judgeTables judges the gradients of tables. A row is that of a head, or the whole table.
func (g *gradientCheck) judgeTables(e *ExpectedGradients, want tensors.GradientSet) {
	for i, t := range tensors.Tables(&g.cfg) {
		if !want.Tables[i] {
			continue
		}
		at := slices.IndexFunc(g.a.Tables, func(m problem.Table) bool { return m.Name == t.Name() })
		heads, entries := tensors.TableGradient(&g.cfg, i).Sizes(tensors.TableDims(&g.cfg, &g.a.Args, i))
		r := gradientRows{name: nameOfTable(t), dtype: problem.F32, width: entries,
			ref: e.ref.DTables[at], low: e.low.DTables[at], noise: e.low.Noise.DTables[at]}
		out := tensors.TableOutput(&g.cfg, &g.a, i)
		for n := range heads * entries {
			r.x = append(r.x, tensors.FloatAt(&out.Vector, n))
		}
		for h := range heads {
			r.at = append(r.at, rowPosition{0, h, 0})
		}
		g.judge(&r)
	}
}

// part is a row of a slice that may be nil.
func part[T any](x []T, first, n int) []T {
	if x == nil {
		return nil
	}
	return x[first:][:n]
}

// reader returns a function that reads a row of dQ, or of dK or dV, of a sequence.
func (g *gradientCheck) reader(t problem.Tensor, kv bool, dim int) (func(dst []float32, at rowPosition), error) {
	heads, where := g.a.Hq, g.QueryRow
	_, extent := tensors.QueryExtent(&g.a.Args)
	if kv {
		heads, where = g.a.KVHeads(), g.KVRow
		_, extent = tensors.KVExtent(&g.a.Args)
	}
	view, err := problem.ViewHost(t, g.cfg.GradientType(), heads, extent, dim)
	return func(dst []float32, at rowPosition) {
		batch, row := where(at.b, at.row)
		view.ReadRow(dst, batch, at.h, row)
	}, err
}

// add reads a row of the result, which is row n of x. idle: no mask and no length leaves it anything,
// so that it must be 0, unless the reference has NaN: a NaN score plus a bias of -Inf is NaN.
func (r *gradientRows) add(at rowPosition, read func([]float32, rowPosition), x *oracle.SampledGradient, n int, idle bool) {
	first := len(r.x)
	r.x = append(r.x, make([]float32, r.width)...)
	read(r.x[first:], at)
	ref := part(x.Ref, n*r.width, r.width)
	r.ref, r.low = append(r.ref, ref...), append(r.low, part(x.Low, n*r.width, r.width)...)
	r.noise, r.errors = append(r.noise, part(x.Noise, n*r.width, r.width)...), append(r.errors, part(x.Errors, n, 1)...)
	r.at, r.zero = append(r.at, at), append(r.zero, idle && !slices.ContainsFunc(ref, math.IsNaN))
}

// judge applies the rules to one gradient.
func (g *gradientCheck) judge(r *gradientRows) {
	out := GradientReport{Name: r.name, Unjudged: r.refused, positions: r.at}
	if len(r.x) == 0 {
		if out.Unjudged == "" {
			out.Unjudged = "no sequence has a row of it"
		}
		g.verdict.Gradients = append(g.verdict.Gradients, out)
		return
	}
	for i, x := range r.x {
		if r.zero != nil && r.zero[i/r.width] && x != 0 {
			if out.notZero == 0 {
				out.zeroAt, out.zeroGot = i/r.width, x
			}
			out.notZero++
		}
	}
	limits := Gradient(g.cfg.DType)
	limits.Stored, limits.Noise, limits.Rows = r.dtype, r.noise, r.errors
	out.Report = Judge(limits, r.width, r.x, r.ref, r.low)
	g.verdict.Gradients = append(g.verdict.Gradients, out)
}

// Pass reports whether all rules hold for a gradient, or it was not judged.
func (r *GradientReport) Pass() bool {
	return r != nil && (r.Unjudged != "" || r.notZero == 0 && r.Report.Pass())
}

// Reasons says what failed and where; it is empty if the gradient passes.
func (r *GradientReport) Reasons() (why []string) {
	switch {
	case r == nil:
		return []string{"nothing was judged"}
	case r.Pass():
		return nil
	}
	if r.notZero > 0 {
		why = append(why, fmt.Sprintf("%d elements are not exactly 0, such as %v at %v", r.notZero, r.zeroGot, r.positions[r.zeroAt]))
	}
	if !r.Report.Pass() {
		why = append(why, r.Report.Reasons()...)
		if i := r.worst().Worst / max(r.Width, 1); i < len(r.positions) {
			why = append(why, "the worst at "+r.positions[i].String())
		}
	}
	return why
}

// Pass reports whether all gradients that were judged pass, and any was.
func (v *BackwardVerdict) Pass() bool {
	if v == nil {
		return false
	}
	judged := false
	for i := range v.Gradients {
		if !v.Gradients[i].Pass() {
			return false
		}
		judged = judged || v.Gradients[i].Unjudged == ""
	}
	return judged
}

// Worst returns the largest error and NMSE of the gradients.
func (v *BackwardVerdict) Worst() (maxError, nmse float64) {
	if v == nil {
		return 0, 0
	}
	for i := range v.Gradients {
		w := &v.Gradients[i].Whole
		maxError, nmse = max(maxError, w.Max), max(nmse, w.NMSE)
	}
	return maxError, nmse
}

// String is one line if the verdict passes, otherwise the reasons.
func (v *BackwardVerdict) String() string {
	if v == nil || len(v.Gradients) == 0 {
		return "FAIL: nothing was judged"
	}
	var lines, notes []string
	for i := range v.Gradients {
		r := &v.Gradients[i]
		switch w := &r.Whole; {
		case r.Unjudged != "":
			notes = append(notes, r.Name+" not judged: "+r.Unjudged)
		case !r.Pass():
			lines = append(lines, r.Name+": "+strings.Join(r.Reasons(), "; "))
		default:
			notes = append(notes, fmt.Sprintf("%s max error %.2g (low %.2g), NMSE %.2g", r.Name, w.Max, w.LowMax, w.NMSE))
		}
	}
	if len(lines) > 0 {
		return "FAIL: " + strings.Join(lines, "\n")
	}
	if !v.Pass() {
		return "FAIL: nothing was judged: " + strings.Join(notes, ", ")
	}
	return fmt.Sprintf("ok: %d of %d rows, %d of %d keys, %s", v.Rows, v.OfRows, v.Keys, v.OfKeys, strings.Join(notes, ", "))
}
