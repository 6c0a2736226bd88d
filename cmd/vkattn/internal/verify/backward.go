package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
)

// backward runs forward and backward of a case on every implementation and judges the
// gradients. It returns a row for each.
func (v *Verifier) backward(ctx context.Context, c cases.Case, dtype attention.DType) (rows []*Row, err error) {
	g := &group{Verifier: v, problem: &cases.Problem{Case: c, DType: dtype}}
	if err := bench.Room(nil, v.backwardNeeded(c, dtype), 0); err != nil {
		return g.refused(err), nil
	}
	b, err := cases.NewBackward(c, dtype)
	if err != nil {
		return nil, err
	}
	g.problem = b.Problem
	for _, i := range v.List {
		if v.Here != nil && !v.Here(i, dtype) {
			continue
		}
		r := &result{row: g.row(i.String()), problem: b.Problem}
		g.results = append(g.results, r)
		v.say(g.problem, r.row.Who, "computing gradients")
		dev := v.on(i.Tier)
		err := g.gradients(ctx, r, b, dev, i)
		if err := r.stop(err); err != nil {
			return g.rows(), err
		}
	}
	return g.rows(), nil
}

// gradients runs one implementation Repeat times, and for the conformance table with
// everything spoiled that no gradient may depend on, and judges the first run.
func (g *group) gradients(ctx context.Context, r *result, b *cases.Backward, dev *attention.Device, i bench.Spec) error {
	cfg := config(i, b.Case, b.DType, g.Conformance)
	op, err := g.op(dev, cfg)
	if err != nil {
		return err
	}
	forward := op
	if i.Tier == attention.TierCUDA && dev.Vulkan() != nil { // not all of its forward kernels take options: tier scalar computes O and LSE
		cfg.Tier, cfg.Kernel = attention.TierScalar, ""
		if forward, err = g.op(dev, cfg); err != nil {
			return err
		}
	}
	m, err := g.newMemory(dev, b.Image)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	call := b.BackwardArgs(m.hold)
	plan, err := op.PlanBackwardFor(call)
	if err != nil {
		return err
	}
	if plan.Tier != i.Tier {
		return fmt.Errorf("%w: %s", attention.ErrUnsupported, rejected(&plan, i.Tier))
	}
	r.row.Tile = bench.BackwardTiles(&plan)
	var kernels []string
	for _, k := range plan.Kernels {
		kernels = append(kernels, k.Kernel)
	}
	r.row.Entry = strings.Join(kernels, " ")
	once := func(images [][]byte) ([][]byte, error) {
		return g.call(ctx, r, m, func() error { return m.write(images, nil) }, nil,
			func() error { return forward.Forward(m.Order(), call.Args) },
			func() error { return op.Backward(m.Order(), call) })
	}
	var first [][]byte
	for n := range max(g.Repeat, 1) {
		after, err := once(b.Image)
		if err != nil {
			return err
		}
		r.row.Runs++
		if first == nil {
			first = after
		} else if err := b.BackwardSame(first, after); err != nil {
			r.row.fail("run %d gives other bits: %v", n+1, err)
		}
	}
	if g.Conformance {
		if err := b.BackwardTrespass(b.Image, first); err != nil {
			r.row.fail("%v", err)
		}
		if !b.Layout.Aliases() {
			spoiled := b.BackwardSpoiled()
			after, err := once(spoiled)
			if err != nil {
				return err
			}
			if err := b.BackwardTrespass(spoiled, after); err != nil {
				r.row.fail("with spoiled memory: %v", err)
			}
			if err := b.BackwardSame(first, after); err != nil {
				r.row.fail("spoiled memory changes bits: %v", err)
			}
		}
	}
	g.say(g.problem, r.row.Who, "comparing gradients")
	return r.judgeGradients(op.Config(), b, first)
}

// rejected is the reason why a tier computes no gradients.
func rejected(p *attention.BackwardPlan, tier attention.Tier) string {
	for _, x := range p.Rejected {
		if x.Tier == tier {
			return fmt.Sprintf("gradients on tier %v: %s", tier, x.Reason)
		}
	}
	return fmt.Sprintf("gradients on tier %v", tier)
}

// judgeGradients compares the gradients with float64 sums.
func (r *result) judgeGradients(cfg attention.Config, b *cases.Backward, after [][]byte) error {
	v, err := accuracy.VerifyBackward(problem.Config(cfg), b.BackwardHostArgs(after), accuracy.Options{Seed: b.SeedValue()})
	var shape *attention.ShapeError
	switch {
	case errors.As(err, &shape):
		return fmt.Errorf("judging gradients: %s", err) // not a refusal of the implementation
	case err != nil:
		return err
	}
	worst, nmse := v.Worst()
	r.row.Reference, r.row.Rows = "float64", int64(v.Rows)
	r.row.Float64 = bench.Checked{Rows: v.Rows, Of: v.OfRows, Keys: v.Keys, MaxError: bench.Number(worst),
		NMSE: bench.Number(nmse)}
	r.row.Gradients, r.row.Unjudged = map[string]Diff{}, r.tablesWithout(cfg, b)
	for i := range v.Tensors {
		x := &v.Tensors[i]
		if x.Unjudged == "" {
			r.row.Gradients[x.Name] = fromReport(&x.Report)
		} else {
			r.row.Unjudged[x.Name] = x.Unjudged
		}
		if !x.Pass() {
			r.row.fail("%s versus float64: %s", x.Name, strings.Join(x.Reasons(), ", "))
		}
	}
	if r.row.Status == "" {
		r.row.Status = bench.OK
	}
	return nil
}

// tablesWithout are the tables of floats of a score modifier that have no gradient, and why.
func (r *result) tablesWithout(cfg attention.Config, b *cases.Backward) map[string]string {
	why := map[string]string{}
	if b.Modifiers == nil || !cfg.ScoreMod.Given() {
		return why
	}
	read, _ := score.TablesOf(cfg.ScoreMod) // New has checked it
	with := b.BackwardHostArgs(b.Image).DTables
	for _, t := range read {
		if t.Type() == score.TypeFloat && !slices.ContainsFunc(with, func(d attention.Table) bool { return d.Name == t.Name() }) {
			why["dTables["+t.Name()+"]"] = fmt.Sprintf("it has over %d entries for a head", score.MaxTableEntries)
		}
	}
	return why
}

// backwardNeeded is the largest amount of host memory that the gradients of a problem take
// at any time.
func (v *Verifier) backwardNeeded(c cases.Case, dtype attention.DType) uint64 {
	c.LSE = true
	f := footprintOf(c, dtype)
	// dO, dLSE, dQ, dK and dV take what O, LSE, Q, K and V do.
	image := hostmem.Product(f.image, 2)
	runs := uint64(3) // the memory, the first and another
	if v.Conformance {
		runs = 6
	}
	running := hostmem.Sum(hostmem.Product(image, runs), accuracy.VerifyBackwardBytes(problem.Config{DType: dtype,
		HeadDim: c.D, HeadDimV: c.Dv}, c.Shape))
	making := hostmem.Sum(hostmem.Product(f.inputs, 4), hostmem.Product(f.largest, 4))
	return hostmem.Sum(image, max(making, running))
}
