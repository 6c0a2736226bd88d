package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/internal/accuracy"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// group is the state of one problem.
type group struct {
	*Bench
	problem  Problem
	in       *data
	truth    *accuracy.Expected
	setups   []*setup
	closers  []func() error // close the operations
	copies   *copyRunner
	peers    []Peer // that were given the problem
	compared bool   // results are compared with a reference
	kvBytes  uint64 // of a problem with a block mask, computed once
	results  map[*Row][]float32
	lost     error // the error of a device that is lost or hangs
}

// setup is the data of the problem, or of a baseline that needs other data, on a device or
// on the CPU.
type setup struct {
	baseline Baseline // BaselineByMask, BaselineContiguous or ""
	onDevice bool
	data     *data
	runner   *runner
	results  func(context.Context, *work) (map[string][]byte, error) // those of the runner, within the limit
}

func (g *group) close() {
	for _, f := range g.closers {
		_ = f()
	}
	for _, p := range g.setups {
		p.runner.close()
	}
	if g.copies != nil {
		g.copies.close()
	}
}

// candidate plans a Spec, runs it once and verifies the result. If there is nothing to
// time it returns nil and a row with the reason. An ablation is wrong by design: it is
// run but not verified.
func (g *group) candidate(ctx context.Context, s Spec) (*candidate, *Row) {
	if g.problem.Ceiling != "" {
		return g.ceiling(ctx, s)
	}
	row := g.row(g.problem, s)
	c, err := g.verified(ctx, s, row)
	if err != nil {
		return nil, g.stop(row, err)
	}
	if row.Status != "" {
		return nil, row
	}
	return c, row
}

// verified is candidate of a row without results. A wrong result sets its status.
func (g *group) verified(ctx context.Context, s Spec, row *Row) (*candidate, error) {
	dev := g.Device
	if s.Tier == attention.TierCPU {
		dev = nil
	}
	prepare := g.forward
	switch {
	case s.Baseline == BaselinePlain:
		prepare = g.plain
	case g.problem.Pass != PassForward:
		prepare = g.backward
	}
	if g.problem.Pass == PassForward && s.Baseline != BaselinePlain {
		if err := g.countKV(row); err != nil {
			return nil, err
		}
		if s.Baseline == BaselineCopy {
			return g.copy(ctx, dev, row)
		}
	}
	cfg := g.problem.Config
	cfg.Tier, cfg.Kernel = s.Tier, s.Kernel
	w, p, err := prepare(ctx, dev, cfg, s, row)
	if err != nil {
		return nil, err
	}
	w.pass = g.problem.Pass
	out, err := p.results(ctx, w)
	if err != nil {
		return nil, err
	}
	clock := p.runner.clock(w)
	row.Sets, row.Timer = p.runner.layout.count, clock.timer()
	if err := w.planned(row, p); err != nil {
		return nil, err
	}
	c := &candidate{row: row, clock: clock, onCPU: dev == nil, run: func(ctx context.Context, n int) ([]time.Duration,
		error) {
		return p.runner.timed(ctx, w, n)
	}}
	switch {
	case row.Ablation != "":
		return c, nil
	case w.pass != PassForward:
		return c, g.judgeGradients(row, cfg, p.data, out)
	case s.Baseline == BaselinePlain:
		out["LSE"] = nil // it has none
	}
	return c, g.judge(row, p.data, out["O"], out["LSE"])
}

// countKV completes the bytes of K and V of a problem with a block mask, for which KVBytes needs memory.
func (g *group) countKV(row *Row) error {
	if g.problem.Blocks == 0 {
		return nil
	}
	if g.kvBytes == 0 {
		if f := g.problem.footprint(); g.in == nil {
			if err := Room(nil, hostmem.Sum(f.tensors, f.lists, f.host), 0); err != nil {
				return err
			}
		}
		g.kvBytes = g.problem.KVBytes()
	}
	row.KVBytes = g.kvBytes
	return nil
}

// forward prepares a row of the forward pass.
func (g *group) forward(ctx context.Context, dev *attention.Device, cfg attention.Config, s Spec, row *Row) (*work, *setup,
	error) {
	if s.Experiment.BackwardTiles != "" {
		return nil, nil, fmt.Errorf("%w: the forward pass has no tiles of the backward kernels", attention.ErrUnsupported)
	}
	if s.Baseline == BaselineByMask {
		p, err := g.setup(ctx, dev, BaselineByMask, 0)
		if err != nil {
			return nil, nil, err
		}
		cfg = p.data.problem.Config
		cfg.Tier, cfg.Kernel = s.Tier, s.Kernel
	}
	op, err := attention.NewExperiment(dev, cfg, s.Experiment)
	if err != nil {
		if s.Experiment != (attention.Experiment{}) {
			row.Tier = g.planned(dev, cfg).String()
		}
		return nil, nil, err
	}
	g.closers = append(g.closers, op.Close)
	w := &work{op: op, name: g.problem.String()}
	var scratch uint64
	if g.problem.Plain() && s.Baseline == "" {
		// Planned before any memory is allocated: a refused row allocates none. The plan of
		// the call with its LSE follows below.
		plan, err := op.Plan(g.problem.Shape)
		if err != nil {
			return nil, nil, err
		}
		row.plan(plan, s)
		scratch = g.problem.scratch(plan)
	}
	p, err := g.setup(ctx, dev, s.Baseline, scratch)
	if err != nil {
		return nil, nil, err
	}
	args := p.runner.args().Args
	if s.Baseline == BaselineSeparate {
		w.split = p.data.separate
		args = w.split(args)[0]
	}
	plan, err := op.PlanFor(args)
	if err != nil {
		return nil, nil, err
	}
	w.cuda = plan.Tier == attention.TierCUDA
	w.planned = func(row *Row, p *setup) error {
		row.plan(plan, s)
		row.SPIRV, row.SparseRatio = modules(dev.Vulkan(), plan.Kernel), g.problem.sparseRatio()
		if s.Baseline != "" || !g.problem.Plain() {
			row.Memory = p.data.bytes() + plan.WorkspaceBytes
		}
		return nil
	}
	return w, p, nil
}

// judge compares O and LSE in host memory with the float64 reference. Wrong ones set the status of the row.
func (g *group) judge(row *Row, d *data, o, lse []byte) (err error) {
	if g.truth == nil {
		if g.truth, err = newTruth(g.in, g.Seed); err != nil {
			return err
		}
	}
	if err := g.keep(row, d, o); err != nil {
		return err
	}
	row.Checked, err = d.judge(g.truth, o, lse)
	row.Checked.Of = g.problem.rows()
	if err == nil && row.Result != nil && row.Result.NaN > 0 { // in rows that were not sampled
		err = fmt.Errorf("%d of %d elements are NaN", row.Result.NaN, row.Result.Elements)
	}
	if err != nil {
		row.Status, row.Reason = Fail, errorText(err)
	}
	return nil
}

// copy prepares the row of BaselineCopy.
func (g *group) copy(ctx context.Context, dev *attention.Device, row *Row) (*candidate, error) {
	row.Tier, row.Timer, row.Memory = "", "wall", row.KVBytes
	if dev == nil {
		if err := Room(nil, hostmem.Sum(max(row.KVBytes, g.rotation(nil)), setAlign), 0); err != nil {
			return nil, err
		}
		return &candidate{row: row, onCPU: true, run: hostCopy(row.KVBytes, g.rotation(nil))}, nil
	}
	if err := Room(dev, 0, hostmem.Sum(max(row.KVBytes, g.rotation(dev)), 4*setAlign)); err != nil {
		return nil, err
	}
	var l *copyRunner
	err := g.within(ctx, func(ctx context.Context) (err error) {
		l, err = newCopyRunner(ctx, dev.Vulkan(), false, row.KVBytes/2, g.rotation(dev))
		return err
	})
	if err != nil {
		return nil, err
	}
	g.copies = l
	row.Sets, row.Timer, row.SPIRV = l.count, l.timer(), modules(dev.Vulkan(), l.kernel.Module())
	return &candidate{row: row, clock: &l.deviceClock, run: l.timed}, nil
}

// keep fills in row.Result and keeps O to be compared with a reference.
func (g *group) keep(row *Row, d *data, out []byte) error {
	if !g.compared {
		return nil
	}
	o, err := d.gather(out, g.in)
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

// differences fills in the largest difference of each result from each reference.
func (g *group) differences(rows []*Row) {
	for _, w := range rows {
		ref := g.results[w]
		if w.Baseline == "" || ref == nil {
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

// planned is the tier that runs without variant and ablation. A row whose variant or
// ablation is refused has it, and so belongs to the same rows.
func (g *group) planned(dev *attention.Device, cfg attention.Config) attention.Tier {
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

// setup returns the setup of a baseline, which all its rows share, and creates it if
// needed. It returns an error before it allocates anything if the memory does not
// suffice, with the scratch memory of the kernel.
func (g *group) setup(ctx context.Context, dev *attention.Device, baseline Baseline, scratch uint64) (*setup, error) {
	if baseline != BaselineByMask && baseline != BaselineContiguous {
		baseline = ""
	}
	for _, p := range g.setups {
		if p.baseline == baseline && p.onDevice == (dev != nil) {
			return p, nil
		}
	}
	if baseline == BaselineByMask {
		if size, _ := g.problem.maskBytes(); size > maxMask {
			return nil, fmt.Errorf("%w: a mask of %s", attention.ErrUnsupported, hostmem.Bytes(size))
		}
	}
	if err := g.room(dev, baseline, scratch); err != nil {
		return nil, err
	}
	if g.in == nil {
		g.in = newData(g.problem, g.Seed)
	}
	p := &setup{baseline: baseline, onDevice: dev != nil, data: g.in}
	switch baseline {
	case BaselineContiguous:
		p.data = g.in.contiguous()
	case BaselineByMask:
		var err error
		if p.data, err = g.in.byMask(); err != nil {
			return nil, err
		}
	}
	within := g.within
	if dev == nil {
		within = func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
	}
	if err := within(ctx, func(ctx context.Context) (err error) {
		p.runner, err = newRunner(ctx, dev, p.data, g.rotation(dev), g.usesCUDA())
		return err
	}); err != nil {
		return nil, err
	}
	p.results = func(ctx context.Context, w *work) (out map[string][]byte, err error) {
		err = within(ctx, func(ctx context.Context) error {
			out, err = p.runner.results(ctx, w)
			return err
		})
		return out, err
	}
	g.setups = append(g.setups, p)
	return p, nil
}

// usesCUDA reports whether CUDA must be able to import the tensors.
func (g *group) usesCUDA() bool {
	return slices.ContainsFunc(g.specs(g.problem), func(s Spec) bool {
		return s.Tier == attention.TierCUDA || s.Tier == attention.TierAuto && g.autoTakesCUDA()
	})
}

// autoTakesCUDA reports whether tier cuda would compute the problem of a row of TierAuto.
func (g *group) autoTakesCUDA() bool {
	if g.Device == nil {
		return false
	}
	op, err := attention.New(g.Device, g.problem.Config)
	if err != nil {
		return false
	}
	defer func() { _ = op.Close() }()
	var tier attention.Tier
	if g.problem.Pass == PassForward {
		plan, _ := op.Plan(g.problem.Shape)
		tier = plan.Tier
	} else {
		plan, _ := op.PlanBackward(g.problem.Shape)
		tier = plan.Tier
	}
	return tier == attention.TierCUDA
}

// stop sets status and reason of a row that failed with err. An interrupted row has no
// status.
func (g *group) stop(row *Row, err error) *Row {
	if errors.Is(err, context.Canceled) {
		return row
	}
	status, lost := StatusOf(err)
	row.Status, row.Reason = status, errorText(err)
	if row.Peer {
		row.Reason = peer.WithoutFolders(row.Reason)
		if status, known := peerStatus(err); known {
			row.Status = status
		}
		return row
	}
	if status == OOM && row.Memory == 0 && row.Baseline == "" && row.Ceiling == "" {
		f := g.problem.footprint()
		row.Memory = hostmem.Sum(f.tensors, f.lists)
	}
	if lost {
		g.lost = err
	}
	return row
}

// StatusOf is the status of a row that failed with err. Where the device is lost or hangs, nothing else can run.
func StatusOf(err error) (s Status, lost bool) {
	var shape *attention.ShapeError
	switch {
	case errors.As(err, &shape), errors.Is(err, vk.ErrUnsupported):
		return Unsupported, false
	case errors.Is(err, vk.ErrOutOfMemory):
		return OOM, false
	}
	return Broken, errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, vk.ErrClosed) || errors.Is(err, vk.ErrTimeout)
}
