package kvcache

import (
	"fmt"
	"math"
	"math/bits"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// Dispatch of the append kernel, once for each tensor: its variant, parameters and bindings.

// appendPushBytes is the size of the push constant block of shaders/append.comp.
const appendPushBytes = 120

// appendLocal is the workgroup size of the append kernel, which every device has. A row
// takes at most this many invocations.
const appendLocal = 128

// appendVariant is the key of an Append's pipelines.
type appendVariant struct {
	access  problem.Access // AccessAddresses or AccessDescriptors, decided
	dim     int
	kv      problem.KVType
	rotated bool

	givenScale uint32 // GIVEN_SCALE: 1 of a head, 2 of the tensor
}

// lanes is the number of invocations per row, about one for four elements.
func (v *appendVariant) lanes() uint32 {
	return min(appendLocal, uint32(1)<<bits.Len32(arith.CeilDiv32(uint32(v.dim), 4)-1))
}

// access decides how kernels reach tensors. A nil l stands for tensors with addresses.
func (p *Append) access(l *appendLayouts) problem.Access {
	if p.cfg.Access != problem.AccessAuto {
		return p.cfg.Access
	}
	if !p.dev.Caps().BufferDeviceAddress {
		return problem.AccessDescriptors
	}
	if l != nil && l.withoutAddress() != "" {
		return problem.AccessDescriptors
	}
	return problem.AccessAddresses
}

// withoutAddress returns the field of the first tensor whose buffer has no address.
func (l *appendLayouts) withoutAddress() string {
	for i := range l.list {
		if t := &l.list[i]; t.Field != "" && t.Tensor.Buffer.Address() == 0 {
			return t.Field
		}
	}
	return ""
}

// Pipeline describes the kernel to the host layer.
func (v appendVariant) Pipeline(cfg *AppendConfig) (*vk.PipelineDesc, error) {
	module, err := shaders.Get(dispatch.ModuleName("append", v.access))
	if err != nil {
		return nil, err
	}
	var rotary Rotary
	if v.rotated {
		rotary = cfg.Rotary
	}
	desc, err := dispatch.DescribeKernel(module, appendLocal, map[uint32]uint32{
		shaders.ConstLocalSize:       appendLocal,
		shaders.ConstHeadDim:         uint32(v.dim),
		shaders.ConstDtype:           uint32(cfg.DType),
		shaders.ConstLanesPerRow:     v.lanes(),
		shaders.ConstCacheType:       uint32(v.kv),
		shaders.ConstGivenScale:      v.givenScale,
		shaders.ConstRotaryDim:       uint32(rotary.Dim),
		shaders.ConstRotaryFirst:     uint32(rotary.First),
		shaders.ConstRotaryHalfSplit: dispatch.BoolConstant(rotary.Style == RotaryHalfSplit),
	})
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d as %v rotary %d", module.Name, cfg.DType, v.dim, v.kv, rotary.Dim)
	return desc, nil
}

// record checks the arguments and records the dispatches into c, all or none: one each
// for K, V and Q, and more if a dispatch cannot cover all batches.
func (p *Append) record(c *vk.Commands, a *AppendArgs) error {
	w := appendLauncher{limits: &p.dev.Caps().Limits}
	if err := p.check(&w.appendLayouts, a); err != nil || a.B == 0 {
		return err
	}
	if err := w.fits32(); err != nil {
		return err
	}
	w.access = p.access(&w.appendLayouts)
	if field := w.withoutAddress(); field != "" && w.access == problem.AccessAddresses {
		return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses", problem.ErrUnsupported, field)
	}
	var list [len(appendTasks)]appendLaunch
	n, dispatches := 0, 0
	for i := range appendTasks {
		if t := &appendTasks[i]; !w.given(t.in) || w.list[t.in].Empty() || w.list[t.out].Empty() {
			continue // nothing is written
		}
		l := &list[n]
		n++
		l.appendTask = &appendTasks[i]
		v := l.variant(&p.cfg, w.access)
		l.rotate = v.rotated
		if err := w.size(l, &v); err != nil {
			return err
		}
		var err error
		if l.pipeline, err = p.pipelines.Of(p.dev, &p.cfg, v); err != nil {
			return err
		}
		dispatches += (l.batches + l.chunk - 1) / l.chunk
	}
	// Everything that can fail comes before anything is recorded.
	if w.access == problem.AccessDescriptors {
		if err := c.Reserve(dispatches, appendBindings); err != nil {
			return err
		}
	}
	if err := w.order(c); err != nil {
		return err
	}
	if err := w.hold(c); err != nil {
		return err
	}
	for i := range list[:n] {
		l := &list[i]
		for first := 0; first < l.batches; first += l.chunk {
			if err := w.dispatch(c, l, first, min(l.chunk, l.batches-first)); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendLauncher holds an append while its dispatches are recorded; appendLaunch is one
// of its tensors.
type appendLauncher struct {
	appendLayouts
	limits *vk.Limits
	access problem.Access
}

type appendLaunch struct {
	*appendTask
	pipeline *vk.Pipeline
	rotate   bool
	batches  int // batches in the grid's z: sequences, or 1 if they are packed
	chunk    int // batches per dispatch
	groups   [2]uint32
}

// order puts the append behind the earlier work of a stream that it depends on.
func (w *appendLauncher) order(c *vk.Commands) error {
	if !c.Ordered() {
		return nil
	}
	var u tensors.Uses
	for i := range w.list {
		switch t := &w.list[i]; {
		case !w.given(i):
		case !w.isOutput(i):
			u.Read(t)
		default:
			u.Write(t)
		}
	}
	return u.Order(c)
}

// hold makes the commands hold every buffer until the work has run.
func (w *appendLauncher) hold(c *vk.Commands) error {
	var held [appendTensors]vk.Resource
	n := 0
	for i := range w.list {
		if w.given(i) {
			held[n] = w.list[i].Tensor.Buffer
			n++
		}
	}
	return c.Keep(held[:n]...)
}

// size computes the grid and the batches per dispatch. The grid's z, the 32 bits of a
// stride and the range of a descriptor bound them.
func (w *appendLauncher) size(l *appendLaunch, v *appendVariant) error {
	in := &w.list[l.in]
	blocks := arith.CeilDiv32(uint32(in.Counts[1]*in.Counts[2]), appendLocal/v.lanes())
	l.groups[0] = min(blocks, w.limits.MaxWorkGroupCount[0])
	l.groups[1] = arith.CeilDiv32(blocks, l.groups[0])
	if l.groups[1] > w.limits.MaxWorkGroupCount[1] {
		return fmt.Errorf("%w: %d row blocks of %s, the device dispatches %d x %d", problem.ErrUnsupported, blocks, in.Field,
			w.limits.MaxWorkGroupCount[0], w.limits.MaxWorkGroupCount[1])
	}
	l.batches = int(in.Counts[0])
	most := min(uint64(l.batches), uint64(w.limits.MaxWorkGroupCount[2]))
	for slot, tensor := range w.slots(l) {
		if tensor < 0 {
			continue
		}
		t := &w.list[tensor]
		extent, step, split := w.batchExtent(l, slot, t)
		if step > math.MaxUint32 {
			if !split && t.Counts[0] > 1 {
				return fmt.Errorf("%w: %s has a batch stride of 2^32 elements or more, and one dispatch covers all batches",
					problem.ErrUnsupported, t.Field)
			}
			most = 1
		}
		if w.access == problem.AccessAddresses {
			continue
		}
		size := uint64(t.Size)
		span := w.limits.MaxWindow()
		if extent > span/size {
			return fmt.Errorf("%w: a dispatch reaches %d elements of %d bytes of %s, a descriptor %d bytes; buffers with device addresses have no such limit",
				problem.ErrUnsupported, extent, size, t.Field, span)
		}
		if split {
			most = dispatch.BatchesInSpan(most, span, size, extent, step)
		}
	}
	l.chunk = int(max(most, 1))
	return nil
}

// Bindings of append.comp, in the order of its addresses.
const (
	appendIn = iota
	appendOut
	appendScale
	appendBindings = 8
)

// slots returns the tensor of each binding; -1 for none.
func (w *appendLauncher) slots(l *appendLaunch) [appendBindings]int {
	s := [appendBindings]int{l.in, l.out, l.scale, appendUsed, appendLengths, appendTable, appendCos, appendSin}
	for i := range s {
		switch {
		case s[i] < 0, !w.given(s[i]),
			s[i] == appendTable && !l.toCache(),
			s[i] == appendLengths && !w.packed && !w.counts(l.appendTask),
			(s[i] == appendCos || s[i] == appendSin) && !l.rotate:
			s[i] = -1
		}
	}
	return s
}

// batchExtent returns how many elements of a binding's tensor one batch spans, and the
// distance to the next batch. split is false for tensors that every batch needs whole.
func (w *appendLauncher) batchExtent(l *appendLaunch, slot int, t *tensors.Layout) (extent, step uint64, split bool) {
	whole := slot > appendScale || slot == appendScale && w.readsScales || slot != appendIn && l.toCache() && (w.paged || w.packed)
	switch {
	case slot == appendScale && !whole:
		return uint64(t.Dim) / uint64(w.sequences), uint64(t.Dim) / uint64(w.sequences), true
	case !whole:
		return t.Extent(), uint64(t.Steps[0]), true
	}
	return t.Extent() + uint64((t.Counts[0]-1)*t.Steps[0]), uint64(t.Steps[0]), false
}

// The flags of append_rows.glsl.
const (
	flagUsed = 1 << iota
	flagPacked
	flagCounted
	flagToCache
	flagPaged
	flagAtUsed
	flagCosSin16
)

func (w *appendLauncher) flags(l *appendLaunch) (f uint32) {
	for _, x := range [...]struct {
		flag uint32
		set  bool
	}{{flagUsed, w.given(appendUsed)}, {flagPacked, w.packed}, {flagCounted, w.counts(l.appendTask)}, {flagToCache, l.toCache()}, {flagPaged, w.paged},
		{flagAtUsed, w.qAtUsed && !l.toCache()}, {flagCosSin16, w.list[appendCos].Size == 2}} {
		if x.set {
			f |= x.flag
		}
	}
	return f
}

// dispatch records batches [first, first+count).
func (w *appendLauncher) dispatch(c *vk.Commands, l *appendLaunch, first, count int) error {
	var push appendParams
	var bound [appendBindings]vk.BufferRange
	for slot, tensor := range w.slots(l) {
		if tensor < 0 {
			// Neither read nor written; its binding must still name a buffer.
			b := w.list[l.out].Tensor.Buffer
			bound[slot] = dispatch.EmptyBinding(b)
			continue
		}
		t := &w.list[tensor]
		start := uint64(t.Tensor.Offset) // in elements
		extent, step, split := w.batchExtent(l, slot, t)
		switch tensor {
		case appendUsed:
			start += uint64(first)
		case appendLengths:
			start += uint64(first)
		case appendTable:
			start += uint64(first) * uint64(w.tableStride)
		default:
			if split {
				start += uint64(first) * step
				extent += uint64(count-1) * step
			}
		}
		if slot > appendScale { // up to its end
			extent -= start - uint64(t.Tensor.Offset)
		}
		at := start * uint64(t.Size)
		if w.access == problem.AccessAddresses {
			at += t.Tensor.Buffer.Address()
		} else {
			var err error
			if bound[slot], at, err = t.Tensor.Buffer.Window(at, extent*uint64(t.Size)); err != nil {
				return err
			}
			if slot != appendOut {
				at /= uint64(t.Size)
			}
		}
		push.addr[slot] = at
		if slot <= appendOut {
			for d, stride := range t.Steps {
				if d == 0 && (t.Counts[0] == 1 || count == 1 && split) {
					stride = 0
				}
				push.stride[slot][d] = uint32(stride)
			}
		}
	}
	in := &w.list[l.in]
	push.rows, push.heads, push.sequences, push.limit = uint32(in.Counts[2]), uint32(in.Counts[1]), uint32(w.sequences), uint32(w.limitOf(l.appendTask))
	push.pageRows, push.pages, push.blockTableStride, push.flags = uint32(w.pageRows), uint32(w.pages), uint32(w.tableStride), w.flags(l)
	groups := [3]uint32{l.groups[0], l.groups[1], uint32(count)}
	if w.access == problem.AccessAddresses {
		return c.Dispatch(l.pipeline, nil, dispatch.ParamBytes(&push, appendPushBytes), groups)
	}
	return c.Dispatch(l.pipeline, bound[:], dispatch.ParamBytes(&push, appendPushBytes), groups)
}

// appendParams is the block Params of shaders/append.comp.
type appendParams struct {
	addr   [appendBindings]uint64 `glsl:"addrIn addrOut addrScale addrUsed addrLengths addrBlockTable addrCos addrSin"`
	stride [2][3]uint32           `glsl:"strideInBatch strideInHead strideInSeq strideOutBatch strideOutHead strideOutSeq"`

	rows, heads, sequences, limit, pageRows, pages, blockTableStride, flags uint32
}
