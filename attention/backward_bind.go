package attention

import (
	"errors"
	"fmt"

	"vkattn/internal/dispatch"
	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Parameters and bindings of the backward kernels: where the tensors of a call lie.

// checkReach reports a tensor that no descriptor reaches. The outputs are bound after other dispatches
// have been recorded.
func (l *backwardLaunch) checkReach() error {
	if l.access != AccessDescriptors {
		return nil
	}
	return l.tensors.Each(func(_ int, t *tensors.Layout) error {
		if t.Empty() {
			return nil
		}
		_, _, err := t.Tensor.Buffer.Window(uint64(t.Tensor.Offset*t.Size), t.SpanBytes())
		if errors.Is(err, vk.ErrUnsupported) {
			return fmt.Errorf("%w: %s: %w", ErrUnsupported, t.Field, err)
		}
		return err
	})
}

// bindMemory binds length bytes of a buffer from a byte offset on, and returns their start:
// a device address, or the position in the bound range in units of unit bytes.
func (l *backwardLaunch) bindMemory(bound *vk.BufferRange, b *vk.Buffer, offset, length, unit uint64) (start uint64, err error) {
	if l.access == AccessAddresses {
		if b.Address() == 0 {
			return 0, fmt.Errorf("%w: a buffer has no device address, and others of the call have", ErrUnsupported)
		}
		l.held[l.n] = b
		l.n++
		return b.Address() + offset, nil
	}
	if length == 0 { // a tensor without rows
		return 0, nil
	}
	*bound, start, err = b.Window(offset, length)
	return start / unit, err
}

// bindLayout is bindMemory for a tensor.
func (l *backwardLaunch) bindLayout(bound *vk.BufferRange, t *tensors.Layout) (start uint64, err error) {
	size := uint64(t.Size)
	return l.bindMemory(bound, t.Tensor.Buffer, uint64(t.Tensor.Offset)*size, t.SpanBytes(), size)
}

// bind stores a tensor in the parameters of the gradient kernels.
func (l *backwardLaunch) bind(binding int, b *vk.Buffer, offset, length, unit uint64) error {
	if binding >= bwdTables { // they are bound with addresses too
		bound, first, err := b.Window(offset, length)
		l.bound[binding], l.params.tables[binding-bwdTables][0] = bound, int32(first/unit)
		return err
	}
	start, err := l.bindMemory(&l.bound[binding], b, offset, length, unit)
	l.units[binding] = unit
	if l.access == AccessAddresses {
		l.units[binding] = 1
	}
	if at := l.params.address(binding); at != nil {
		*at = start
	} else {
		l.params.strideMap[0], l.params.strideMap[1] = uint32(start), uint32(start>>32)
	}
	return err
}

// bindStrided is bind for a tensor with strides, stored in row `row` of the parameters.
func (l *backwardLaunch) bindStrided(binding, row int, t *tensors.Layout) error {
	steps32(&l.params.stride[row], t)
	return l.bind(binding, t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size), t.SpanBytes(), uint64(t.Size))
}

// steps32 stores the strides of a tensor, which checkStrides has bounded: 0 for dimensions of
// size 1.
func steps32(to *[3]uint32, t *tensors.Layout) {
	for d, step := range t.Steps {
		if t.Counts[d] == 1 {
			step = 0
		}
		to[d] = uint32(step)
	}
}

// bindCall fills in what the gradient kernels have in common.
func (l *backwardLaunch) bindCall() error {
	for row, tensor := range [...]int{bwdQ: tensors.BackwardQ, bwdK: tensors.BackwardK, bwdV: tensors.BackwardV, bwdDO: tensors.BackwardDO} {
		if err := l.bindStrided(row, row, l.tensors.Tensor(tensor)); err != nil {
			return err
		}
	}
	if err := l.bind(bwdStats, l.scratch, l.statsAt, l.scratchBytes, plan.StatBytes); err != nil {
		return err
	}
	return l.bindOptions()
}

// bindOptions fills in the tensors of the call's options and its numbers.
func (l *backwardLaunch) bindOptions() error {
	a, cfg, p := l.args, &l.op.cfg, &l.params
	strides := newOptionStrides(&a.Args, &p.strideBias, &p.strideMap)
	var t tensors.Layout
	err := tensors.EachOption(cfg, &a.Args, &t, func(which tensors.OptionTensor) error {
		binding := strides.binding(which, optionBindings[which].backward, bwdBias)
		if binding == 0 {
			return nil
		}
		strides.set(which, &t)
		return l.bind(binding, t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size), t.SpanBytes(), uint64(t.Size))
	})
	if err != nil {
		return err
	}
	setTables(&p.tables, cfg, &a.Args)
	s := &a.Shape
	p.sequences, p.Sq, p.Sk, p.Hq, p.groupSize = uint32(s.B), uint32(s.Sq), uint32(s.Sk), uint32(s.Hq), uint32(s.Group())
	if v := a.Varlen; v != nil {
		p.totalQ, p.totalK = uint32(v.TotalQ), uint32(v.TotalK)
	}
	p.scoreScale, p.softcap = l.op.factors.Natural.Scale, l.op.factors.Natural.Softcap
	n := &l.op.numbers
	p.causalOffset, p.windowLeft, p.windowRight = n.CausalOffset, n.WindowLeft, n.WindowRight
	return nil
}

// fillBindings binds a few bytes of a buffer where a kernel needs nothing.
func fillBindings(bound []vk.BufferRange, b *vk.Buffer) {
	for i := range bound {
		if bound[i].Buffer == nil {
			bound[i] = dispatch.EmptyBinding(b)
		}
	}
}
