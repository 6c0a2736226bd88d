package attention

import (
	"errors"
	"fmt"

	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Calls of many rows on quantized K and V: a kernel converts both to the storage type in scratch memory, and the call behind it
// is that of Op.converted, on any tier.

// prepareConversion fills p with the kernel that converts K and V, and prepares the call on the converted ones.
func (op *Op) prepareConversion(p *prepared, v *plan.Conversion, r *plan.Request) (err error) {
	if _, err = op.converted.prepare(r.Converted(&op.cfg)); err != nil {
		return err
	}
	p.converts, p.options, p.cuda, p.cubin = true, v.Options(), nil, nil
	p.rows, p.slices, p.rowReach, p.splits, p.splitWorkgroups = 1, 1, plan.ConvertKeys, 1, 1
	p.pipeline, err = op.conversions.Of(op.dev, &op.cfg, *v)
	return err
}

// recordConverted records the kernel that converts K and V, a barrier and the call on the converted ones. After an error nothing
// but scratch memory may be written. The calls of a batch convert to the same memory.
// Where there is none, the kernel converts K and V for each row block.
func (op *Op) recordConverted(c *vk.Commands, p *prepared, r *plan.Request, a *Args, all []tensors.Layout) error {
	of := r.Converted(&op.cfg)
	behind, err := op.converted.prepare(of)
	if err != nil {
		return err
	}
	with := *a
	with.KScale, with.VScale, with.Pages = Vector{}, Vector{}, nil
	batches, keys := tensors.KVExtent(&with)
	kv := plan.ConvertedKVOf(&op.cfg, &a.Shape, uint64(batches)*uint64(keys))
	scratch, first, err := c.SharedScratch(kv.Bytes)
	if errors.Is(err, vk.ErrOutOfMemory) { // nothing was recorded
		r.Experiment.ConvertKV = -1
		if stored, without := op.prepare(*r); without == nil {
			return op.recordOrdered(c, stored, r, a, all)
		}
	}
	if err != nil {
		return fmt.Errorf("attention: memory for K and V in %v: %w", op.cfg.DType, err)
	}
	size := int64(op.cfg.DType.Size())
	with.K = Tensor{Buffer: scratch, Offset: int64(first) / size}
	with.V = Tensor{Buffer: scratch, Offset: int64(first+kv.VAt) / size}
	var l tensors.Layouts
	if err := l.Check(&op.converted.cfg, &with); err != nil {
		return err
	}
	if err := op.convert(c, p, r.Access, a, all, scratch, first, kv); err != nil {
		return err
	}
	if err := c.InnerBarrier(); err != nil {
		return err
	}
	return op.converted.recordOrdered(c, behind, &of, &with, l.All())
}

// convert records the kernel that converts K and V.
func (op *Op) convert(c *vk.Commands, p *prepared, access Access, a *Args, all []tensors.Layout, scratch *vk.Buffer, first uint64, kv plan.ConvertedKV) error {
	var l launch
	l.begin(op, p, access)
	l.bindings, l.tables = plan.GeneralBindings, 0 // of modifiers
	if err := l.checkStrides(a, all); err != nil {
		return err
	}
	if err := l.bindTensors(a, all[:tensors.FirstOutput+1], 0, a.B); err != nil {
		return err
	}
	if err := l.bindOptions(a); err != nil {
		return err
	}
	if err := l.bindBuffer(tensors.FirstOutput, scratch, first, kv.Bytes, 16); err != nil {
		return err
	}
	l.params.stride[tensors.FirstOutput][0] = uint32(kv.VAt / 16)
	if err := l.writeParams(c); err != nil {
		return err
	}
	return l.dispatchOne(c, p.pipeline, plan.ConvertGrid(&a.Shape))
}
