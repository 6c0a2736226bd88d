// Package verify runs every implementation on a machine on the same problem and compares
// whole results with a reference and with one another.
//
// The reference is the CUDA validation kernel if the device has CUDA: a plain kernel with
// float32 arithmetic. It gets Q, K and V widened to float32, and its O is not rounded to
// the storage type. Without CUDA the reference is float64 attention on the CPU, of as many
// rows as take a second or two. On the other rows the implementations must agree with one
// another.
//
// # Rules
//
//   - The rows that the CPU computes in float64, all rows of a small problem, obey the
//     three rules of package accuracy: their error is at most a multiple of the error of
//     low, plain attention in the storage type. The CUDA validation kernel obeys the rules
//     of float32.
//   - Every element of O and LSE is compared with the CUDA validation kernel by the same
//     rules. The error of low is known on the sampled rows; [accuracy.Estimate] extends it
//     to the others, for each block of 64 rows and for the tensor. The error of the
//     validation kernel on the sampled rows is added. Blocks are judged only if rows were
//     sampled: otherwise the first rule has judged every block.
//   - Two implementations may differ by twice the limit of one.
//   - Calls with score and mask modifiers have no CUDA kernel as reference. The rows that the CPU computes in
//     float64 are spread over all heads. The others are compared with those of other implementations by the limits
//     of the whole tensor, and not block by block.
//   - NaN and Inf are where the reference has them and nowhere else. Rows with nothing to
//     attend to are exactly 0 and have LSE = -Inf.
//   - All runs of an implementation give the same bits.
//   - In the conformance table kernels write only O and LSE, and keys that a row does not
//     attend to change no bit of it, whatever their values.
package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// Verifier compares implementations on one device, or on the CPU. Its method Problem is
// safe for concurrent use.
type Verifier struct {
	Device *attention.Device // a Vulkan device, or a CUDA device without Vulkan; nil: only the CPU tier can run
	Label  string            // name of the device in rows
	List   []bench.Spec
	// Reference runs on inputs widened to float32. If it is nil, the float64 reference
	// of the CPU is the only one.
	Reference *bench.Spec
	Backward  bool // gradients are judged, not O and LSE
	Repeat    int  // runs of each implementation, which must give the same bits
	Rows      int  // about how many rows the CPU computes in float64; 0: about a second of work

	// Conformance adds the checks of the conformance table: kernels write only outputs,
	// and keys that no row attends to change nothing.
	Conformance bool

	// Timeout bounds one wait for the device. A device that takes longer hangs: the error of Problem matches
	// vk.ErrTimeout. 0: no bound.
	Timeout time.Duration

	// Here reports whether an implementation runs a storage type. One that does not has
	// no row. If Here is nil, all have a row.
	Here func(bench.Spec, attention.DType) bool

	// Touch is for tests of the checks: it is called with the memory after a run and may
	// change it before it is judged. It may be nil.
	Touch func(who string, p *cases.Problem, after [][]byte)
	// Progress is called with a text for a line of progress, the problem first. It may be nil.
	Progress func(text string)

	mu  sync.Mutex
	ops map[attention.Config]*attention.Op
}

// Close closes the operations. The caller closes the device.
func (v *Verifier) Close() error {
	var all []error
	for _, op := range v.ops {
		all = append(all, op.Close())
	}
	v.ops = nil
	return errors.Join(all...)
}

// Problem runs a case on every implementation and compares the results. It returns a row
// for each, with the row of Reference first. The error is a lost device or the context's
// error; the rows are valid even then.
func (v *Verifier) Problem(ctx context.Context, c cases.Case, dtype attention.DType) (rows []*Row, err error) {
	if v.Backward {
		return v.backward(ctx, c, dtype)
	}
	n := v.Rows
	switch {
	case v.Conformance && c.SampleMax == 0:
		n = math.MaxInt // all rows: the case is small, and its data is not alike everywhere
	case v.Conformance:
		n = c.SampleMax
	case n == 0:
		n = affordable(attention.Config(c.Config(cases.On(0, dtype))), c.Shape)
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
	perHead := rowsPerHead
	if c.Modifiers != nil { // heads may differ
		perHead = max(1, min(perHead, n/(c.B*c.Hq)))
	}
	if g.truth.Sample, err = accuracy.SampleRows(attention.Args{Shape: c.Shape}, n, perHead, c.Causal, p.SeedValue()); err != nil {
		return nil, err
	}
	// The CPU computes the float64 reference while the device computes.
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

// refused returns the rows of a problem that does not fit the host's memory.
func (g *group) refused(err error) []*Row {
	rows := g.Unfinished(g.problem.Case, g.problem.DType)
	for _, r := range rows {
		_ = (&result{row: r}).stop(err)
	}
	return rows
}

// Unfinished returns the rows of a problem without a status.
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
		v.Progress(fmt.Sprintf("%v %v: %s %s", p.DType, p.Case, who, what))
	}
}

// on is where a tier runs, nil for the CPU.
func (v *Verifier) on(tier attention.Tier) *attention.Device {
	if tier == attention.TierCPU {
		return nil
	}
	return v.Device
}

// op returns the operation of a Config and creates it if needed.
func (v *Verifier) op(dev *attention.Device, cfg attention.Config) (*attention.Op, error) {
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
	memories  map[bool]memory // true: on the device, false: on the host
	results   []*result
	reference *result // nil: the float64 reference
}

// result is the result of one implementation.
type result struct {
	row     *Row
	problem *cases.Problem
	after   [][]byte // the memory of the outputs after the run; nil: nothing to compare
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
		if e := m.Close(); err == nil {
			err = e
		}
	}
	g.memories = nil
	return err
}

// row returns a row of the problem without results.
func (g *group) row(who string) *Row {
	c := g.problem.Case
	call := fields.Of(c.Shape, attention.Config{DType: g.problem.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal})
	r := &Row{Device: g.Label, Who: who, Call: call, Seed: c.SeedValue(), Of: c.Shape.Rows()}
	if g.Backward {
		r.Pass = bench.PassBackward
	}
	if g.Conformance {
		r.Case = c.String()
	}
	if c.Modifiers != nil {
		r.OptionText, r.hasTables = optionText(c), len(c.Modifiers.Tables) > 0
	}
	return r
}

// optionText names the modifiers of a case and their tables.
func optionText(c cases.Case) string {
	var parts []string
	for _, t := range c.Modifiers.Tables {
		size := ""
		for _, n := range t.Dims[:slices.Index(append(t.Dims[:], 0), 0)] {
			size += fmt.Sprintf("x%d", n)
		}
		parts = append(parts, fmt.Sprintf("table %s=%s", t.Name, size[1:]))
	}
	cfg := attention.Config{ScoreMod: c.Modifiers.Score, MaskMod: c.Modifiers.Mask}
	parts = append(parts, bench.Problem{Config: cfg}.OptionText())
	if c.Align != attention.CausalNone {
		parts = append(parts, fmt.Sprintf("align %v", c.Align))
	}
	return strings.Join(parts, ", ")
}

// config is the Config with which an implementation computes a case. A case of the conformance table sets access
// and tiles; any other problem has the default settings.
func config(i bench.Spec, c cases.Case, dtype attention.DType, conformance bool) attention.Config {
	cfg := c.Config(cases.On(i.Tier, dtype))
	if !conformance {
		cfg.Tuning = attention.TuningAuto
	}
	if i.Tier == attention.TierCUDA || i.Tier == attention.TierCubin {
		cfg.Access = attention.AccessAuto // other values are for SPIR-V
		cfg.Kernel = i.Kernel
	}
	return attention.Config(cfg)
}

// Validation is the CUDA validation kernel, the reference on devices with CUDA.
var Validation = bench.Spec{Tier: attention.TierCUDA, Kernel: "ref"}

// HasCUDA reports whether tier cuda runs on a device.
func HasCUDA(dev *vk.Device) bool {
	if dev == nil {
		return false
	}
	return slices.ContainsFunc(attention.TierReport(dev), func(s attention.TierStatus) bool {
		return s.Tier == attention.TierCUDA && s.Available
	})
}
