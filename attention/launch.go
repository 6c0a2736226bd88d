package attention

import (
	"errors"
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// From a checked call to its dispatches: this file binds the tensors, fills the parameters
// and records. launch_options.go adds the tensors of options, launch_splits.go the calls
// whose keys are split.

// record checks the arguments and records all dispatches of a call into c, or none. Each
// call takes this host time, so record allocates nothing once the plan of the request is
// cached. s is the stream that c belongs to; nil for a caller's command buffer.
func (op *Op) record(c *vk.Commands, s *vk.Stream, a *Args) error {
	if err := sizes(&a.Shape, &a.Q, &a.K); err != nil {
		return err
	}
	var again repeatable
	if op.repeats(&again, s, a) {
		return again.record(c, a)
	}
	return op.recordNew(c, s, a)
}

// recordNew is record of a call unlike the one before.
func (op *Op) recordNew(c *vk.Commands, s *vk.Stream, a *Args) error {
	var l tensors.Layouts
	if err := op.check(&l, a); err != nil {
		return err
	}
	if err := op.checkNumbers(orderOf(s), a); err != nil {
		return err
	}
	if tensors.NoRows(a) && !a.MaxLogits.Given() {
		return nil
	}
	all := l.All()
	r := op.request(&l, a)
	if s == nil && plan.MayCUDA(&op.cfg) {
		r.CUDARefusal = plan.CUDARecords
	}
	if r.Access == AccessAddresses {
		for i := range all {
			if all[i].Tensor.Buffer.Address() == 0 {
				return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses",
					ErrUnsupported, all[i].Field)
			}
		}
	}
	p, err := op.prepare(r)
	if err != nil {
		return err
	}
	if p.cuda != nil {
		return op.forwardCUDA(p, s, a, all)
	}
	if err := op.order(c, a, all); err != nil {
		return err
	}
	if p.converts {
		return op.recordConverted(c, p, &r, a, all)
	}
	return op.recordOrdered(c, p, &r, a, all)
}

// recordOrdered records a call behind the earlier work that it depends on.
func (op *Op) recordOrdered(c *vk.Commands, p *prepared, r *plan.Request, a *Args, all []tensors.Layout) error {
	err := op.recordPlan(c, p, r.Access, a, all)
	if errors.Is(err, errNeedsCombine) { // nothing was recorded
		r.SeparateCombine = true
		if p, err = op.prepare(*r); err == nil {
			err = op.recordPlan(c, p, r.Access, a, all)
		}
	}
	return err
}

// recordPlan records a call with its plan.
func (op *Op) recordPlan(c *vk.Commands, p *prepared, access Access, a *Args, all []tensors.Layout) error {
	if p.cubin != nil {
		return op.recordCubin(p, c, a, all)
	}
	return op.launch(c, p, access, a, all)
}

// order puts a call behind the earlier work of a stream that it depends on.
func (op *Op) order(c *vk.Commands, a *Args, all []tensors.Layout) error {
	if !c.Ordered() {
		return nil
	}
	var u tensors.Uses
	for i := range all {
		if i < tensors.FirstOutput {
			u.Read(&all[i])
		} else {
			u.Write(&all[i])
		}
	}
	u.Options(&op.cfg, a)
	return u.Order(c)
}

// launch is the state of a call while its dispatches are recorded. The dense kernel takes
// the first bindings and the first parameters of the general kernel.
type launch struct {
	*prepared
	op     *Op
	access Access
	limits *vk.Limits
	params bufferParams
	units  [plan.MostBindings]uint64 // bytes that an address counts in
	bound  [plan.MostBindings]vk.BufferRange
	held   [plan.MostBindings]vk.Resource
	n      int // entries of held

	pushBytes, bindings int // sizes that the module declares
	tables              int // of modifiers: the last bindings

	dispatches int          // recorded so far; the last one:
	sent       *vk.Pipeline // its kernel
	groups     [3]uint32    // and its grid

	decodePartGroups [3]uint32 // grid of prepared.decodePart
}

// launch records a call: one dispatch, or several if one cannot cover all batches or if a
// mixed batch has a decode part. With split keys, unless the kernel combines the splits
// itself, a barrier and combine.comp follow. If the kernel cannot combine them, launch
// records nothing and returns errNeedsCombine: the call needs a plan with a separate
// combine.
func (op *Op) launch(c *vk.Commands, p *prepared, access Access, a *Args, all []tensors.Layout) error {
	var l launch
	l.begin(op, p, access)
	var err error
	if p.options.Any() {
		err = l.general(c, a, all)
	} else {
		err = l.dense(c, a, all)
	}
	if err == nil {
		op.remember(&l, a, all)
	}
	return err
}

// begin sets the state of a call with a plan, before anything is bound, in an empty launch.
func (l *launch) begin(op *Op, p *prepared, access Access) {
	l.prepared, l.op, l.access, l.limits = p, op, access, &op.dev.Caps().Limits
	l.pushBytes, l.bindings = plan.DensePushBytes, plan.DenseBindings
	if !p.options.Any() {
		return
	}
	l.pushBytes, l.bindings, l.tables = plan.GeneralPushBytes, plan.GeneralBindings+len(tensors.Tables(&op.cfg)), len(tensors.Tables(&op.cfg))
	if access == AccessDescriptors { // a buffer has the parameters
		l.pushBytes = 0
	}
}

// dense records a call without options, in as many dispatches as its batches need.
func (l *launch) dense(c *vk.Commands, a *Args, all []tensors.Layout) error {
	if err := l.checkStrides(a, all); err != nil {
		return err
	}
	chunk, err := l.batchesPerDispatch(a, all)
	if err != nil {
		return err
	}
	groups := [3]uint32{arith.CeilDiv32(uint32(a.Sq), l.rows), uint32(a.Hq), uint32(chunk) * l.slices}
	parts := l.parts(a, groups, l.limits)
	if l.access == AccessDescriptors && (chunk < a.B || !parts.One()) {
		if err := c.Reserve((a.B+chunk-1)/chunk*parts.Count(), l.bindings); err != nil {
			return err
		}
	}
	for first := 0; first < a.B; first += chunk {
		count := min(chunk, a.B-first)
		if err := l.bindTensors(a, all, first, count); err != nil {
			return err
		}
		groups[2] = uint32(count) * l.slices
		if parts.One() {
			if err := l.dispatchOne(c, l.pipeline, groups); err != nil {
				return err
			}
			continue
		}
		if err := l.dispatchParts(c, l.prepared, a, all, groups); err != nil {
			return err
		}
	}
	return nil
}

// general records a call with options, packed heads or split keys.
func (l *launch) general(c *vk.Commands, a *Args, all []tensors.Layout) error {
	if err := l.options.CheckLimits(a, l.splits, l.op.cfg.ValueDim()); err != nil {
		return err
	}
	groups, err := l.grid(a, &l.op.cfg, l.limits)
	if err != nil {
		return err
	}
	if err := l.checkStrides(a, all); err != nil {
		return err
	}
	parts := l.parts(a, groups, l.limits)
	if l.options.Combined && !parts.One() {
		return errNeedsCombine // the counters of a dispatch are of its own splits
	}
	dispatches := parts.Count()
	if l.decodePart != nil {
		if l.decodePartGroups, err = l.decodePart.grid(a, &l.op.cfg, l.limits); err != nil {
			return err
		}
		parts := l.decodePart.parts(a, l.decodePartGroups, l.limits)
		dispatches += parts.Count()
	}
	if l.maps != nil {
		dispatches++
	}
	if (l.access == AccessDescriptors || l.tables > 0) && dispatches > 1 {
		if err := c.Reserve(dispatches, l.bindings); err != nil {
			return err
		}
	}
	switch {
	case l.options.Combined:
		return l.combined(c, a, all, groups)
	case l.options.Split():
		return l.split(c, a, all, groups)
	}
	if err := l.bindCall(c, a, all, groups); err != nil {
		return err
	}
	return l.dispatch(c, a, all, groups)
}

// grid returns the workgroups of the general or decode kernel, or an error if the device cannot
// dispatch them.
func (p *prepared) grid(a *Args, cfg *problem.Config, limits *vk.Limits) ([3]uint32, error) {
	totalQ := 0
	if p.options.Lengths&plan.LengthCuQ != 0 {
		totalQ = a.Varlen.TotalQ
	}
	groups := p.options.Grid(&a.Shape, totalQ, p.splitWorkgroups, p.rows, p.slices)
	return groups, p.checkParts(a, cfg, groups, limits)
}

// checkStrides checks the strides against the 32 bits of a kernel's offsets. The dense
// kernel accepts any batch stride: if it exceeds 32 bits, each batch has its own dispatch.
// Offsets of the general kernel are in bytes and span the query heads of a group.
func (l *launch) checkStrides(a *Args, all []tensors.Layout) error {
	general := l.options.Any()
	reach, firstDim := uint64(l.rowReach), 1
	if general {
		firstDim = 0
	}
	if l.decodePart != nil {
		reach = max(reach, uint64(l.decodePart.rowReach))
	}
	for i := range all[:tensors.FirstOutput+1] { // LSE is packed; it has no strides
		t := &all[i]
		for d := firstDim; d < len(t.Steps); d++ {
			if t.Counts[d] > 1 && t.Steps[d] > math.MaxUint32 {
				return fmt.Errorf("%w: %s has a %s stride of 2^32 elements or more", ErrUnsupported, t.Field, tensors.StrideNames[d])
			}
		}
		size, heads := uint64(1), uint64(0)
		if general {
			size, heads = uint64(t.Size), uint64(a.Group())*uint64(t.Steps[1])
		}
		if t.Counts[2] > 1 && uint64(t.Steps[2]) > (math.MaxUint32-min(heads, math.MaxUint32))/reach/size {
			return fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them", ErrUnsupported, t.Field, t.Steps[2])
		}
	}
	return nil
}

// batchesPerDispatch returns how many batches one dispatch of the dense kernel may cover.
// Limits are the grid's z, the 32 bits of a stride and the range of a descriptor.
func (l *launch) batchesPerDispatch(a *Args, all []tensors.Layout) (int, error) {
	most := min(uint64(a.B), uint64(l.limits.MaxWorkGroupCount[2])/uint64(l.slices))
	for i := range all {
		t := &all[i]
		if t.Steps[0] > math.MaxUint32 {
			most = 1
		}
		if l.access == AccessAddresses {
			continue
		}
		extent, size, span := t.Extent(), uint64(t.Size), l.limits.MaxWindow()
		if extent*size > span {
			return 0, fmt.Errorf("%w: one batch of %s spans %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit",
				ErrUnsupported, t.Field, extent*size, span)
		}
		most = dispatch.BatchesInSpan(most, span, size, extent, uint64(t.Steps[0]))
	}
	return int(max(most, 1)), nil
}

// bindBuffer binds length bytes of a buffer from a byte offset on to binding i. It stores
// their start in the parameters: a device address, or the position in the bound range in
// units of unit bytes.
func (l *launch) bindBuffer(i int, b *vk.Buffer, offset, length, unit uint64) error {
	l.units[i] = 1
	if l.access == AccessAddresses && i < bindTables {
		if b.Address() == 0 {
			return fmt.Errorf("%w: a buffer has no device address, and others of the call have", ErrUnsupported)
		}
		l.params.setAddress(i, b.Address()+offset)
		l.held[l.n] = b
		l.n++
		return nil
	}
	if length == 0 { // no key is read
		return nil
	}
	bound, first, err := b.Window(offset, length)
	if err != nil {
		return err
	}
	l.params.setAddress(i, first/unit)
	l.bound[i], l.units[i] = bound, unit
	return nil
}

// bindCall fills in all bindings and parameters of a call whose keys are not split.
func (l *launch) bindCall(c *vk.Commands, a *Args, all []tensors.Layout, groups [3]uint32) error {
	if err := l.bindTensors(a, all, 0, a.B); err != nil {
		return err
	}
	if err := l.bindOptions(a); err != nil {
		return err
	}
	if err := l.bindMap(c, a, groups); err != nil {
		return err
	}
	return l.writeParams(c)
}

// bindTensors fills in Q, K, V, O and LSE of batches [first, first+count), and the
// parameters that every kernel takes.
func (l *launch) bindTensors(a *Args, all []tensors.Layout, first, count int) error {
	l.n = 0
	p, kv := &l.params, l.options.KV
	for i := range all {
		t := &all[i]
		size := uint64(t.Size)
		unit := size
		if (i == 1 || i == 2) && kv != KVSame {
			unit = 1 // quantized rows are addressed by bytes
		}
		at := (uint64(t.Tensor.Offset) + uint64(first)*uint64(t.Steps[0])) * size
		length := t.SpanBytes()
		if count < a.B {
			length = (uint64(count-1)*uint64(t.Steps[0]) + t.Extent()) * size
		}
		if err := l.bindBuffer(i, t.Tensor.Buffer, at, length, unit); err != nil {
			return err
		}
		if i > tensors.FirstOutput {
			continue
		}
		for d, stride := range t.Steps {
			if t.Counts[d] == 1 || d == 0 && count == 1 && a.B > 1 && !l.options.Any() {
				stride = 0
			}
			p.stride[i][d] = uint32(stride)
		}
	}
	s := &a.Shape
	p.Sq, p.Sk, p.Hq, p.groupSize = uint32(s.Sq), uint32(s.Sk), uint32(s.Hq), uint32(s.Group())
	if a.Pages != nil && a.Pages.Count == 0 {
		p.Sk = 0 // lengths are not read as those of a pool without pages
	}
	n := l.options.Factors(&l.op.factors)
	p.scoreScale, p.unitHigh, p.unitLow = n.Scale, n.UnitHigh, n.UnitLow
	if cfg := &l.op.cfg; !l.options.Any() && cfg.Causal == BottomRight {
		p.causalOffset = int32(s.Sk - s.Sq)
	}
	return nil
}

// dispatch records the general kernel and, with the same parameters, the decode kernel for
// the decode part of a mixed batch. The two write different rows and need no barrier
// between them. The prefill part comes first, since its workgroups take longest.
func (l *launch) dispatch(c *vk.Commands, a *Args, all []tensors.Layout, groups [3]uint32) error {
	if err := l.dispatchParts(c, l.prepared, a, all, groups); err != nil || l.decodePart == nil {
		return err
	}
	return l.dispatchParts(c, l.decodePart, a, all, l.decodePartGroups)
}

// dispatchOne records one kernel.
func (l *launch) dispatchOne(c *vk.Commands, p *vk.Pipeline, groups [3]uint32) error {
	l.dispatches++
	l.sent, l.groups = p, groups
	if l.access == AccessAddresses {
		var tables []vk.BufferRange // of modifiers, and in front of them their sizes
		if l.tables > 0 {
			tables = l.bound[plan.ParamsBinding:l.bindings]
		}
		return c.Dispatch(p, tables, dispatch.ParamBytes(&l.params, l.pushBytes), groups, l.held[:l.n]...)
	}
	for i := range l.bound[:l.bindings] {
		if l.bound[i].Buffer == nil {
			l.bound[i] = dispatch.EmptyBinding(l.bound[0].Buffer)
		}
	}
	return c.Dispatch(p, l.bound[:l.bindings], dispatch.ParamBytes(&l.params, l.pushBytes), groups)
}
