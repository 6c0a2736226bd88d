package attention

import (
	"errors"
	"fmt"

	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Split keys: the kernel writes a float32 state (O, row max and row sum) for each split of a
// row's keys to scratch memory. The last workgroup of a row block combines them, or combine.comp does.

// paddingRow is the row sum that marks a padding row for shaders/combine.comp.
const paddingRow = 0xff8a5a5a

// errNeedsCombine means that the kernel cannot combine its splits, for lack of suitable
// scratch memory.
var errNeedsCombine = errors.New("attention: splits are to be combined in a dispatch of their own")

// combined records a kernel that combines its splits itself. The binding of LSE holds
// scratch memory; plan.CombinedBytes says how it is laid out. The binding of the ALiBi slopes
// holds LSE, if the call has one.
func (l *launch) combined(c *vk.Commands, a *Args, all []tensors.Layout, groups [3]uint32) error {
	batches, rows := tensors.QueryExtent(a)
	states := uint64(batches) * uint64(a.Hq) * uint64(rows) * uint64(l.splits)
	counters, bytes := plan.CombinedBytes(states, l.op.cfg.ValueDim(), l.slices, groups, l.splitWorkgroups)
	if l.access == AccessDescriptors && counters+bytes > l.limits.MaxWindow() {
		return errNeedsCombine // counters and states are one binding
	}
	scratch, first, err := c.Scratch(counters, bytes)
	switch {
	case errors.Is(err, vk.ErrUnsupported):
		return errNeedsCombine
	case err != nil:
		return fmt.Errorf("attention: memory for %d splits of the keys: %w", l.splits, err)
	}
	if err := l.bindTensors(a, all[:tensors.FirstOutput+1], 0, a.B); err != nil {
		return err
	}
	if err := l.bindOptions(a); err != nil {
		return err
	}
	if err := l.bindBuffer(bindLSE, scratch, first-counters, counters+bytes, 4); err != nil {
		return err
	}
	if l.options.CombinedLSE {
		lse := &all[tensors.FirstOutput+1]
		if err := l.bindBuffer(bindALiBi, lse.Tensor.Buffer, uint64(lse.Tensor.Offset)*4, lse.SpanBytes(), 4); err != nil {
			return err
		}
	}
	if err := l.writeParams(c); err != nil {
		return err
	}
	return l.dispatch(c, a, all, groups)
}

// split records the kernel, which writes the states of its splits to scratch memory, a
// barrier, and combine.comp.
func (l *launch) split(c *vk.Commands, a *Args, all []tensors.Layout, groups [3]uint32) error {
	batches, rows := tensors.QueryExtent(a)
	dv := l.op.cfg.ValueDim()
	states := uint64(batches) * uint64(a.Hq) * uint64(rows) // rows per split
	statsBytes, bytes := plan.SplitBytes(states*uint64(l.splits), dv)
	scratch, first, err := c.Scratch(0, bytes)
	if err != nil {
		return fmt.Errorf("attention: memory for %d splits of the keys: %w", l.splits, err)
	}
	o := Tensor{Buffer: scratch, Offset: int64(first+statsBytes) / 4}
	stats := Tensor{Buffer: scratch, Offset: int64(first) / 4}
	var with [5]tensors.Layout
	copy(with[:], all[:tensors.FirstOutput])
	with[3].Set("O", &o, F32, batches, a.Hq, rows*l.splits, dv)
	with[4].Set("LSE", &stats, F32, batches, a.Hq, rows*l.splits, 2)
	if err := l.bindTensors(a, with[:], 0, a.B); err != nil {
		return err
	}
	if err := l.bindOptions(a); err != nil {
		return err
	}
	l.params.stride[tensors.FirstOutput][0] = uint32(states)
	combine := combineLaunch{scratch: scratch, statsAt: first, oAt: first + statsBytes, splits: uint32(l.splits), rows: uint32(states),
		o: all[tensors.FirstOutput], sinks: a.Sinks, natural: l.options.Natural(), unitHigh: l.params.unitHigh, unitLow: l.params.unitLow}
	if len(all) > tensors.FirstOutput+1 {
		combine.lse = all[tensors.FirstOutput+1]
	}
	if err := combine.prepare(l.op, l.access); err != nil {
		return err
	}
	if err := l.bindMap(c, a, groups); err != nil {
		return err
	}
	if err := l.writeParams(c); err != nil {
		return err
	}
	if l.options.Lengths&(plan.LengthCuQ|plan.LengthUsedQ) != 0 {
		// No kernel writes padding rows. They keep this mark, and combine.comp skips them.
		if err := c.Fill(vk.BufferRange{Buffer: scratch, Offset: first, Size: statsBytes}, paddingRow); err != nil {
			return err
		}
		if err := c.InnerBarrier(); err != nil {
			return err
		}
	}
	if err := l.dispatch(c, a, all, groups); err != nil {
		return err
	}
	if err := c.InnerBarrier(); err != nil {
		return err
	}
	return combine.dispatch(c)
}
