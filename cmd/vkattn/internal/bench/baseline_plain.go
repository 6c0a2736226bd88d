package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/internal/plain"
)

// plain prepares the row of BaselinePlain, of any pass. A row whose scores do not fit in
// memory is refused before anything is allocated. Its memory counts the tensors and the
// scores.
func (g *group) plain(ctx context.Context, s Spec) (*candidate, *Row) {
	row := g.row(g.problem, s)
	row.Tier = ""
	cfg, shape, backward := g.problem.Config, g.problem.Shape, g.problem.Pass != PassForward
	cfg.Tier = s.Tier
	if err := plain.Check(cfg, shape); err != nil {
		return nil, g.stop(row, err)
	}
	f, scores := g.problem.footprint(), plain.Bytes(cfg, shape, backward)
	row.Memory = hostmem.Sum(f.tensors, f.lists, scores)
	if err := g.room(g.Device, "", scores); err != nil {
		return nil, g.stop(row, err)
	}
	p, err := g.setup(ctx, g.Device, "", scores)
	if err != nil {
		return nil, g.stop(row, err)
	}
	op, err := plain.New(g.Device, cfg, shape, backward)
	if err != nil {
		return nil, g.stop(row, err)
	}
	g.closers = append(g.closers, op.Close)
	row.Tier, row.Tile = op.Tier().String(), op.Tile()
	w := &work{op: op, pass: g.problem.Pass, name: "plain " + g.problem.String()}
	clock := p.runner.clock(w)
	row.Sets, row.Timer = p.runner.sets(), clock.timer()
	if err := g.verifyPlain(ctx, row, p, w); err != nil {
		return nil, g.stop(row, err)
	}
	if row.Status != "" {
		return nil, row
	}
	return &candidate{row: row, clock: clock, run: func(ctx context.Context, n int) ([]time.Duration, error) {
		return p.runner.timed(ctx, w, n)
	}}, row
}

// verifyPlain runs the row once and compares it with the float64 reference. A wrong result
// sets the status of the row.
func (g *group) verifyPlain(ctx context.Context, row *Row, p *setup, w *work) error {
	if w.pass != PassForward {
		out, err := g.gradients(ctx, p, w)
		if err != nil {
			return err
		}
		a := p.data.all()
		for name, t := range map[string]*attention.Tensor{"DQ": &a.DQ, "DK": &a.DK, "DV": &a.DV} {
			t.Host = out[name]
		}
		return g.judgeGradients(row, g.problem.Config, a)
	}
	out, _, err := g.once(ctx, p, w) // plain attention has no LSE
	if err != nil {
		return err
	}
	if g.truth == nil {
		if g.truth, err = newTruth(g.in, g.Seed); err != nil {
			return err
		}
	}
	if err := g.keep(row, p.data, out); err != nil {
		return err
	}
	if row.Checked, err = g.truth.judge(p.data, out, nil); err != nil {
		row.Status, row.Reason = Fail, errorText(err)
	}
	return nil
}
