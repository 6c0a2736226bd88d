package verify

import (
	"math"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/tensors"
)

// judge fills in the rows of a computed problem.
func (g *group) judge() error {
	var list []*result // those with something to compare
	for _, r := range g.results {
		if r.after == nil {
			continue
		}
		list = append(list, r)
		if _, err := g.float64(r, &g.truth); err != nil {
			return err
		}
	}
	rows := tensors.CountRows(g.truth.Sample)
	full := g.reference != nil && g.reference.after != nil
	var own [2]accuracy.Stats
	if full {
		var err error
		if own, err = g.judgeReference(); err != nil {
			return err
		}
	}
	for i, c := range g.comparisons(int64(rows) < g.problem.Shape.Rows()) {
		c.own = own[i]
		tensor := [2]int{cases.TensorO, cases.TensorLSE}[i]
		var reference *attention.HostView
		if full {
			view, err := g.reference.problem.View(g.reference.after, tensor)
			if err != nil {
				return err
			}
			reference = &view
		}
		views := make([]attention.HostView, len(list))
		for n, r := range list {
			var err error
			if views[n], err = r.problem.View(r.after, tensor); err != nil {
				return err
			}
			t := c.run(&views[n], reference, false)
			for _, why := range c.reasons(t, false) {
				r.row.fail("%s: %s", c.name, why)
			}
			if d := c.row(t); full && i == 0 {
				r.row.O = d
			} else if full {
				r.row.LSE = &d
			}
		}
		c.pairs(list, views)
	}
	for _, r := range append(list, g.reference) {
		if r == nil || r.after == nil {
			continue
		}
		if r.row.Status == "" {
			r.row.Status = bench.OK
		}
		switch {
		case r.row.Is || !full:
			r.row.Reference, r.row.Rows = "float64", int64(rows)
		default:
			r.row.Reference, r.row.Rows = g.Reference.String()+" float32", r.row.Of
		}
	}
	return nil
}

// comparisons are those of O and LSE. They extend the error of low on the sampled rows to all rows.
func (g *group) comparisons(sampled bool) []*comparison {
	p, t := g.problem, &g.truth
	var keys []int
	for _, s := range t.Sample {
		for _, row := range s.Rows {
			keys = append(keys, p.Attended(s.B, s.H, row))
		}
	}
	of := func(name string, width int, empty float64, limits accuracy.Limits, noise, ref []float64, low []float32) *comparison {
		limits.Noise = noise
		return &comparison{name: name, shape: p.Shape, causal: p.Causal, width: width, empty: empty, blocks: sampled && p.Modifiers == nil,
			estimate: accuracy.NewEstimate(limits, width, keys, ref, low, p.Shape.Rows()*int64(width))}
	}
	list := []*comparison{of("O", p.Dv, 0, accuracy.Forward(p.DType), t.Noise, t.Ref, t.Low)}
	if p.LSE {
		list = append(list, of("LSE", 1, math.Inf(-1), accuracy.ForwardLSE(p.DType), t.NoiseLSE, t.RefLSE, t.LowLSE))
	}
	return list
}

// judgeReference applies the rules of float32 to the reference and returns its error.
func (g *group) judgeReference() (own [2]accuracy.Stats, err error) {
	truth := &g.truth
	if g.problem.DType != attention.F32 {
		// Widening is exact, so the float64 reference is the same.
		truth = &cases.Truth{Expected: accuracy.Expected{Sample: g.truth.Sample, Ref: g.truth.Ref, RefLSE: g.truth.RefLSE}}
	}
	v, err := g.float64(g.reference, truth)
	if err != nil {
		return own, err
	}
	for i := range v.Tensors {
		own[i] = v.Tensors[i].Whole
	}
	return own, nil
}

// float64 judges a result by the float64 reference.
func (g *group) float64(r *result, truth *cases.Truth) (*accuracy.Verdict, error) {
	v, err := truth.Verdict(r.problem, r.after)
	if err != nil {
		return nil, err
	}
	for i := range v.Tensors {
		t := &v.Tensors[i]
		if !t.Pass() {
			r.row.fail("%s versus float64: %s", t.Name, strings.Join(t.Reasons(), ", "))
		}
		if d := fromReport(&t.Report); t.Name == "LSE" {
			r.row.LSE = &d
		} else {
			r.row.O = d
		}
	}
	o := &v.Tensors[0].Whole
	r.row.Float64 = bench.Checked{Rows: v.Rows, Of: r.row.Of, MaxError: bench.Number(o.Max), NMSE: bench.Number(o.NMSE)}
	return v, nil
}

// fromReport is the difference from the float64 reference. A row shows it if there is no
// other reference.
func fromReport(r *accuracy.Report) Diff {
	w := &r.Whole
	return Diff{Max: bench.Number(w.Max), Mean: bench.Number(w.Mean), NMSE: bench.Number(w.NMSE), Limit: bench.Number(w.LimMax),
		Wrong: int64(w.WrongKind), Blocks: int64(r.Blocks), FailedBlocks: int64(r.Failed)}
}

// pairs compares implementations with one another. If two differ too much, both fail,
// unless one of them has failed already.
func (c *comparison) pairs(list []*result, views []attention.HostView) {
	failed := make([]bool, len(list))
	for i, r := range list {
		failed[i] = r.row.Status == bench.Fail
	}
	for j, b := range list {
		for i, a := range list[:j] {
			t := c.run(&views[j], &views[i], true)
			if c.name == "O" {
				a.partner(b, t.max)
				b.partner(a, t.max)
			}
			for _, why := range c.reasons(t, true) {
				if !failed[i] && !failed[j] {
					a.row.fail("%s versus %s: %s", c.name, b.row.Who, why)
					b.row.fail("%s versus %s: %s", c.name, a.row.Who, why)
				}
			}
		}
	}
}

func (r *result) partner(other *result, most float64) {
	if r.row.Partner == "" || most > float64(r.row.PairMax) {
		r.row.Partner, r.row.PairMax = other.row.Who, bench.Number(most)
	}
}

// rowsPerHead is the number of rows sampled of a head: enough for several heads to have
// rows of every power of two of keys.
const rowsPerHead = 24

// affordable is the number of rows of a problem that the CPU computes in about a second,
// in float64 and as low.
func affordable(c attention.Config, s attention.Shape) int {
	const products = 2e9
	perRow := float64(s.Sk) * float64(c.HeadDim+c.ValueDim())
	return int(min(max(products/perRow, 256), 1<<20))
}
