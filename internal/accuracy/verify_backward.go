package accuracy

import (
	"math"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

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
func VerifyBackward(cfg problem.Config, a problem.BackwardArgs, opt Options) (*Verdict, error) {
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
	return &gradientCheck{call: c, cfg: cfg, a: a, verdict: &Verdict{OfRows: a.Rows(), OfKeys: int64(a.B) * int64(a.KVHeads()) * int64(a.Sk)}}, err
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
	verdict *Verdict
}

// ExpectedGradients are what all gradients of a call are judged by. They need its inputs alone.
type ExpectedGradients struct {
	cfg   problem.Config
	shape problem.Shape
	of    map[string]oracle.Gradient // by name
}

// ExpectGradients computes them. Outputs in a may be zero.
func ExpectGradients(cfg problem.Config, a problem.BackwardArgs) (*ExpectedGradients, error) {
	a = problem.BackwardArgs{Args: a.Args, DO: a.DO, DLSE: a.DLSE}
	ref, err := oracle.ReferenceBackward(cfg, a)
	if err != nil {
		return nil, err
	}
	of, err := oracle.LowBackward(cfg, a)
	if err != nil {
		return nil, err
	}
	refs := map[string][]float64{"dQ": ref.DQ, "dK": ref.DK, "dV": ref.DV, "dBias": ref.DBias, "dSinks": ref.DSinks}
	for i, x := range ref.DTables {
		refs["dTables["+a.Tables[i].Name+"]"] = x
	}
	for name, g := range of {
		g.Ref = refs[name]
		of[name] = g
	}
	return &ExpectedGradients{cfg, a.Shape, of}, nil
}

// Judge judges the gradients that a call with these inputs left in host memory.
func (e *ExpectedGradients) Judge(a problem.BackwardArgs) (*Verdict, error) {
	if a.Shape != e.shape {
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
	a, want := &g.a, tensors.GradientsOf(&g.cfg, &g.a)
	for _, t := range []struct {
		name          string
		wanted, kv    bool
		tensor        problem.Tensor
		heads, extent int
		dim           int
		judged        *int
	}{
		{"dQ", want.Q, false, a.DQ, a.Hq, a.Sq, g.cfg.HeadDim, &g.verdict.Rows},
		{"dK", want.K, true, a.DK, a.KVHeads(), a.Sk, g.cfg.HeadDim, &g.verdict.Keys},
		{"dV", want.V, true, a.DV, a.KVHeads(), a.Sk, g.cfg.ValueDim(), &g.verdict.Keys},
	} {
		if !t.wanted {
			continue
		}
		r, x := tensorRows{name: t.name, stored: g.cfg.GradientType(), width: t.dim}, e.of[t.name]
		read, err := g.reader(t.tensor, r.stored, t.kv, t.dim)
		if err != nil {
			return err
		}
		for b := range a.B {
			for h := range t.heads {
				for row, attended := range g.attended(t.kv, b, h) {
					r.add(position{b, h, row}, read, &x, (b*t.heads+h)*t.extent+row, !attended)
				}
			}
		}
		*t.judged = len(r.at)
		g.judge(&r)
	}
	if want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		view, err := problem.ViewHost(a.DBias, problem.F32, n[1], n[2], a.Sk)
		if err != nil {
			return err
		}
		g.judgeSums("dBias", e, n, a.Sk, func(dst []float32, at position) { view.ReadRow(dst, at.b, at.h, at.row) })
	}
	if want.Sinks {
		g.judgeSums("dSinks", e, [3]int{1, a.Hq, 1}, 1, vectorRows(&a.DSinks))
	}
	for i, t := range tensors.Tables(&g.cfg) {
		if want.Tables[i] { // a row is that of a head, or the whole table
			heads, entries := tensors.TableGradient(&g.cfg, i).Sizes(tensors.TableDims(&g.cfg, &a.Args, i))
			g.judgeSums(nameOfTable(t), e, [3]int{1, heads, 1}, entries, vectorRows(&tensors.TableOutput(&g.cfg, a, i).Vector))
		}
	}
	return nil
}

// judgeSums judges a gradient of float32 sums over the whole problem, of batches, heads and rows.
func (g *gradientCheck) judgeSums(name string, e *ExpectedGradients, n [3]int, width int, read func(dst []float32, at position)) {
	x := e.of[name]
	r := tensorRows{name: name, stored: problem.F32, width: width, ref: x.Ref, low: x.Low, noise: x.Noise, x: make([]float32, len(x.Ref))}
	for i := range n[0] * n[1] * n[2] {
		at := position{i / n[2] / n[1], i / n[2] % n[1], i % n[2]}
		read(r.x[i*width:][:width], at)
		r.at = append(r.at, at)
	}
	g.judge(&r)
}

// vectorRows reads what a vector has for a head.
func vectorRows(v *problem.Vector) func(dst []float32, at position) {
	return func(dst []float32, at position) {
		for i := range dst {
			dst[i] = tensors.FloatAt(v, at.h*len(dst)+i)
		}
	}
}

func nameOfTable(t score.Table) string { return "dTables[" + t.Name() + "]" }

// part is a row of a slice that may be nil.
func part[T any](x []T, first, n int) []T {
	if x == nil {
		return nil
	}
	return x[first:][:n]
}

// add reads a row of the result, which is row n of x. idle: no mask and no length leaves it anything,
// so that it must be 0, unless the reference has NaN: a NaN score plus a bias of -Inf is NaN.
func (r *tensorRows) add(at position, read func([]float32, position), x *oracle.Gradient, n int, idle bool) {
	first := len(r.x)
	r.x = append(r.x, make([]float32, r.width)...)
	read(r.x[first:], at)
	ref := part(x.Ref, n*r.width, r.width)
	r.ref, r.low = append(r.ref, ref...), append(r.low, part(x.Low, n*r.width, r.width)...)
	r.noise, r.errors = append(r.noise, part(x.Noise, n*r.width, r.width)...), append(r.errors, part(x.Errors, n, 1)...)
	r.at, r.zero = append(r.at, at), append(r.zero, idle && !slices.ContainsFunc(ref, math.IsNaN))
}

// judge applies the rules to one gradient. Nothing is judged where no sequence has a row of it.
func (g *gradientCheck) judge(r *tensorRows) {
	if len(r.x) == 0 && r.refused == "" {
		r.refused = "no sequence has a row of it"
	}
	g.verdict.judge(Gradient(g.cfg.DType), r)
}
