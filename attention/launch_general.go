package attention

import (
	"errors"
	"fmt"
	"math"

	"vkattn/vk"
)

// The tensors of a call with features: those every call has, then the others in the
// order of the bindings and addresses of shaders/option_arrays.glsl.
const (
	bindLSE = 4 + iota
	bindCuQ
	bindCuK
	bindUsedQ
	bindUsedK
	bindTable
	bindALiBi
	bindSinks
	bindBias
	bindMap
	bindKScale
	bindVScale
	bindTokens
)

// generalLaunch is one Forward with features on its way to a dispatch.
type generalLaunch struct {
	*prepared
	op     *Op
	access Access
	align  uint64 // of a descriptor's offset
	span   uint64 // that a descriptor reaches
	push   generalParams
	bound  [generalBindings + 1]vk.BufferRange
	held   [generalBindings]vk.Resource
	n      int

	pushBytes, bindings int // that the module takes

	decodePartGroups [3]uint32 // of prepared.short
}

// recordGeneral records a call that the module with features computes: one
// dispatch, and with split keys, unless it puts the parts together itself, a barrier
// and what does. It returns errNeedsCombine where the call has to be planned that way.
func (op *Op) recordGeneral(c *vk.Commands, p *prepared, access Access, a *Args, all []layout) error {
	limits := &op.dev.Caps().Limits
	f, dv := p.options, op.cfg.ValueDim()
	if err := a.optionLimits(f, p.splits, dv); err != nil {
		return err
	}
	groups, err := p.grid(a, limits)
	if err != nil {
		return err
	}
	l := &generalLaunch{prepared: p, op: op, access: access, align: limits.MinStorageBufferOffsetAlignment,
		span:      limits.MaxStorageBufferRange - min(limits.MaxStorageBufferRange, limits.MinStorageBufferOffsetAlignment),
		pushBytes: generalPushBytes, bindings: generalBindings}
	if paramsInBuffer(limits) {
		l.pushBytes, l.bindings = 0, generalBindings+1
	}
	if err := l.checkStrides(a, all); err != nil {
		return err
	}
	if p.decodePart != nil {
		if l.decodePartGroups, err = p.decodePart.grid(a, limits); err != nil {
			return err
		}
		if access == AccessDescriptors {
			if err := c.Reserve(2, l.bindings); err != nil {
				return err
			}
		}
	}
	if p.splits <= 1 {
		if err := l.bindTensors(a, all); err != nil {
			return err
		}
		if err := l.params(c); err != nil {
			return err
		}
		return l.dispatch(c, groups)
	}
	if p.options.combined {
		return l.combined(c, a, all, groups)
	}
	return l.split(c, a, all, groups)
}

// grid is the workgroups of its dispatch, all of which the device has.
func (p *prepared) grid(a *Args, limits *vk.Limits) ([3]uint32, error) {
	totalQ := 0
	if p.options.lengths&lengthCuQ != 0 {
		totalQ = a.Varlen.TotalQ
	}
	groups := p.options.grid(&a.Shape, totalQ, p.splitWorkgroups, p.rows, p.slices)
	for i, n := range groups {
		if n > limits.MaxWorkGroupCount[i] {
			return groups, fmt.Errorf("%w: a grid of %v workgroups, the device dispatches %v", ErrUnsupported, groups, limits.MaxWorkGroupCount)
		}
	}
	return groups, nil
}

// reaches checks the strides against the 32 bits of a kernel.
func (l *generalLaunch) checkStrides(a *Args, all []layout) error {
	for i := range all[:firstOutput+1] {
		t := &all[i]
		for d, step := range t.steps {
			if t.counts[d] > 1 && step > math.MaxUint32 {
				return fmt.Errorf("%w: %s has a %s stride of 2^32 elements or more, with what the call asks for", ErrUnsupported, t.field, strideNames[d])
			}
		}
		reach := uint64(l.rowReach)
		if l.decodePart != nil {
			reach = max(reach, uint64(l.decodePart.rowReach))
		}
		heads := uint64(a.Group()) * uint64(t.steps[1])
		if t.counts[2] > 1 && uint64(t.steps[2]) > (math.MaxUint32-min(heads, math.MaxUint32))/reach/uint64(t.size) {
			return fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them", ErrUnsupported, t.field, t.steps[2])
		}
	}
	return nil
}

// place gives binding i a buffer, and the kernel where in it things start: an
// address, or elements of size bytes from the start of what is bound.
func (l *generalLaunch) bindTensor(i int, b *vk.Buffer, offset, length uint64, size uint64) error {
	if l.access == AccessAddresses {
		if b.Address() == 0 {
			return fmt.Errorf("%w: a buffer has no device address, and others of the call have", ErrUnsupported)
		}
		l.push.setAddress(i, b.Address()+offset)
		l.held[l.n] = b
		l.n++
		return nil
	}
	at := b.Offset() + offset
	start := max(at/l.align*l.align, b.Offset())
	rest := at - start
	if rest+length > l.span {
		return fmt.Errorf("%w: a tensor spans %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit", ErrUnsupported, rest+length, l.span)
	}
	first := start - b.Offset()
	l.push.setAddress(i, rest/size)
	// Kernels read whole 32-bit words; a buffer may end in the middle of one.
	l.bound[i] = vk.BufferRange{Buffer: b, Offset: first, Size: min((rest+length+3)&^3, b.Size()-first)}
	return nil
}

// tensors fills in everything that does not change when keys are split.
func (l *generalLaunch) bindTensors(a *Args, all []layout) error {
	cfg, f := &l.op.cfg, l.options
	for i := range all {
		t := &all[i]
		size := uint64(t.size)
		unit := size
		if (i == 1 || i == 2) && f.kv != KVSame {
			unit = 1 // quantised rows are addressed by bytes
		}
		if err := l.bindTensor(i, t.tensor.Buffer, uint64(t.tensor.Offset)*size, uint64(t.spanBytes()), unit); err != nil {
			return err
		}
		if i <= firstOutput {
			for d, stride := range t.steps {
				if t.counts[d] == 1 {
					stride = 0
				}
				l.push.stride[i][d] = uint32(stride)
			}
		}
	}
	if f.lengths&lengthCuQ != 0 {
		l.push.stride[0][0] = uint32(a.B)
	}
	s := &a.Shape
	p := &l.push
	p.Sq, p.Sk, p.Hq, p.groupSize = uint32(s.Sq), uint32(s.Sk), uint32(s.Hq), uint32(s.Group())
	if cfg.Causal == BottomRight || cfg.Causal == CausalNone && cfg.Align == BottomRight {
		p.causalOffset = 1
	}
	n := l.op.factors.of(f)
	p.scoreScale, p.unitHigh, p.unitLow = n.scale, n.unitHigh, n.unitLow
	return l.bindOptions(a)
}

// extras fills in what lies beyond the block of calls without features.
func (l *generalLaunch) bindOptions(a *Args) error {
	cfg, s := &l.op.cfg, &a.Shape
	words := func(i int, v *Vector, n uint64) error {
		if !v.Given() {
			return nil
		}
		return l.bindTensor(i, v.Buffer, uint64(v.Offset)*4, n*4, 4)
	}
	var totalQ, totalK int
	batches := uint64(s.B)
	if v := a.Varlen; v != nil {
		totalQ, totalK = v.TotalQ, v.TotalK
		for _, x := range [4]struct {
			binding int
			v       *Vector
			n       uint64
		}{{bindCuQ, &v.CuQ, batches + 1}, {bindCuK, &v.CuK, batches + 1}, {bindUsedQ, &v.UsedQ, batches}, {bindUsedK, &v.UsedK, batches}} {
			if err := words(x.binding, x.v, x.n); err != nil {
				return err
			}
		}
	}
	if p := a.Pages; p != nil {
		totalK = p.Count
		stride := p.stride(s)
		if err := words(bindTable, &p.Table, batches*uint64(stride)); err != nil {
			return err
		}
		l.push.blockTableStride = uint32(stride)
	}
	if err := words(bindALiBi, &a.ALiBi, uint64(s.Hq)); err != nil {
		return err
	}
	if err := words(bindSinks, &a.Sinks, uint64(s.Hq)); err != nil {
		return err
	}
	if b := a.Bias; b != nil {
		size, steps := uint64(b.DType.Size()), b.resolve(*s)
		if err := l.bindTensor(bindBias, b.Buffer, uint64(b.Offset)*size, reachOf(steps, s.Sq, s)*size, size); err != nil {
			return err
		}
		putSteps(&l.push.strideBias, steps)
	}
	switch {
	case a.Mask != nil:
		steps := a.Mask.resolve(*s)
		if err := l.bindTensor(bindMap, a.Mask.Buffer, uint64(a.Mask.Offset), reachOf(steps, s.Sq, s), 1); err != nil {
			return err
		}
		putSteps(&l.push.strideMap, steps)
	case a.Blocks != nil:
		rows, n := a.Blocks.grid(s)
		steps := a.Blocks.resolve(*s)
		all := uint64(orFull(a.Blocks.Batches, s.B)) * uint64(orFull(a.Blocks.Heads, s.Hq)) * uint64(rows) * uint64(n)
		if err := words(bindMap, &a.Blocks.Map, all); err != nil {
			return err
		}
		putSteps(&l.push.strideMap, steps)
	case a.SparseTokens != nil:
		if err := words(bindMap, &a.SparseTokens.Offsets, batches*uint64(s.KVHeads())+1); err != nil {
			return err
		}
		if err := words(bindTokens, &a.SparseTokens.Tokens, uint64(a.SparseTokens.Total)); err != nil {
			return err
		}
		l.push.strideMap[2] = uint32(a.SparseTokens.Total)
	}
	if cfg.KV.Scaled() {
		b, keys := a.kvExtent()
		n := uint64(b) * uint64(s.KVHeads()) * uint64(cfg.scaleGroups(keys))
		if err := words(bindKScale, &a.KScale, n); err != nil {
			return err
		}
		if err := words(bindVScale, &a.VScale, n); err != nil {
			return err
		}
	}
	l.push.totalQ, l.push.totalK = uint32(totalQ), uint32(totalK)
	l.push.windowLeft, l.push.windowRight = min(cfg.Window.left, maxWindow), min(cfg.Window.right, maxWindow)
	l.push.softcap = cfg.Softcap
	if !l.options.natural() {
		l.push.softcap = float32(float64(cfg.Softcap) * math.Log2E)
	}
	return nil
}

// params puts the parameters where a module without push constants reads them.
func (l *generalLaunch) params(c *vk.Commands) (err error) {
	if l.pushBytes == 0 {
		l.bound[paramsBinding], err = c.Params(paramBytes(&l.push, generalPushBytes))
	}
	return err
}

// dispatch records the kernel and, with the same parameters, that of the short sequences. Neither writes a row of
// the other's, so no barrier is between them. The long sequences come first, since their workgroups take longest.
func (l *generalLaunch) dispatch(c *vk.Commands, groups [3]uint32) error {
	if err := l.dispatchOne(c, l.pipeline, groups); err != nil || l.decodePart == nil {
		return err
	}
	return l.dispatchOne(c, l.decodePart.pipeline, l.decodePartGroups)
}

// dispatchOne records one kernel. A binding that is not given must still name a buffer.
func (l *generalLaunch) dispatchOne(c *vk.Commands, p *vk.Pipeline, groups [3]uint32) error {
	if l.access == AccessAddresses {
		return c.Dispatch(p, nil, paramBytes(&l.push, generalPushBytes), groups, l.held[:l.n]...)
	}
	for i := range l.bound[:l.bindings] {
		if l.bound[i].Buffer == nil {
			q := l.bound[0].Buffer
			l.bound[i] = vk.BufferRange{Buffer: q, Size: min(q.Size(), 4)}
		}
	}
	return c.Dispatch(p, l.bound[:l.bindings], paramBytes(&l.push, l.pushBytes), groups)
}

// absentRow is what shaders/combine.comp takes for the LSE of a row of no sequence.
const absentRow = 0xff8a5a5a

// errNeedsCombine: there is no scratch memory for a kernel that puts parts together itself.
var errNeedsCombine = errors.New("attention: parts of keys are to be put together by a kernel of their own")

// combined records a kernel that puts the parts together itself: one dispatch. The LSE's
// address is that of scratch memory, whose layout shaders/decode_combine.glsl tells.
func (l *generalLaunch) combined(c *vk.Commands, a *Args, all []layout, groups [3]uint32) error {
	batches, rows := a.queryExtent()
	states := uint64(batches) * uint64(a.Hq) * uint64(rows) * uint64(l.splits)
	counters := (uint64(groups[0])*uint64(groups[1]/uint32(l.splitWorkgroups))*uint64(groups[2])*4 + 255) &^ 255
	bytes := states * uint64(l.op.cfg.ValueDim()+int(l.slices)) * 4 // O, and an LSE for each slice of its columns
	if l.access == AccessDescriptors && counters+bytes > l.span {
		return errNeedsCombine // all of it is one binding
	}
	scratch, first, err := c.Scratch(counters, bytes)
	switch {
	case errors.Is(err, vk.ErrUnsupported):
		return errNeedsCombine
	case err != nil:
		return fmt.Errorf("attention: memory for %d parts of the keys: %w", l.splits, err)
	}
	if err := l.bindTensors(a, all[:firstOutput+1]); err != nil {
		return err
	}
	if err := l.bindTensor(bindLSE, scratch, first-counters, counters+bytes, 4); err != nil {
		return err
	}
	if err := l.params(c); err != nil {
		return err
	}
	return l.dispatch(c, groups)
}

// split records the kernel with states in scratch memory, and what puts them
// together.
func (l *generalLaunch) split(c *vk.Commands, a *Args, all []layout, groups [3]uint32) error {
	batches, rows := a.queryExtent()
	dv := l.op.cfg.ValueDim()
	states := uint64(batches) * uint64(a.Hq) * uint64(rows) // rows of a state
	lseBytes := (states*uint64(l.splits)*4 + 15) &^ 15
	scratch, first, err := c.Scratch(0, lseBytes+states*uint64(l.splits)*uint64(dv)*4)
	if err != nil {
		return fmt.Errorf("attention: memory for %d parts of the keys: %w", l.splits, err)
	}
	o := Tensor{Buffer: scratch, Offset: int64(first+lseBytes) / 4}
	lse := Tensor{Buffer: scratch, Offset: int64(first) / 4}
	var with [5]layout
	copy(with[:], all[:firstOutput])
	with[3].set("O", &o, 4, batches, a.Hq, rows*l.splits, dv)
	with[4].set("LSE", &lse, 4, batches, a.Hq, rows*l.splits, 1)
	if err := l.bindTensors(a, with[:]); err != nil {
		return err
	}
	l.push.stride[firstOutput][0] = uint32(states)
	combine := combineLaunch{scratch: scratch, lseAt: first, oAt: first + lseBytes, splits: uint32(l.splits), rows: uint32(states), o: all[firstOutput]}
	if len(all) > firstOutput+1 {
		combine.lse = all[firstOutput+1]
	}
	if err := combine.prepare(l.op, l.access); err != nil {
		return err
	}
	if err := l.params(c); err != nil {
		return err
	}
	if l.options.lengths&(lengthCuQ|lengthUsedQ) != 0 {
		// Rows of no sequence keep this mark, by which the kernel below knows them.
		if err := c.Fill(vk.BufferRange{Buffer: scratch, Offset: first, Size: lseBytes}, absentRow); err != nil {
			return err
		}
		if err := c.Barrier(); err != nil {
			return err
		}
	}
	if err := l.dispatch(c, groups); err != nil {
		return err
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	return combine.dispatch(c)
}

func putSteps(strides *[3]uint32, steps [3]int64) {
	for i, n := range steps {
		strides[i] = uint32(n)
	}
}

// reachOf is the number of elements a broadcast tensor [B, Hq, rows, Sk] spans.
func reachOf(steps [3]int64, rows int, s *Shape) uint64 {
	return uint64(int64(s.B-1)*steps[0] + int64(s.Hq-1)*steps[1] + int64(rows-1)*steps[2] + int64(s.Sk))
}
