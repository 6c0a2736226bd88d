package attention

import (
	"fmt"
	"sync"

	"vkattn/vk"
)

// backwardOp is the part of an Op that computes gradients: its plans and pipelines.
type backwardOp struct {
	mu        sync.RWMutex
	plans     map[backwardRequest]*preparedBackward // at most maxPlans
	pipelines pipelines[backwardVariant, Config]
}

// preparedBackward is a backward plan with its pipelines.
type preparedBackward struct {
	BackwardPlan
	pipelines []*vk.Pipeline // of Kernels
	tileRows  uint32         // most query rows of a tile
}

func (b *backwardOp) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plans = nil
	return b.pipelines.close()
}

// PlanBackward returns how the gradients of packed, aligned tensors of a shape would be
// computed: dQ, dK and dV without options. It compiles nothing. Its errors are those of
// Plan.
func (op *Op) PlanBackward(s Shape) (BackwardPlan, error) {
	if err := op.usable(); err != nil {
		return BackwardPlan{}, err
	}
	if err := s.Validate(); err != nil {
		return BackwardPlan{}, err
	}
	r := op.typicalBackward(s)
	return makeBackwardPlan(op.dev, &op.cfg, &r)
}

// PlanBackwardFor is PlanBackward for the given tensors: for their gradients, options and
// alignment. It checks the arguments as Backward does.
func (op *Op) PlanBackwardFor(a BackwardArgs) (BackwardPlan, error) {
	if err := op.usable(); err != nil {
		return BackwardPlan{}, err
	}
	var l backwardTensorLayouts
	r, err := op.checkBackward(&l, &a)
	if err != nil {
		return BackwardPlan{}, err
	}
	return makeBackwardPlan(op.dev, &op.cfg, &r)
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
	for _, dLSE := range []bool{false, true} {
		r := op.typicalBackward(s)
		r.dLSE = dLSE
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
	var l backwardTensorLayouts
	r, err := op.checkBackward(&l, &a)
	if err != nil {
		return err
	}
	_, err = op.prepareBackward(&r)
	return err
}

// Backward computes the gradients that a has outputs for, from the tensors of a forward
// call with its O and LSE, and from the gradients of O and, if given, of LSE. The formulas
// are those of [ReferenceBackward]. On a device it records the work into the stream's
// current batch, as Forward does; a barrier orders it after the Forward that writes O and
// LSE. On the CPU tier the stream is nil and the gradients are complete when Backward
// returns. If it returns an error, it has recorded and written nothing.
//
// The bits do not depend on the run: every sum has a fixed order. Memory in addition to
// the tensors is that of BackwardPlan.ScratchBytes. In a padded sequence, rows of DQ and
// keys of DK and DV past the sequence's end become 0, or with Accumulate keep their value.
// Rows of packed tensors that are in no sequence are not written.
//
// K and V with Pages or of a type of their own give an error that matches [ErrUnsupported],
// and so do head dims above MaxHeadDim.
func (op *Op) Backward(s *vk.Stream, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	if op.dev == nil {
		if s != nil {
			return invalid("Backward: the CPU tier takes no stream")
		}
		var l backwardTensorLayouts
		if _, err := op.checkBackward(&l, &a); err != nil {
			return err
		}
		return backwardCPU(op.cfg, a)
	}
	if s.Device() == nil {
		return invalid("Backward: a device tier needs a stream")
	}
	return op.recordBackward(s.Commands, &a)
}

// RecordBackward records the dispatches of Backward into a command buffer. It inserts
// barriers between its own dispatches alone: the caller orders the inputs before them and
// the gradients after them (compute shader reads and writes). The rest is as for Record:
// the commands may run again later but not twice at the same time.
func (op *Op) RecordBackward(c *vk.Commands, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	if op.dev == nil {
		return fmt.Errorf("%w: the CPU tier cannot record into a command buffer", ErrUnsupported)
	}
	if c.Device() == nil {
		return invalid("RecordBackward: no command buffer")
	}
	return op.recordBackward(c, &a)
}

// backwardCPU computes gradients in host memory.
func backwardCPU(Config, BackwardArgs) error {
	return fmt.Errorf("%w: tier cpu computes no gradients", ErrUnsupported)
}

// typicalBackward returns the request for packed tensors at the start of their own buffers.
func (op *Op) typicalBackward(s Shape) backwardRequest {
	s.Hkv = s.KVHeads()
	r := backwardRequest{shape: s, want: gradientSet{q: true, k: true, v: true}, options: optionsOf(&Args{Shape: s}, &op.cfg)}
	r.access = op.backwardAccess()
	d, dv := uint64(op.cfg.HeadDim), uint64(op.cfg.ValueDim())
	for i, dim := range [...]uint64{tensorQ: d, tensorK: d, tensorV: dv, tensorO: dv, tensorLSE: 0, tensorDO: dv, tensorDLSE: 0, tensorDQ: d, tensorDK: d, tensorDV: dv} {
		if dim > 0 {
			r.align[i] = largestAlignment(dim)
		}
	}
	return r
}

// backwardAccess returns how kernels reach tensors that have device addresses.
func (op *Op) backwardAccess() Access {
	switch {
	case op.cfg.Access != AccessAuto:
		return op.cfg.Access
	case op.dev != nil && op.dev.Caps().BufferDeviceAddress && !paramsInBuffer(&op.dev.Caps().Limits):
		return AccessAddresses
	}
	return AccessDescriptors
}

// checkBackward checks a call, fills in its layouts and returns its request.
func (op *Op) checkBackward(l *backwardTensorLayouts, a *BackwardArgs) (backwardRequest, error) {
	if err := l.checkAll(&op.cfg, a); err != nil {
		return backwardRequest{}, err
	}
	if op.experiment != (Experiment{}) {
		return backwardRequest{}, fmt.Errorf("%w: variants and ablations are those of the forward kernels", ErrUnsupported)
	}
	r := op.typicalBackward(a.Shape)
	r.want, r.dLSE, r.accumulate, r.options = l.want, a.DLSE.Given(), a.Accumulate, optionsOf(&a.Args, &op.cfg)
	if v := a.Varlen; v != nil {
		r.totalQ, r.totalK = v.TotalQ, v.TotalK
	}
	if l.want.bias {
		r.bias = a.Bias.sizes(&a.Shape)
	}
	if op.dev == nil {
		return r, l.each(func(_ int, t *layout) error { return t.checkDevice(nil) })
	}
	if err := l.checkOnDevice(op, a); err != nil {
		return r, err
	}
	if op.cfg.Access == AccessAuto {
		l.each(func(_ int, t *layout) error {
			if t.tensor.Buffer.Address() == 0 {
				r.access = AccessDescriptors
			}
			return nil
		})
	}
	r.align = [backwardTensors]uint32{}
	return r, l.each(func(i int, t *layout) error {
		if r.access == AccessAddresses && t.tensor.Buffer.Address() == 0 {
			return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses", ErrUnsupported, t.field)
		}
		if t.size == int64(op.cfg.DType.Size()) && i != tensorLSE && i != tensorDLSE && i < tensorDBias {
			r.align[i] = largestAlignment(uint64(t.dim), uint64(t.tensor.Offset), uint64(t.steps[0]), uint64(t.steps[1]),
				uint64(t.steps[2]), t.tensor.base(t.size, r.access)/uint64(t.size))
		}
		return nil
	})
}

// checkOnDevice refuses host memory and buffers of another device.
func (l *backwardTensorLayouts) checkOnDevice(op *Op, a *BackwardArgs) error {
	if err := l.each(func(_ int, t *layout) error { return t.checkDevice(op.dev) }); err != nil || !a.hasOptions(&op.cfg) {
		return err
	}
	return a.checkOptionTensorsDevice(&op.cfg, op.dev)
}

// prepareBackward finds or makes the plan and the pipelines of a request.
func (op *Op) prepareBackward(r *backwardRequest) (*preparedBackward, error) {
	b := &op.backward
	b.mu.RLock()
	p := b.plans[*r]
	b.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	plan, err := makeBackwardPlan(op.dev, &op.cfg, r)
	if err != nil {
		return nil, err
	}
	p = &preparedBackward{BackwardPlan: plan, tileRows: 1}
	for _, k := range plan.Kernels {
		made, err := b.pipelines.of(op.dev, &op.cfg, k.variant)
		if err != nil {
			return nil, err
		}
		p.pipelines = append(p.pipelines, made)
		p.tileRows = max(p.tileRows, k.variant.tile.QTile+1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if op.closed.Load() {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	if b.plans == nil || len(b.plans) >= maxPlans {
		b.plans = map[backwardRequest]*preparedBackward{}
	}
	b.plans[*r] = p
	return p, nil
}
