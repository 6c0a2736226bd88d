package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/vk"
)

// Bench measures problems on one device, or on the CPU.
type Bench struct {
	Device *vk.Device // nil: only the CPU tier can run
	Label  string     // of the device, in rows
	CPU    string     // of the CPU, in rows
	Specs  []Spec     // a row of each problem each
	Peers  []Peer     // and one of each of these
	Seed   uint64

	Repeats int           // timed runs of a row; 0: DefaultRepeats, fewer where each takes long
	MinTime time.Duration // timed runs of a row go on for at least this long

	// Clock reads the GPU's clocks; nil: not known.
	Clock func() *Clock
	// Progress is called with what is being done; nil: nobody listens.
	Progress func(text string)
	// Done is called after each row.
	Done func()
}

// Group measures one problem by every Spec and every peer, their timed runs
// taking turns so that none gets a warmer or a quieter machine. It returns a row
// of each. The error is that of a device which cannot go on, or of ctx; the rows
// are good all the same.
func (b *Bench) Group(ctx context.Context, p Problem) (rows []*Row, err error) {
	if err := p.Shape.Validate(); err != nil {
		for _, s := range b.Specs {
			rows = append(rows, b.row(p, s))
		}
		for _, by := range b.Peers {
			rows = append(rows, p.peerRow(by, b.Label))
		}
		for _, row := range rows {
			row.Status, row.Reason = Unsupported, plain(err)
			b.done()
		}
		return rows, nil
	}
	g := &group{Bench: b, problem: p}
	defer g.close()
	defer g.release(ctx)
	var ready []*candidate
	add := func(c *candidate, row *Row) error {
		rows = append(rows, row)
		if c != nil {
			ready = append(ready, c)
		} else {
			b.done()
		}
		return errors.Join(ctx.Err(), g.lost)
	}
	for _, s := range b.Specs {
		b.say(p, b.row(p, s).Who(), "checking")
		if err := add(g.candidate(ctx, s)); err != nil {
			return rows, err
		}
	}
	for _, by := range b.Peers {
		b.say(p, by.Info().Name, "checking")
		if err := add(g.peer(ctx, by)); err != nil {
			return rows, err
		}
	}
	err = g.time(ctx, ready)
	compare(rows)
	return rows, err
}

// row is an empty row of what a Spec runs.
func (b *Bench) row(p Problem, s Spec) *Row {
	row := p.row(b.label(s.Tier))
	row.Tier, row.Kernel, row.Variant = s.Tier.String(), s.Kernel, variantLabel(s.Lab.Variant)
	if s.Lab.Ablate != attention.AblateNone {
		row.Ablation = s.Lab.Ablate.String()
	}
	return row
}

func (b *Bench) label(tier attention.Tier) string {
	if b.Device == nil || tier == attention.TierCPU {
		return b.CPU
	}
	return b.Label
}

func (b *Bench) done() {
	if b.Done != nil {
		b.Done()
	}
}

func (b *Bench) say(p Problem, who, what string) {
	if b.Progress != nil {
		b.Progress(fmt.Sprintf("%s %v: %s", who, p, what))
	}
}

// group is the state of one problem.
type group struct {
	*Bench
	problem Problem
	in      *hostInputs
	truth   *truth
	cpu     lane
	device  lane
	ops     []*attention.Op
	peers   []Peer // that have been given the problem
	lost    error  // a device that cannot go on
}

func (g *group) close() {
	for _, op := range g.ops {
		_ = op.Close()
	}
	if g.device != nil {
		g.device.close()
	}
	if g.cpu != nil {
		g.cpu.close()
	}
}

// candidate plans, runs once and verifies a Spec. It returns nil with a row
// that says why when there is nothing to time. An ablation is wrong by design:
// it is run and not verified.
func (g *group) candidate(ctx context.Context, s Spec) (*candidate, *Row) {
	row := g.row(g.problem, s)
	cfg := g.problem.Config
	cfg.Tier, cfg.Kernel = s.Tier, s.Kernel
	dev := g.Device
	if s.Tier == attention.TierCPU {
		dev = nil
	}
	op, err := attention.NewLab(dev, cfg, s.Lab)
	if err != nil {
		if s.Lab != (attention.Lab{}) {
			row.Tier = g.planned(dev, cfg).String()
		}
		return nil, g.stop(row, err)
	}
	g.ops = append(g.ops, op)
	plan, err := op.Plan(g.problem.Shape)
	if err != nil {
		return nil, g.stop(row, err)
	}
	row.Tier, row.Tile, row.Memory = plan.Tier.String(), plan.Tile, plan.Bytes
	if plan.Tier == attention.TierCUDA && s.Kernel == "" {
		row.Tile = plan.Kernel + " " + plan.Tile
	}
	lane, err := g.lane(ctx, dev)
	if err != nil {
		return nil, g.stop(row, err)
	}
	out, err := lane.once(ctx, op)
	if err != nil {
		return nil, g.stop(row, err)
	}
	row.Sets, row.Timer = lane.sets(), lane.timer()
	c := &candidate{row: row, onCPU: dev == nil, run: func(ctx context.Context, n int) ([]time.Duration, error) {
		return lane.timed(ctx, op, n)
	}}
	if row.Ablation != "" {
		return c, row
	}
	if g.truth == nil {
		if g.truth, err = newTruth(g.problem, g.in, g.Seed); err != nil {
			return nil, g.stop(row, err)
		}
	}
	if row.Checked, err = g.truth.judge(out); err != nil {
		row.Status, row.Reason = Fail, plain(err)
		return nil, row
	}
	return c, row
}

// planned is the tier that would have run, for a row whose variant or ablation
// it refuses to stand beside its others.
func (g *group) planned(dev *vk.Device, cfg attention.Config) attention.Tier {
	op, err := attention.New(dev, cfg)
	if err != nil {
		return cfg.Tier
	}
	g.ops = append(g.ops, op)
	plan, err := op.Plan(g.problem.Shape)
	if err != nil {
		return cfg.Tier
	}
	return plan.Tier
}

// lane makes the inputs where the tier runs, once for all tiers there.
func (g *group) lane(ctx context.Context, dev *vk.Device) (lane, error) {
	if g.in == nil {
		in := newInputs(g.problem, g.Seed)
		g.in = &in
	}
	if dev == nil {
		if g.cpu == nil {
			g.cpu = newCPULane(g.problem, *g.in)
		}
		return g.cpu, nil
	}
	if g.device == nil {
		l, err := newDeviceLane(ctx, dev, g.problem, *g.in, g.usesCUDA())
		if err != nil {
			return nil, err
		}
		g.device = l
	}
	return g.device, nil
}

// usesCUDA reports whether the tensors have to be in CUDA's reach.
func (b *Bench) usesCUDA() bool {
	return slices.ContainsFunc(b.Specs, func(s Spec) bool { return s.Tier == attention.TierCUDA })
}

// stop ends a row with an error. An interrupted row has no status.
func (g *group) stop(row *Row, err error) *Row {
	if errors.Is(err, context.Canceled) {
		return row
	}
	var shape *attention.ShapeError
	row.Status, row.Reason = Broken, plain(err)
	if row.Peer {
		if status, known := peerStatus(err); known {
			row.Status = status
		}
		return row
	}
	switch {
	case errors.As(err, &shape), errors.Is(err, vk.ErrUnsupported):
		row.Status = Unsupported
	case errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrClosed):
		g.lost = err
	}
	return row
}

// plain is an error in one line, without the name of the package it is from.
func plain(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
	return strings.TrimPrefix(strings.TrimPrefix(text, "attention: "), "vk: ")
}
