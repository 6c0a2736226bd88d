package bench

import (
	"context"
	"errors"
	"fmt"
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
	Tiers  []attention.Tier
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

// How a row is timed.
const (
	DefaultRepeats = 30
	slowRepeats    = 3 // enough when slowTime has gone by
	slowTime       = 2 * time.Second
	warmTime       = 500 * time.Millisecond // a cold card measured up to 4x slower
	batchTime      = 20 * time.Millisecond  // of one submission
	batchMost      = 64
)

// candidate is one tier of a problem on its way through a group.
type candidate struct {
	row   *Row
	op    *attention.Op
	lane  lane
	times []time.Duration
	total time.Duration
	each  time.Duration // of one run, as measured last
}

// Group measures one problem on every tier, the timed runs of the tiers taking
// turns so that no tier gets a warmer or a quieter machine. It returns a row a
// tier. The error is that of a device which cannot go on, or of ctx; the rows
// are good all the same.
func (b *Bench) Group(ctx context.Context, p Problem) (rows []*Row, err error) {
	if err := p.Shape.Validate(); err != nil {
		for _, tier := range b.Tiers {
			rows = append(rows, b.refused(p, tier, err))
		}
		return rows, nil
	}
	g := &group{Bench: b, problem: p}
	defer g.close()
	var ready []*candidate
	for _, tier := range b.Tiers {
		b.say(p, tier, "checking")
		c, row := g.candidate(ctx, tier)
		rows = append(rows, row)
		if c != nil {
			ready = append(ready, c)
		} else {
			b.done()
		}
		if ctx.Err() != nil || g.lost != nil {
			return rows, errors.Join(ctx.Err(), g.lost)
		}
	}
	return rows, g.time(ctx, ready)
}

func (b *Bench) refused(p Problem, tier attention.Tier, err error) *Row {
	row := p.row(b.label(tier), tier)
	row.Status, row.Reason = Unsupported, plain(err)
	b.done()
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

func (b *Bench) say(p Problem, tier attention.Tier, what string) {
	if b.Progress != nil {
		b.Progress(fmt.Sprintf("%v %v: %s", tier, p, what))
	}
}

// group is the state of one problem's tiers.
type group struct {
	*Bench
	problem Problem
	in      *hostInputs
	truth   *truth
	cpu     lane
	device  lane
	ops     []*attention.Op
	lost    error // a device that cannot go on
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

// candidate plans, runs once and verifies a tier. It returns nil with a row
// that says why when there is nothing to time.
func (g *group) candidate(ctx context.Context, tier attention.Tier) (*candidate, *Row) {
	row := g.problem.row(g.label(tier), tier)
	cfg := g.problem.Config
	cfg.Tier = tier
	dev := g.Device
	if tier == attention.TierCPU {
		dev = nil
	}
	op, err := attention.New(dev, cfg)
	if err != nil {
		return nil, g.stop(row, err)
	}
	g.ops = append(g.ops, op)
	plan, err := op.Plan(g.problem.Shape)
	if err != nil {
		return nil, g.stop(row, err)
	}
	row.Tier, row.Tile, row.Memory = plan.Tier, plan.Tile, plan.Bytes
	lane, err := g.lane(ctx, dev)
	if err != nil {
		return nil, g.stop(row, err)
	}
	out, err := lane.once(ctx, op)
	if err != nil {
		return nil, g.stop(row, err)
	}
	row.Sets, row.Timer = lane.sets(), lane.timer()
	if g.truth == nil {
		if g.truth, err = newTruth(g.problem, g.in, g.Seed); err != nil {
			return nil, g.stop(row, err)
		}
	}
	if row.Checked, err = g.truth.judge(out); err != nil {
		row.Status, row.Reason = Fail, plain(err)
		return nil, row
	}
	return &candidate{row: row, op: op, lane: lane}, row
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
		l, err := newDeviceLane(ctx, dev, g.problem, *g.in)
		if err != nil {
			return nil, err
		}
		g.device = l
	}
	return g.device, nil
}

// stop ends a row with an error. An interrupted row has no status.
func (g *group) stop(row *Row, err error) *Row {
	if errors.Is(err, context.Canceled) {
		return row
	}
	var shape *attention.ShapeError
	row.Status, row.Reason = Broken, plain(err)
	switch {
	case errors.As(err, &shape), errors.Is(err, vk.ErrUnsupported):
		row.Status = Unsupported
	case errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrClosed):
		g.lost = err
	}
	return row
}

// time measures the candidates in rounds.
func (g *group) time(ctx context.Context, ready []*candidate) error {
	open := ready[:0:0]
	for _, c := range ready {
		g.say(g.problem, c.row.Tier, "warming up")
		if err := g.warm(ctx, c); err == nil {
			open = append(open, c)
		} else if err = g.drop(ctx, c, ready, err); err != nil {
			return err
		}
	}
	for len(open) > 0 {
		still := open[:0:0]
		for _, c := range open {
			g.say(g.problem, c.row.Tier, fmt.Sprintf("run %d", len(c.times)+1))
			if err := g.batch(ctx, c); err != nil {
				if err = g.drop(ctx, c, ready, err); err != nil {
					return err
				}
			} else if g.enough(c) {
				g.finish(c)
			} else {
				still = append(still, c)
			}
		}
		open = still
	}
	return nil
}

// drop ends a row that failed while timed. It returns an error when nothing
// else can be timed either, and ends all rows that have no speed yet.
func (g *group) drop(ctx context.Context, c *candidate, all []*candidate, err error) error {
	g.stop(c.row, err)
	if ctx.Err() == nil && g.lost == nil {
		g.done()
		return nil
	}
	for _, c := range all {
		if c.row.Status == "" {
			g.stop(c.row, err)
		}
	}
	return err
}

func (g *group) warm(ctx context.Context, c *candidate) error {
	for start := time.Now(); time.Since(start) < warmTime; {
		times, err := c.lane.timed(ctx, c.op, c.batchSize())
		if err != nil {
			return err
		}
		c.each = times[len(times)-1]
	}
	return nil
}

func (g *group) batch(ctx context.Context, c *candidate) error {
	n := c.batchSize()
	if left := g.repeats() - len(c.times); left > 0 {
		n = min(n, left)
	}
	times, err := c.lane.timed(ctx, c.op, n)
	if err != nil {
		return err
	}
	for _, t := range times {
		c.total += t
	}
	c.each = times[len(times)-1]
	c.times = append(c.times, times...)
	return nil
}

// batchSize is how many runs fill one submission.
func (c *candidate) batchSize() int {
	if c.each <= 0 {
		return 1
	}
	return int(min(max(batchTime/c.each, 1), batchMost))
}

func (g *group) repeats() int {
	if g.Repeats > 0 {
		return g.Repeats
	}
	return DefaultRepeats
}

func (g *group) enough(c *candidate) bool {
	if c.total < g.MinTime {
		return false
	}
	slow := g.Repeats == 0 && len(c.times) >= slowRepeats && c.total >= slowTime
	return slow || len(c.times) >= g.repeats()
}

func (g *group) finish(c *candidate) {
	for _, t := range c.times {
		c.row.Samples = append(c.row.Samples, float64(t.Nanoseconds())/1e6)
	}
	if g.Clock != nil && c.row.Tier != attention.TierCPU {
		c.row.Clock = g.Clock()
	}
	c.row.Status, c.row.Ms = OK, Summarize(c.row.Samples)
	c.row.TFLOPs = TFLOPs(g.problem, c.row.Ms.Median)
	g.done()
}

// TFLOPs is 2*B*Hq*(Dqk+Dv)*cells over the time, cells being the unmasked
// (row, col) pairs.
func TFLOPs(p Problem, ms float64) float64 {
	if ms <= 0 {
		return 0
	}
	s, c := p.Shape, p.Config
	flops := 2 * float64(s.B) * float64(s.Hq) * float64(c.HeadDim+c.ValueDim()) * float64(s.Cells(c.Causal))
	return flops / (ms * 1e-3) / 1e12
}

// plain is an error in one line, without the name of the package it is from.
func plain(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
	return strings.TrimPrefix(strings.TrimPrefix(text, "attention: "), "vk: ")
}
