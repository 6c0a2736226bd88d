package bench

import (
	"context"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/internal/plain"
	"vkattn/vk"
)

// plain prepares the row of BaselinePlain, of any pass. A row whose scores do not fit in
// memory is refused before anything is allocated. Its memory counts the tensors and the
// scores.
func (g *group) plain(ctx context.Context, dev *vk.Device, cfg attention.Config, _ Spec, row *Row) (*work, *setup, error) {
	row.Tier = ""
	shape, backward := g.problem.Shape, g.problem.Pass != PassForward
	if err := plain.Check(cfg, shape); err != nil {
		return nil, nil, err
	}
	f, scores := g.problem.footprint(), plain.Bytes(cfg, shape, backward)
	row.Memory = hostmem.Sum(f.tensors, f.lists, scores)
	if err := g.room(dev, "", scores); err != nil { // the setup may be there
		return nil, nil, err
	}
	p, err := g.setup(ctx, dev, "", scores)
	if err != nil {
		return nil, nil, err
	}
	op, err := plain.New(dev, cfg, shape, backward)
	if err != nil {
		return nil, nil, err
	}
	g.closers = append(g.closers, op.Close)
	row.Tier, row.Tile = op.Tier().String(), op.Tile()
	return &work{op: op, name: "plain " + g.problem.String(), planned: func(*Row, *setup) error { return nil }}, p, nil
}
