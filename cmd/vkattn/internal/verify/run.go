package verify

import (
	"bytes"
	"context"
	"errors"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/internal/cases"
)

// compute runs all implementations and the reference. It returns an error only if
// nothing else can run.
func (g *group) compute(ctx context.Context) error {
	for _, i := range g.List {
		if g.Here != nil && !g.Here(i, g.problem.DType) {
			continue
		}
		r := &result{row: g.row(i.String()), problem: g.problem}
		g.results = append(g.results, r)
		g.say(g.problem, r.row.Who, "computing")
		dev := g.on(i.Tier)
		m, err := g.memory(dev)
		if err == nil {
			err = g.runs(ctx, r, m, dev, config(i, g.problem.Case, g.problem.DType, g.Conformance))
		}
		if err := r.stop(err); err != nil {
			return err
		}
	}
	// Free the memory for the reference, whose tensors are twice as large.
	if err := g.close(); err != nil {
		return err
	}
	if g.Reference == nil || g.problem.Modifiers != nil {
		return nil
	}
	return g.computeReference(ctx)
}

// computeReference runs the reference on the stored numbers, widened to float32.
func (g *group) computeReference(ctx context.Context) error {
	g.say(g.problem, "reference", "computing")
	wide, err := g.problem.Widened()
	if err != nil {
		return err
	}
	r := &result{row: g.row("reference"), problem: wide}
	r.row.Is = true
	g.reference = r
	dev := g.on(g.Reference.Tier)
	m, err := g.newMemory(dev, wide.Image)
	if err == nil {
		r.after, err = g.once(ctx, r, m, dev, config(*g.Reference, wide.Case, attention.F32, false),
			func() error { return m.write(wide.Image, nil) }, wide.Outputs())
		if e := m.Close(); err == nil {
			err = e
		}
	}
	return r.stop(err)
}

// memory returns the memory of the problem on a device or the host, with the inputs.
func (g *group) memory(dev *attention.Device) (memory, error) {
	if m, ok := g.memories[dev != nil]; ok {
		return m, nil
	}
	m, err := g.newMemory(dev, g.problem.Image)
	if err != nil {
		return m, err
	}
	if g.memories == nil {
		g.memories = map[bool]memory{}
	}
	g.memories[dev != nil] = m
	return m, m.write(g.problem.Image, nil)
}

// runs runs a problem Repeat times, and for the conformance table with spoiled keys.
func (g *group) runs(ctx context.Context, r *result, m memory, dev *attention.Device, cfg attention.Config) error {
	p, look := g.problem, g.problem.Outputs()
	if g.Conformance {
		look = nil // all
	}
	for n := range max(g.Repeat, 1) {
		after, err := g.once(ctx, r, m, dev, cfg, func() error { return m.write(p.Image, p.Outputs()) }, look)
		if err != nil {
			return err
		}
		r.row.Runs++
		if g.Conformance {
			if err := p.Trespass(p.Image, after); err != nil {
				r.row.fail("%v", err)
				if err := m.write(p.Image, nil); err != nil {
					return err
				}
			}
		}
		if n == 0 {
			r.after = after
			continue
		}
		if err := same(p, r.after, after); err != nil {
			r.row.fail("run %d gives other bits: %v", n+1, err)
		}
	}
	if !g.Conformance || p.Layout.Aliases() {
		return nil
	}
	return g.spoiled(ctx, r, m, dev, cfg)
}

// spoiled repeats the call with keys replaced by NaN and Inf: first the keys that no row
// attends to, then, under a mask, the later half of the others too.
func (g *group) spoiled(ctx context.Context, r *result, m memory, dev *attention.Device, cfg attention.Config) error {
	p := g.problem
	for i, first := range []int{p.Hidden(), p.HalfSeen()} {
		if first >= p.Shape.Sk || i == 1 && p.Causal == attention.CausalNone {
			continue
		}
		images, err := p.Spoil(first)
		if err != nil {
			return err
		}
		after, err := g.once(ctx, r, m, dev, cfg, func() error { return m.write(images, nil) }, p.Outputs())
		if err != nil {
			return err
		}
		if err := p.SameRows(r.after, after, first); err != nil {
			r.row.fail("spoiling keys from %d on changed rows that do not attend to them: %v", first, err)
		}
		if err := m.write(p.Image, nil); err != nil {
			return err
		}
	}
	return nil
}

// once writes memory, makes one call and returns the given pieces of memory after it.
func (g *group) once(ctx context.Context, r *result, m memory, dev *attention.Device, cfg attention.Config,
	write func() error, pieces []int) ([][]byte, error) {
	op, err := g.op(dev, cfg)
	if err != nil {
		return nil, err
	}
	if r.row.Entry == "" {
		plan, err := op.Plan(r.problem.Shape)
		if err != nil {
			return nil, err
		}
		r.row.Entry, r.row.Tile = plan.Kernel, plan.Tiles()
	}
	return g.call(ctx, r, m, write, pieces, func() error {
		return op.Forward(m.Order(), r.problem.Args(m.hold))
	})
}

// call writes memory, makes calls and returns the given pieces of memory after them, all for nil.
func (g *group) call(ctx context.Context, r *result, m memory, write func() error, pieces []int,
	calls ...func() error) (after [][]byte, err error) {
	if err = write(); err == nil {
		err = m.run(ctx, calls...)
	}
	if err == nil {
		after, err = m.read(ctx, pieces)
	}
	if err != nil {
		return nil, err
	}
	if g.Touch != nil {
		g.Touch(r.row.Who, r.problem, after)
	}
	return after, nil
}

// same compares the outputs of two runs bit by bit.
func same(p *cases.Problem, a, b [][]byte) error {
	for _, i := range p.Outputs() {
		if !bytes.Equal(a[i], b[i]) {
			return p.SameRows(a, b, p.Shape.Sk)
		}
	}
	return nil
}

// stop sets the status of a row that failed with err. It returns err if nothing else can
// run.
func (r *result) stop(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	status, lost := bench.StatusOf(err)
	r.after, r.row.Status = nil, status
	r.row.Reasons = append(r.row.Reasons, flagtext.OneLine(flagtext.Sweep.Text(err)))
	if lost {
		return err
	}
	return nil
}
