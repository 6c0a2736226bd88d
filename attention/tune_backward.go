package attention

import (
	"context"
	"fmt"
	"time"

	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// TuneBackward is Tune for the backward kernels: one for dQ, one for dK and dV, and, where
// tier coopmat2 stores dS, one for dQ = dS K. It returns a report for each. Candidates of
// one kernel run in whole backward calls with the other kernels' tiles of the table, and
// only that kernel is timed, so that it finds caches as in a call. The budget is divided
// among the kernels. An error of a kernel ends the tuning; results of the kernels before
// it stay.
//
// o.LSE has no meaning: a gradient of LSE changes none of these kernels. Tuned tiles serve
// calls for dQ, dK and dV without options; with [TuningOn] gradients are not tuned on first
// use. As in the forward pass, the last bits of gradients depend on the tile.
func (op *Op) TuneBackward(ctx context.Context, s Shape, o TuneOptions) ([]TuneReport, error) {
	if err := op.tunes(ctx, "TuneBackward", s); err != nil {
		return nil, err
	}
	cfg := op.cfg
	cfg.Tier, cfg.Tuning = plan.WithTiles(cfg.Tier), TuningOff
	r := op.typicalBackward(s)
	c, err := plan.MakeBackward(op.dev, &cfg, &r, nil)
	if err != nil {
		return nil, err
	}
	cfg.Tier, cfg.Access = c.Tier, r.Access
	store := plan.StoreOf(op.dev)
	done, err := store.TakeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	op.limits(&o)
	var kernels []plan.BackwardKernel
	for _, k := range c.Kernels {
		if k.Variant.Tunes() {
			kernels = append(kernels, k)
		}
	}
	if len(kernels) == 0 {
		return nil, fmt.Errorf("%w: kernels of gradients are tuned without options alone", ErrUnsupported)
	}
	o.Budget /= time.Duration(len(kernels))
	var reports []TuneReport
	for i := range kernels {
		report, err := op.tuneBackward(ctx, store, cfg, r, &kernels[i], o)
		reports = append(reports, report)
		if err != nil {
			return reports, err
		}
	}
	return reports, nil
}

// tuneBackward tunes one kernel. cfg names its tier.
func (op *Op) tuneBackward(ctx context.Context, store *plan.Store, cfg problem.Config, r plan.BackwardRequest, k *plan.BackwardKernel, o TuneOptions) (report TuneReport, err error) {
	start := time.Now()
	v := k.Variant
	class := plan.BackwardClassOf(&v, &cfg, &r.Shape)
	if timed := plan.ShrunkBatch(r.Shape); plan.BackwardClassOf(&v, &cfg, &timed) == class {
		r.Shape = timed
	}
	report = TuneReport{Class: class, Shape: r.Shape, Config: Config(cfg), Tier: cfg.Tier, Kernel: k.Kernel, Outputs: k.Outputs,
		Heuristic: v.Describe(), Winner: v.Describe(), Source: TileHeuristic}
	t := &tuning{TuneOptions: o, dtype: cfg.DType, flops: v.Flops(&cfg, r.Shape), deadline: start.Add(o.Budget), report: &report,
		memory: func(ctx context.Context) (contestants, error) { return newBackwardTuneMemory(ctx, op.dev, cfg, &r, &v) }}
	defer t.end(start)
	for _, x := range plan.PruneBackward(op.dev.Caps(), v, r.Shape, o.Candidates) {
		local, subgroup := x.V.LocalSize()
		tile := tuneTile{x.Judgement, plan.TuningEntry{Tile: x.V.Key(), Name: x.V.Describe()}, local, subgroup}
		if t.tries(tile) {
			t.list = append(t.list, newBackwardCandidate(op.dev, cfg, tile, x.V, r))
		}
	}
	return report, op.contest(ctx, store, t, func() (source string, notes []string) {
		p := store.PickBackward(v, &op.cfg, &r)
		return p.Source, p.Notes
	})
}

// newBackwardCandidate makes a candidate with an operation that uses v's tile for its
// kernel.
func newBackwardCandidate(dev *vk.Device, cfg problem.Config, t tuneTile, v plan.BackwardVariant, r plan.BackwardRequest) *candidate {
	c := &candidate{tuneTile: t, op: newOp(dev, cfg, Experiment{}, nil)}
	c.op.backward.pick, c.op.backward.maxDSBytes = plan.PickBackwardOnly(v), r.MaxDSBytes
	c.entry.SPIRV = v.SPIRV()
	c.pipeline = func() (*vk.Pipeline, error) {
		p, err := c.op.prepareBackward(&r)
		if err != nil {
			return nil, err
		}
		for i := range p.kernels {
			if p.kernels[i].Variant.Watches(&v) {
				return p.pipelines[i], nil
			}
		}
		return nil, fmt.Errorf("attention: the plan lacks kernel %s", t.entry.Name)
	}
	return c
}

// kernelWatch is a kernel whose dispatches are timed.
type kernelWatch struct {
	kernel *plan.BackwardVariant
	marks  [][2]vk.Mark // before and after each dispatch
}

// backwardTuneMemory holds the tensors of a backward call: one copy, since other kernels run
// between two runs of the timed one.
type backwardTuneMemory struct {
	*tuneMemory
	kernel    *plan.BackwardVariant
	dO        *operands.Block
	gradients [3]tuneTensor // dQ, dK, dV
}

func newBackwardTuneMemory(ctx context.Context, dev *vk.Device, cfg problem.Config, r *plan.BackwardRequest, v *plan.BackwardVariant) (_ *backwardTuneMemory, err error) {
	m := &backwardTuneMemory{kernel: v}
	s, size := r.Shape, uint64(cfg.DType.Size())
	forward := newOp(dev, cfg, Experiment{}, nil)
	forward.cfg.Tier = TierAuto // O and LSE of any tier
	defer forward.Close()
	request := forward.typical(s)
	request.LSE = true
	keys := int64(s.B) * int64(s.KVHeads()) * int64(s.Sk)
	elements := [3]int64{s.Rows() * int64(cfg.HeadDim), keys * int64(cfg.HeadDim), keys * int64(cfg.ValueDim())}
	o := uint64(s.Rows()) * uint64(cfg.ValueDim())
	c, err := plan.MakeBackward(dev, &cfg, r, nil)
	if err != nil {
		return nil, err
	}
	// Checked in one: the tensors of the forward pass alone may fit.
	if err := dev.CheckMemory("TuneBackward", hostmem.Sum(tuneBytes(cfg, request), hostmem.Product(o, size),
		hostmem.Product(hostmem.Sum(uint64(elements[0]), uint64(elements[1]), uint64(elements[2])), size), c.ScratchBytes)); err != nil {
		return nil, err
	}
	if m.tuneMemory, err = newTuneMemory(ctx, dev, cfg, request, 1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	allocate := func(name string, elements uint64) (*operands.Block, error) {
		return m.New(elements*size, vk.BufferOptions{Name: "tune " + name})
	}
	if m.dO, err = allocate("dO", o); err != nil {
		return nil, err
	}
	for i, name := range []string{"dQ", "dK", "dV"} {
		m.gradients[i].elements = elements[i]
		if m.gradients[i].Block, err = allocate(name, uint64(elements[i])); err != nil {
			return nil, err
		}
	}
	return m, operands.InTurn(
		func() error { return m.randomize(m.dO) },
		m.Barrier,
		func() error { return forward.Forward(m.Order(), m.args(0)) },
		func() error { return m.Wait(ctx) },
	)
}

// backward records one call.
func (m *backwardTuneMemory) backward(op *Op) error {
	g := &m.gradients
	return op.Backward(m.Order(), BackwardArgs{Args: m.args(0), DO: Tensor{Buffer: m.dO.Buffer},
		DQ: Tensor{Buffer: g[0].Buffer}, DK: Tensor{Buffer: g[1].Buffer}, DV: Tensor{Buffer: g[2].Buffer}})
}

// timed runs op n times and returns the times of the kernel alone. Without the device's
// clock they are the times of whole calls, which differ by the kernel. A time of 0 matches errNoClock.
func (m *backwardTuneMemory) timed(ctx context.Context, op *Op, n int) ([]time.Duration, error) {
	run := func() error { return operands.InTurn(m.Barrier, func() error { return m.backward(op) }) }
	if !m.stamps {
		return m.timedByWall(ctx, n, run)
	}
	out, watches := make([]time.Duration, n), make([]kernelWatch, n)
	defer func() { op.backward.watch = nil }()
	for i := range watches {
		watches[i].kernel = m.kernel
		op.backward.watch = &watches[i]
		if err := operands.InTurn(ctx.Err, run); err != nil {
			return nil, err
		}
	}
	if err := m.Wait(ctx); err != nil {
		return nil, err
	}
	for i := range watches {
		for _, pair := range watches[i].marks {
			t, err := m.Stream.Elapsed(pair[0], pair[1])
			if err != nil {
				return nil, noClock(err)
			}
			out[i] += t
		}
		if out[i] <= 0 {
			return nil, errNoClock
		}
	}
	return out, nil
}

// result computes the gradients and returns both ends of each.
func (m *backwardTuneMemory) result(ctx context.Context, op *Op) ([]float32, error) {
	return m.computed(ctx, func() error { return m.backward(op) }, m.gradients[:])
}
