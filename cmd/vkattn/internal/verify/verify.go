package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
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
	// Reference runs on widened inputs; nil: the float64 reference of the CPU.
	Reference *Implementation
	Repeat    int // runs of each implementation; all have to give the same bits
	Rows      int // about how many rows the CPU computes in float64; 0: a second or so of work

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
// row for each, the reference of the GPU first. The error is that of a device which
// cannot go on, or of ctx; the rows are good all the same.
func (v *Verifier) Problem(ctx context.Context, c cases.Case, dtype attention.DType) (rows []*Row, err error) {
	n := v.Rows
	switch {
	case v.Conformance && c.SampleMax == 0:
		n = math.MaxInt // small, and of data that a sample would not do justice to
	case v.Conformance:
		n = c.SampleMax
	case n == 0:
		n = affordable(c.Config(cases.On(0, dtype)), c.Shape)
	}
	g := &group{Verifier: v, problem: &cases.Problem{Case: c, DType: dtype}}
	if err := bench.Room(nil, v.hostNeeded(c, dtype, n), 0); err != nil {
		return g.refused(err), nil
	}
	p, err := cases.NewProblem(c, dtype)
	if err != nil {
		return nil, err
	}
	g.problem = p
	defer func() {
		if e := g.close(); err == nil {
			err = e
		}
	}()
	g.truth.Sample = sample(c.Shape, c.Causal, n, p.SeedValue())
	// The CPU is busy with the reference while the device computes.
	known := make(chan error, 1)
	go func() { known <- g.truth.Expect(p) }()
	err = g.compute(ctx)
	if e := <-known; err == nil && e != nil {
		if errors.Is(e, vk.ErrOutOfMemory) {
			return g.refused(e), nil
		}
		return nil, e
	}
	if err != nil {
		return g.rows(), err
	}
	v.say(g.problem, "all", "comparing")
	return g.rows(), g.judge()
}

// refused are rows of a problem that nobody computes for want of host memory.
func (g *group) refused(err error) []*Row {
	rows := g.Unfinished(g.problem.Case, g.problem.DType)
	for _, r := range rows {
		_ = (&result{row: r}).stop(err)
	}
	return rows
}

// Unfinished are the rows of a problem, without a verdict.
func (v *Verifier) Unfinished(c cases.Case, dtype attention.DType) (rows []*Row) {
	g := &group{Verifier: v, problem: &cases.Problem{Case: c, DType: dtype}}
	for _, i := range v.List {
		if v.Here == nil || v.Here(i, dtype) {
			rows = append(rows, g.row(i.String()))
		}
	}
	return rows
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
	problem   *cases.Problem
	truth     cases.Truth
	memories  map[bool]memory // by whether it is the device's
	results   []*result
	reference *result // nil: the float64 reference
}

// result is what one implementation left in memory.
type result struct {
	row     *Row
	problem *cases.Problem
	after   [][]byte // pieces with outputs; nil where there is nothing to compare
}

func (g *group) rows() (rows []*Row) {
	if g.reference != nil {
		rows = append(rows, g.reference.row)
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
