package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"vkattn/attention"
	"vkattn/attention/accuracy"
	"vkattn/attention/cases"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/vk"
)

// Verifier compares implementations on one device, or on the CPU. Problem may be
// called from many goroutines.
type Verifier struct {
	Device *vk.Device // nil: only the CPU tier can run
	Label  string     // of the device, in rows
	List   []Implementation
	// Witness runs on widened inputs; nil: the float64 reference of the CPU.
	Witness *Implementation
	Repeat  int // runs of each implementation; all have to give the same bits
	Rows    int // about how many rows the CPU computes in float64; 0: a second or so of work

	// Conformance adds what the table checks besides: nothing but outputs is
	// written, and what no row attends to changes nothing.
	Conformance bool

	// Here reports whether an implementation runs a storage type at all; those that do
	// not have no row. nil: all have one.
	Here func(Implementation, attention.DType) bool

	// Touch is called with the memory that a run left, before it is looked at, and
	// may change it: how tests see that a wrong result is found. nil: nobody does.
	Touch func(who string, p *cases.Problem, after [][]byte)
	// Progress is called with what is being done; nil: nobody listens.
	Progress func(text string)

	mu  sync.Mutex
	ops map[attention.Config]*attention.Op
}

// Close drops the operations. The device stays the caller's.
func (v *Verifier) Close() error {
	var all []error
	for _, op := range v.ops {
		all = append(all, op.Close())
	}
	v.ops = nil
	return errors.Join(all...)
}

// Problem has every implementation compute a case and compares them. There is a
// row for each, the witness of the GPU first. The error is that of a device which
// cannot go on, or of ctx; the rows are good all the same.
func (v *Verifier) Problem(ctx context.Context, c cases.Case, dtype attention.DType) (rows []*Row, err error) {
	p, err := cases.NewProblem(c, dtype)
	if err != nil {
		return nil, err
	}
	g := &group{Verifier: v, problem: p}
	defer func() {
		if e := g.close(); err == nil {
			err = e
		}
	}()
	n := v.Rows
	switch {
	case v.Conformance && c.SampleMax == 0:
		n = math.MaxInt // small, and of data that a sample would not do justice to
	case v.Conformance:
		n = c.SampleMax
	case n == 0:
		n = affordable(p.Config(cases.On(0, dtype)), c.Shape)
	}
	g.truth.Sample = sample(c.Shape, c.Causal, n, p.SeedValue())
	// The CPU is busy with the reference while the device computes.
	known := make(chan error, 1)
	go func() { known <- g.truth.Expect(p) }()
	err = g.compute(ctx)
	if e := <-known; err == nil && e != nil {
		return nil, e
	}
	if err != nil {
		return g.rows(), err
	}
	v.say(g.problem, "all", "comparing")
	return g.rows(), g.judge()
}

func (v *Verifier) say(p *cases.Problem, who, what string) {
	if v.Progress != nil {
		v.Progress(fmt.Sprintf("%s %v %v: %s", who, p.DType, p.Case, what))
	}
}

// op finds or makes an operation. Those of a table share pipelines, not much else.
func (v *Verifier) op(dev *vk.Device, cfg attention.Config) (*attention.Op, error) {
	v.mu.Lock()
	defer v.mu.Unlock() // attention.New compiles nothing
	if op := v.ops[cfg]; op != nil {
		return op, nil
	}
	op, err := attention.New(dev, cfg)
	if err == nil {
		if v.ops == nil {
			v.ops = map[attention.Config]*attention.Op{}
		}
		v.ops[cfg] = op
	}
	return op, err
}

// group is the state of one problem.
type group struct {
	*Verifier
	problem  *cases.Problem
	truth    cases.Truth
	memories map[bool]memory // by whether it is the device's
	results  []*result
	witness  *result // nil: the float64 reference
}

// result is what one implementation left in memory.
type result struct {
	row     *Row
	problem *cases.Problem
	after   [][]byte // pieces with outputs; nil where there is nothing to compare
}

func (g *group) rows() (rows []*Row) {
	if g.witness != nil {
		rows = append(rows, g.witness.row)
	}
	for _, r := range g.results {
		rows = append(rows, r.row)
	}
	return rows
}

func (g *group) close() (err error) {
	for _, m := range g.memories {
		if e := m.close(); err == nil {
			err = e
		}
	}
	g.memories = nil
	return err
}

// row is an empty row of the problem.
func (g *group) row(who string) *Row {
	c := g.problem.Case
	r := &Row{Device: g.Label, Who: who, B: c.Shape.B, Hq: c.Shape.Hq, Hkv: c.Shape.KVHeads(), Sq: c.Shape.Sq, Sk: c.Shape.Sk,
		D: c.D, Dv: c.Dv, Causal: c.Causal, DType: g.problem.DType, Seed: c.SeedValue(), Of: c.Shape.Rows()}
	if g.Conformance {
		r.Case = c.String()
	}
	return r
}

// compute runs everything. The error ends the command.
func (g *group) compute(ctx context.Context) error {
	for _, i := range g.List {
		if g.Here != nil && !g.Here(i, g.problem.DType) {
			continue
		}
		r := &result{row: g.row(i.String()), problem: g.problem}
		g.results = append(g.results, r)
		g.say(g.problem, r.row.Who, "computing")
		dev := g.Device
		if i.Tier == attention.TierCPU {
			dev = nil
		}
		m, err := g.memory(dev)
		if err == nil {
			err = g.runs(ctx, r, m, dev, i.config(g.problem.Case, g.problem.DType, g.Conformance))
		}
		if err := r.stop(err); err != nil {
			return err
		}
	}
	// Room for the witness, whose tensors are twice as large.
	if err := g.close(); err != nil {
		return err
	}
	if g.Witness == nil {
		return nil
	}
	return g.computeWitness(ctx)
}

// computeWitness runs the witness on the numbers as they are stored, in float32.
func (g *group) computeWitness(ctx context.Context) error {
	g.say(g.problem, "witness", "computing")
	wide, err := g.problem.Widened()
	if err != nil {
		return err
	}
	r := &result{row: g.row("witness"), problem: wide}
	r.row.Is = true
	g.witness = r
	dev := g.Device
	if g.Witness.Tier == attention.TierCPU {
		dev = nil
	}
	m, err := newMemory(dev, wide, HasCUDA(dev))
	if err == nil {
		var all []int
		for i := range wide.Image {
			all = append(all, i)
		}
		if err = m.write(wide.Image, all); err == nil {
			cfg := g.Witness.config(wide.Case, attention.F32, false)
			r.after, err = g.once(ctx, r, m, dev, cfg, wide.Outputs())
		}
		if e := m.close(); err == nil {
			err = e
		}
	}
	return r.stop(err)
}

// memory has the problem on a device, with its inputs.
func (g *group) memory(dev *vk.Device) (memory, error) {
	if m := g.memories[dev != nil]; m != nil {
		return m, nil
	}
	m, err := newMemory(dev, g.problem, dev != nil && HasCUDA(dev))
	if err != nil {
		return nil, err
	}
	if g.memories == nil {
		g.memories = map[bool]memory{}
	}
	g.memories[dev != nil] = m
	return m, m.write(g.problem.Image, g.pieces())
}

func (g *group) pieces() (all []int) {
	for i := range g.problem.Image {
		all = append(all, i)
	}
	return all
}

// runs computes a problem as often as is asked for, and with spoiled keys.
func (g *group) runs(ctx context.Context, r *result, m memory, dev *vk.Device, cfg attention.Config) error {
	p, look := g.problem, g.problem.Outputs()
	if g.Conformance {
		look = g.pieces()
	}
	for n := range max(g.Repeat, 1) {
		if err := m.write(p.Image, p.Outputs()); err != nil {
			return err
		}
		after, err := g.once(ctx, r, m, dev, cfg, look)
		if err != nil {
			return err
		}
		r.row.Runs++
		if g.Conformance {
			if err := p.Trespass(p.Image, after); err != nil {
				r.row.fail("%v", err)
				if err := m.write(p.Image, g.pieces()); err != nil {
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

// spoiled repeats the call with keys replaced by NaN and Inf: those that no row
// attends to, and under a mask half of the others too.
func (g *group) spoiled(ctx context.Context, r *result, m memory, dev *vk.Device, cfg attention.Config) error {
	p := g.problem
	for i, first := range []int{p.Hidden(), p.HalfSeen()} {
		if first >= p.Shape.Sk || i == 1 && p.Causal == attention.CausalNone {
			continue
		}
		images, err := p.Spoil(first)
		if err != nil {
			return err
		}
		if err := m.write(images, g.pieces()); err != nil {
			return err
		}
		after, err := g.once(ctx, r, m, dev, cfg, p.Outputs())
		if err != nil {
			return err
		}
		if err := p.SameRows(r.after, after, first); err != nil {
			r.row.fail("spoiling keys from %d on changed rows that do not attend to them: %v", first, err)
		}
		if err := m.write(p.Image, g.pieces()); err != nil {
			return err
		}
	}
	return nil
}

// once is one call, and what it left in some pieces of memory.
func (g *group) once(ctx context.Context, r *result, m memory, dev *vk.Device, cfg attention.Config, pieces []int) ([][]byte, error) {
	op, err := g.op(dev, cfg)
	if err != nil {
		return nil, err
	}
	if r.row.Entry == "" {
		plan, err := op.Plan(r.problem.Shape)
		if err != nil {
			return nil, err
		}
		r.row.Entry, r.row.Tile = plan.Kernel, plan.Tile
	}
	if err := m.run(ctx, op); err != nil {
		return nil, err
	}
	after, err := m.read(ctx, pieces)
	if err == nil && g.Touch != nil {
		g.Touch(r.row.Who, r.problem, after)
	}
	return after, err
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

// stop ends a row with an error and returns it where nothing can go on.
func (r *result) stop(err error) error {
	var shape *attention.ShapeError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &shape), errors.Is(err, vk.ErrUnsupported):
		r.row.Status = bench.Unsupported
	default:
		r.row.Status = bench.Broken
	}
	r.after = nil
	r.row.Reasons = append(r.row.Reasons, oneLine(err.Error()))
	if errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, vk.ErrClosed) {
		return err
	}
	return nil
}

// oneLine joins lines, and drops the names of packages.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; ")
	return strings.NewReplacer("attention: ", "", "vk: ", "", "cudapath: ", "").Replace(text)
}

// limits are those of accuracy with what is known of low.
func (g *group) estimates() (o, lse *accuracy.Estimate) {
	p, t := g.problem, &g.truth
	var keys []int
	for _, s := range t.Sample {
		for _, row := range s.Rows {
			keys = append(keys, p.Causal.Visible(row, p.Shape.Sq, p.Shape.Sk))
		}
	}
	limits := accuracy.Forward(p.DType)
	limits.Noise = t.Noise
	o = accuracy.NewEstimate(limits, p.Dv, keys, t.Ref, t.Low, p.Shape.Rows()*int64(p.Dv))
	limits = accuracy.ForwardLSE(p.DType)
	limits.Noise = t.NoiseLSE
	return o, accuracy.NewEstimate(limits, 1, keys, t.RefLSE, t.LowLSE, p.Shape.Rows())
}
