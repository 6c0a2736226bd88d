package attention

import (
	"fmt"
	"sync"

	"vkattn/internal/backend"
	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/host"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// backwardOp is the part of an Op that computes gradients: its plans and pipelines.
type backwardOp struct {
	mu         sync.RWMutex
	plans      map[plan.BackwardRequest]*preparedBackward // at most maxPlans
	pipelines  dispatch.Pipelines[plan.BackwardVariant, problem.Config]
	pick       plan.BackwardPicker // nil: use the tiles of the tables
	watch      *kernelWatch        // nil but for candidates of a tuning
	named      bool                // pick has the tiles of an experiment
	maxDSBytes uint64              // see plan.BackwardRequest; tests set it
	noMaps     bool                // likewise
}

// preparedBackward is what a call takes of a backward plan, with its pipelines.
type preparedBackward struct {
	scratchBytes uint64
	access       Access
	kernels      []plan.BackwardKernel
	pipelines    []*vk.Pipeline // of kernels
	maps         []*vk.Pipeline // that make the maps of tiles of kernels; nil of one without
	tileRows     uint32         // most query rows of a tile
	tileKeys     uint32         // most keys of a tile; 0 if kernels compute the position of each key
	chunks       plan.BackwardChunks
	rare         *vk.Pipeline         // of chunks.Rare; nil: there is none
	cuda         problem.CUDABackward // for TierCUDA, which uses none of the fields above
}

func (b *backwardOp) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plans = nil
	return b.pipelines.Close()
}

// PlanBackward returns how the gradients of packed, aligned tensors of a shape would be
// computed: dQ, dK and dV without options. It compiles nothing. It returns the same errors
// as Plan.
func (op *Op) PlanBackward(s Shape) (BackwardPlan, error) {
	if err := op.usable(); err != nil {
		return BackwardPlan{}, err
	}
	if err := s.Validate(); err != nil {
		return BackwardPlan{}, err
	}
	if op.other != nil {
		p, err := op.other.PlanBackward(BackwardArgs{Args: Args{Shape: s}})
		return BackwardPlan(p), err
	}
	r := op.typicalBackward(s)
	c, err := plan.MakeBackward(op.dev, &op.cfg, &r, op.backward.pick)
	return BackwardPlan(c.BackwardPlan), err
}

// PlanBackwardFor is PlanBackward for the given tensors: for their gradients, options and
// alignment. It checks the arguments as Backward does.
func (op *Op) PlanBackwardFor(a BackwardArgs) (BackwardPlan, error) {
	if err := op.usable(); err != nil {
		return BackwardPlan{}, err
	}
	var l tensors.BackwardTensors
	r, err := op.checkBackward(&l, &a)
	if err != nil {
		return BackwardPlan{}, err
	}
	if op.other != nil {
		p, err := op.other.PlanBackward(a)
		return BackwardPlan(p), err
	}
	c, err := plan.MakeBackward(op.dev, &op.cfg, &r, op.backward.pick)
	return BackwardPlan(c.BackwardPlan), err
}

// PrepareBackward compiles the kernels that Backward needs for packed, aligned tensors of a
// shape: for dQ, dK and dV without options, with and without a gradient of LSE. On the CPU
// tier it compiles nothing.
func (op *Op) PrepareBackward(s Shape) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if op.other != nil {
		return op.other.PrepareBackward(BackwardArgs{Args: Args{Shape: s}})
	}
	for _, dLSE := range []bool{false, true} {
		r := op.typicalBackward(s)
		r.DLSE = dLSE
		if _, err := op.prepareBackward(&r); err != nil {
			return err
		}
	}
	return nil
}

// PrepareBackwardFor compiles the kernels that Backward needs for calls like a. It reads no
// tensor. It checks the arguments as Backward does.
func (op *Op) PrepareBackwardFor(a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	var l tensors.BackwardTensors
	r, err := op.checkBackward(&l, &a)
	if err != nil {
		return err
	}
	if op.other != nil {
		return op.other.PrepareBackward(a)
	}
	_, err = op.prepareBackward(&r)
	return err
}

// Backward computes the gradients for which a has outputs. It reads the tensors of the
// forward call, its O and LSE, the gradient of O and, if given, the gradient of LSE.
// [ReferenceBackward] has the formulas. On a device Backward records the work into the
// stream's current batch, as Forward does. On the CPU the
// gradients are complete when Backward returns. If it returns an error, it has recorded
// and written nothing.
//
// The bits do not depend on the run: every sum has a fixed order. A call takes
// BackwardPlan.ScratchBytes of memory in addition to the tensors. In a padded sequence,
// rows of DQ and keys of DK and DV past the sequence's end become 0, or with Accumulate
// keep their value. Rows of packed tensors that are in no sequence are not written.
//
// Tier cuda launches its kernels as Forward does. It needs buffers that CUDA reaches and
// cannot RecordBackward.
//
// For paged or quantized K and V, and for head dims above MaxHeadDim, the error matches
// [ErrUnsupported].
func (op *Op) Backward(s *Stream, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	return op.home.call("Backward", s, func(s backend.Stream) error {
		if v := s.Vulkan(); v != nil {
			return op.recordBackward(v.Commands, v, &a)
		}
		var l tensors.BackwardTensors
		if _, err := op.checkBackward(&l, &a); err != nil {
			return err
		}
		if op.other == nil {
			return host.Backward(op.cfg, a)
		}
		if err := op.checkNumbers(s, &a.Args); err != nil {
			return err
		}
		return op.other.Backward(s, a)
	})
}

// RecordBackward records the dispatches of Backward into a command buffer. It inserts
// barriers only between its own dispatches: the caller orders the inputs before them and
// the gradients after them (compute shader reads and writes). The rest is as for Record:
// the commands may run again later but not twice at the same time.
func (op *Op) RecordBackward(c *vk.Commands, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := errs.CheckCommands("RecordBackward", c, op.dev); err != nil {
		return err
	}
	return op.recordBackward(c, nil, &a)
}

// typicalBackward returns the request for packed tensors at the start of their own buffers.
func (op *Op) typicalBackward(s Shape) plan.BackwardRequest {
	s.Hkv, s.B = s.KVHeads(), max(s.B, 1)
	r := plan.BackwardRequest{Shape: s, Want: tensors.GradientSet{Q: true, K: true, V: true}, Options: plan.OptionsOf(&Args{Shape: s}, &op.cfg)}
	r.Access, r.MaxDSBytes, r.HalfTerms = plan.BackwardAccess(op.dev.Caps(), &op.cfg), op.backward.maxDSBytes, op.experiment.HalfTerms
	r.NoMaps, r.Maps = op.backward.noMaps, plan.MapsOf(&op.cfg, &Args{Shape: s})
	d, dv := uint64(op.cfg.HeadDim), uint64(op.cfg.ValueDim())
	for i, dim := range [...]uint64{tensors.BackwardQ: d, tensors.BackwardK: d, tensors.BackwardV: dv, tensors.BackwardO: dv, tensors.BackwardLSE: 0, tensors.BackwardDO: dv, tensors.BackwardDLSE: 0, tensors.BackwardDQ: d, tensors.BackwardDK: d, tensors.BackwardDV: dv} {
		if dim > 0 {
			r.Align[i] = tensors.LargestAlignment(dim)
		}
	}
	return r
}

// checkBackward checks a call, fills in its layouts and returns its request.
func (op *Op) checkBackward(l *tensors.BackwardTensors, a *BackwardArgs) (plan.BackwardRequest, error) {
	if err := sizes(&a.Shape, &a.Q, &a.K); err != nil {
		return plan.BackwardRequest{}, err
	}
	if err := l.CheckAll(&op.cfg, a); err != nil {
		return plan.BackwardRequest{}, err
	}
	if err := op.checkBlockMap(&a.Args); err != nil {
		return plan.BackwardRequest{}, err
	}
	if op.experiment != (Experiment{HalfTerms: op.experiment.HalfTerms}) {
		return plan.BackwardRequest{}, fmt.Errorf("%w: only forward kernels have variants and ablations", ErrUnsupported)
	}
	r := op.typicalBackward(a.Shape)
	r.Want, r.DLSE, r.Options = l.Want, a.DLSE.Given(), plan.BackwardOptionsOf(&a.Args, &op.cfg)
	r.Accumulate, r.PartialKeys = a.Accumulate, a.PartialKeys
	r.BlockMap, r.Maps = a.BlockMap != nil, plan.MapsOf(&op.cfg, &a.Args)
	if v := a.Varlen; v != nil {
		r.TotalQ, r.TotalK = v.TotalQ, v.TotalK
	}
	if l.Want.Bias {
		r.Bias = tensors.BiasSizes(a.Bias, &a.Shape)
	}
	r.Tables = plan.TablesOf(&op.cfg, &a.Args, &l.Want)
	if err := op.checkBackwardSide(l, a); err != nil || op.dev == nil {
		return r, err
	}
	if plan.MayCUDA(&op.cfg) {
		r.CUDARefusal = plan.CUDABackwardRefusal(l, a)
	}
	if op.cfg.Access == AccessAuto {
		if r.WantsTables() {
			r.Access = AccessDescriptors
		}
		l.Each(func(_ int, t *tensors.Layout) error {
			if t.Tensor.Buffer.Address() == 0 {
				r.Access = AccessDescriptors
			}
			return nil
		})
	}
	r.Align = [tensors.BackwardCount]uint32{}
	return r, l.Each(func(i int, t *tensors.Layout) error {
		if r.Access == AccessAddresses && t.Tensor.Buffer.Address() == 0 {
			return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses", ErrUnsupported, t.Field)
		}
		if i != tensors.BackwardLSE && i != tensors.BackwardDLSE && i < tensors.BackwardDBias {
			r.Align[i] = tensors.LargestAlignment(uint64(t.Dim), uint64(t.Tensor.Offset), uint64(t.Steps[0]), uint64(t.Steps[1]),
				uint64(t.Steps[2]), tensors.BaseOf(&t.Tensor, t.Size, r.Access)/uint64(t.Size))
		}
		return nil
	})
}

// checkBackwardSide refuses memory that is not the device's.
func (op *Op) checkBackwardSide(l *tensors.BackwardTensors, a *BackwardArgs) error {
	on := op.place()
	if err := l.Each(func(_ int, t *tensors.Layout) error { return t.CheckDevice(on) }); err != nil || on.CPU() || !tensors.HasOptions(&a.Args, &op.cfg) {
		return err
	}
	return tensors.CheckOptionsDevice(&a.Args, &op.cfg, on)
}

// prepareBackward finds or makes the plan and the pipelines of a request.
func (op *Op) prepareBackward(r *plan.BackwardRequest) (*preparedBackward, error) {
	b := &op.backward
	b.mu.RLock()
	p := b.plans[*r]
	b.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	c, err := plan.MakeBackward(op.dev, &op.cfg, r, op.backward.pick)
	if err != nil {
		return nil, err
	}
	p = &preparedBackward{scratchBytes: max(c.ScratchBytes, plan.StatBytes), access: c.Access, kernels: c.Kernels, chunks: c.Chunks, cuda: c.CUDA, tileRows: 1}
	if p.cuda != nil {
		if err := p.cuda.Load(); err != nil {
			return nil, fmt.Errorf("attention: backward kernels of tier cuda: %w", err)
		}
	}
	for _, k := range c.Kernels {
		made, err := b.pipelines.Of(op.dev, &op.cfg, k.Variant)
		if err != nil {
			return nil, err
		}
		p.pipelines = append(p.pipelines, made)
		var maps *vk.Pipeline
		if k.TakesMap() {
			if maps, err = op.maps.Of(op.dev, &op.cfg, k.Map); err != nil {
				return nil, err
			}
		}
		p.maps = append(p.maps, maps)
		p.tileRows = max(p.tileRows, k.Variant.TileRows()+1)
		if keys := k.Variant.TileKeys(); keys > 0 {
			p.tileKeys = max(p.tileKeys, keys+1)
		}
	}
	if c.Chunks.MarkBytes > 0 {
		if p.rare, err = b.pipelines.Of(op.dev, &op.cfg, c.Chunks.Rare); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if op.closed.Load() {
		return nil, errs.ClosedOp
	}
	if b.plans == nil || len(b.plans) >= maxPlans {
		b.plans = map[plan.BackwardRequest]*preparedBackward{}
	}
	b.plans[*r] = p
	return p, nil
}
