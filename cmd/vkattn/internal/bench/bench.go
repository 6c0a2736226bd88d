package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	Peers  []Peer     // and one of each of these, of problems they know
	// Against are the forms that rows are compared with, where there is such a form
	// of the problem.
	Against []Form
	Seed    uint64

	Repeats int           // timed runs of a row; 0: DefaultRepeats, fewer where each takes long
	MinTime time.Duration // timed runs of a row go on for at least this long

	// Clock reads the GPU's clocks; nil: not known.
	Clock func() *Clock
	// Progress is called with what is being done; nil: nobody listens.
	Progress func(text string)
	// Done is called after each row.
	Done func()
}

// specs are the rows of a problem but for the peers'.
func (b *Bench) specs(p Problem) []Spec {
	out := slices.Clone(b.Specs)
	for _, f := range b.Against {
		if f.applies(p, b.Device) {
			tier := attention.TierAuto
			if len(b.Specs) > 0 {
				tier = b.Specs[0].Tier
			}
			out = append(out, f.spec(tier, b.Device))
		}
	}
	return out
}

// peers are those that take a problem.
func (b *Bench) peers(p Problem) []Peer {
	if !p.Plain() {
		return nil
	}
	return b.Peers
}

// Rows is how many rows a list of problems has.
func (b *Bench) Rows(list []Problem) (n int) {
	for _, p := range list {
		n += len(b.specs(p)) + len(b.peers(p))
	}
	return n
}

// Rivals names the rows of this program that others of a list of problems are
// compared with.
func (b *Bench) Rivals(list []Problem) []string {
	names := Rivals(b.Specs)
	for _, f := range b.Against {
		if slices.ContainsFunc(list, func(p Problem) bool { return f.applies(p, b.Device) }) {
			names = append(names, string(f))
		}
	}
	return names
}

// Group measures one problem by every Spec and every peer, their timed runs
// taking turns so that none gets a warmer or a quieter machine. It returns a row
// of each. The error is that of a device which cannot go on, or of ctx; the rows
// are good all the same.
func (b *Bench) Group(ctx context.Context, p Problem) (rows []*Row, err error) {
	specs, peers := b.specs(p), b.peers(p)
	if err := p.Shape.Validate(); err != nil {
		for _, s := range specs {
			rows = append(rows, b.row(p, s))
		}
		for _, by := range peers {
			rows = append(rows, p.peerRow(by, b.Label))
		}
		for _, row := range rows {
			row.Status, row.Reason = Unsupported, plain(err)
			b.done()
		}
		return rows, nil
	}
	g := &group{Bench: b, problem: p}
	g.compared = slices.ContainsFunc(specs, func(s Spec) bool { return s.Form.witness() })
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
	for _, s := range specs {
		b.say(p, b.row(p, s).Who(), "checking")
		if err := add(g.candidate(ctx, s)); err != nil {
			return rows, err
		}
	}
	g.differences(rows)
	for _, by := range peers {
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
	row.Tier, row.Kernel, row.Variant, row.Form = s.Tier.String(), s.Kernel, variantLabel(s.Lab.Variant), s.Form
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
	problem  Problem
	in       *data
	truth    *truth
	places   []*place
	closers  []func() error // of operations
	copies   *copyLane
	peers    []Peer // that have been given the problem
	compared bool   // results are kept to be compared
	results  map[*Row][]float32
	lost     error // a device that cannot go on
}

// place is where one form of the problem's data lies.
type place struct {
	form     Form // FormByMask, FormContiguous or none
	onDevice bool
	data     *data
	lane     lane
}

func (g *group) close() {
	for _, f := range g.closers {
		_ = f()
	}
	for _, p := range g.places {
		p.lane.close()
	}
	if g.copies != nil {
		g.copies.close()
	}
}

// candidate plans, runs once and verifies a Spec. It returns nil with a row
// that says why when there is nothing to time. An ablation is wrong by design:
// it is run and not verified.
func (g *group) candidate(ctx context.Context, s Spec) (*candidate, *Row) {
	row := g.row(g.problem, s)
	dev := g.Device
	if s.Tier == attention.TierCPU {
		dev = nil
	}
	if s.Form == FormCopy {
		return g.copy(ctx, dev, row)
	}
	cfg := g.problem.Config
	if s.Form == FormByMask {
		p, err := g.place(ctx, dev, FormByMask)
		if err != nil {
			return nil, g.stop(row, err)
		}
		cfg = p.data.problem.Config
	}
	cfg.Tier, cfg.Kernel = s.Tier, s.Kernel
	w := &work{cuda: s.Tier == attention.TierCUDA}
	var op *attention.Op
	var err error
	if s.Form == FormNaive {
		w.op, err = Naive(dev, g.problem.Config)
	} else {
		op, err = attention.NewLab(dev, cfg, s.Lab)
		w.op = op
	}
	if err != nil {
		if s.Lab != (attention.Lab{}) {
			row.Tier = g.planned(dev, cfg).String()
		}
		return nil, g.stop(row, err)
	}
	g.closers = append(g.closers, w.op.Close)
	if op != nil && g.problem.Plain() && s.Form == "" {
		// Before there is any memory: a row that is refused costs none.
		plan, err := op.Plan(g.problem.Shape)
		if err != nil {
			return nil, g.stop(row, err)
		}
		row.plan(plan, s)
	}
	p, err := g.place(ctx, dev, s.Form)
	if err != nil {
		return nil, g.stop(row, err)
	}
	if s.Form == FormSeparate {
		w.split = p.data.separate
	}
	out, err := p.lane.once(ctx, w)
	if err != nil {
		return nil, g.stop(row, err)
	}
	if op != nil {
		args := p.lane.args()
		if w.split != nil {
			args = w.split(args)[0]
		}
		plan, err := op.PlanFor(args)
		if err != nil {
			return nil, g.stop(row, err)
		}
		row.plan(plan, s)
	}
	row.Sets, row.Timer, row.KeptRatio = p.lane.sets(), p.lane.timer(), g.in.keptRatio()
	c := &candidate{row: row, onCPU: dev == nil, run: func(ctx context.Context, n int) ([]time.Duration, error) {
		return p.lane.timed(ctx, w, n)
	}}
	if row.Ablation != "" {
		return c, row
	}
	if g.truth == nil {
		if g.truth, err = newTruth(g.in, g.Seed); err != nil {
			return nil, g.stop(row, err)
		}
	}
	if err := g.keep(row, p.data, out); err != nil {
		return nil, g.stop(row, err)
	}
	row.Checked, err = g.truth.judge(p.data, out)
	if err == nil && row.Result != nil && row.Result.NaN > 0 { // of rows that were not sampled
		err = fmt.Errorf("%d of %d elements are NaN", row.Result.NaN, row.Result.Elements)
	}
	if err != nil {
		row.Status, row.Reason = Fail, plain(err)
		return nil, row
	}
	return c, row
}

// copy is the row of FormCopy.
func (g *group) copy(ctx context.Context, dev *vk.Device, row *Row) (*candidate, *Row) {
	row.Tier, row.Timer = "", "wall"
	if dev == nil {
		return &candidate{row: row, onCPU: true, run: hostCopy(g.problem.KVBytes())}, row
	}
	l, err := newCopyLane(ctx, dev, g.problem.KVBytes())
	if err != nil {
		return nil, g.stop(row, err)
	}
	g.copies = l
	row.Sets, row.Timer = l.count, l.timer()
	return &candidate{row: row, run: l.timed}, row
}

// keep holds a result to be compared, and says what is in it.
func (g *group) keep(row *Row, d *data, out []byte) error {
	if !g.compared {
		return nil
	}
	o, err := d.gather(out)
	if err != nil {
		return err
	}
	result := &Result{Elements: len(o)}
	for _, x := range o {
		if x != x {
			result.NaN++
		}
		result.MaxAbs = max(result.MaxAbs, Number(math.Abs(float64(x))))
	}
	row.Result = result
	if g.results == nil {
		g.results = map[*Row][]float32{}
	}
	g.results[row] = o
	return nil
}

// differences fills in how far the results are from those of the witnesses.
func (g *group) differences(rows []*Row) {
	for _, w := range rows {
		ref := g.results[w]
		if !w.Form.witness() || ref == nil {
			continue
		}
		for _, r := range rows {
			if o := g.results[r]; o != nil && r != w {
				if r.Result.From == nil {
					r.Result.From = map[string]Number{}
				}
				r.Result.From[w.Name()] = Number(difference(o, ref))
			}
		}
	}
	g.results = nil
}

// planned is the tier that would have run, for a row whose variant or ablation
// it refuses to stand beside its others.
func (g *group) planned(dev *vk.Device, cfg attention.Config) attention.Tier {
	op, err := attention.New(dev, cfg)
	if err != nil {
		return cfg.Tier
	}
	g.closers = append(g.closers, op.Close)
	plan, err := op.Plan(g.problem.Shape)
	if err != nil {
		return cfg.Tier
	}
	return plan.Tier
}

// place makes the inputs where a form of the problem runs, once for all rows
// there.
func (g *group) place(ctx context.Context, dev *vk.Device, form Form) (*place, error) {
	if form != FormByMask && form != FormContiguous {
		form = ""
	}
	for _, p := range g.places {
		if p.form == form && p.onDevice == (dev != nil) {
			return p, nil
		}
	}
	if g.in == nil {
		g.in = newData(g.problem, g.Seed)
	}
	p := &place{form: form, onDevice: dev != nil, data: g.in}
	switch form {
	case FormContiguous:
		p.data = g.in.contiguous()
	case FormByMask:
		var err error
		if p.data, err = g.in.byMask(); err != nil {
			return nil, err
		}
	}
	if dev == nil {
		p.lane = newCPULane(p.data)
	} else {
		l, err := newDeviceLane(ctx, dev, p.data, g.usesCUDA())
		if err != nil {
			return nil, err
		}
		p.lane = l
	}
	g.places = append(g.places, p)
	return p, nil
}

// usesCUDA reports whether the tensors have to be in CUDA's reach.
func (g *group) usesCUDA() bool {
	return slices.ContainsFunc(g.specs(g.problem), func(s Spec) bool { return s.Tier == attention.TierCUDA })
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
