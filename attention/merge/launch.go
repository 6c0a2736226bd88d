package merge

import (
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// Dispatch of the merge kernel: its variant, parameters and bindings.

// mergePushBytes is the size of the push constant block of shaders/merge.comp.
const mergePushBytes = 116

// mergeLocal is the workgroup size of the merge kernel. Every device has it, and it covers
// two rows of the widest O.
const mergeLocal = 128

// mergeVariant is the key of a Merge's pipelines.
type mergeVariant struct {
	access problem.Access // AccessAddresses or AccessDescriptors, decided
	lse    bool
	sum    bool   // of a Sum
	align  uint32 // of O in every state and in the result, in elements
}

// mergeRows is the number of rows per workgroup: one invocation computes 8 columns.
func mergeRows(headDim int) uint32 { return mergeLocal / arith.CeilDiv32(uint32(headDim), 8) }

// access decides how kernels reach tensors. A nil l stands for tensors with addresses.
func (m *Merge) access(l *mergeLayouts) problem.Access {
	if m.cfg.Access != problem.AccessAuto {
		return m.cfg.Access
	}
	if !m.dev.Caps().BufferDeviceAddress {
		return problem.AccessDescriptors
	}
	if l != nil {
		for i := range l.list {
			if t := &l.list[i]; t.states != 0 && t.Tensor.Buffer.Address() == 0 {
				return problem.AccessDescriptors
			}
		}
	}
	return problem.AccessAddresses
}

// variant returns the kernel for checked arguments.
func (m *Merge) variant(l *mergeLayouts) (mergeVariant, error) {
	v := mergeVariant{access: m.access(l), lse: l.list[mergeLSE].states != 0, sum: m.sum, align: 8}
	for i := range l.list {
		t := &l.list[i]
		if t.states == 0 {
			continue
		}
		if v.access == problem.AccessAddresses && t.Tensor.Buffer.Address() == 0 {
			return v, fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses",
				problem.ErrUnsupported, t.Field)
		}
		if !isLSE(i) {
			v.align = min(v.align, tensors.LargestAlignment(uint64(t.Dim), uint64(t.step), uint64(t.Steps[0]), uint64(t.Steps[1]),
				uint64(t.Steps[2]), tensors.BaseOf(&t.Tensor, t.Size, v.access)/uint64(t.Size)))
		}
	}
	return v, nil
}

// Pipeline describes the kernel to the host layer.
func (v mergeVariant) Pipeline(cfg *MergeConfig) (*vk.PipelineDesc, error) {
	module, err := shaders.Get(dispatch.ModuleName("merge", v.access))
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(module, mergeLocal, map[uint32]uint32{
		shaders.ConstLocalSize: mergeLocal,
		shaders.ConstHeadDimV:  uint32(cfg.HeadDim),
		shaders.ConstHasLse:    dispatch.BoolConstant(v.lse),
		shaders.ConstAlignO:    v.align,
		shaders.ConstDtype:     uint32(cfg.DType),
		shaders.ConstSumStates: dispatch.BoolConstant(v.sum),
		shaders.ConstF32States: dispatch.BoolConstant(cfg.stateType() != cfg.DType),
	})
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d align %d", module.Name, cfg.DType, cfg.HeadDim, v.align)
	return desc, nil
}

// record checks the arguments and records the dispatches into c, all or none.
func (m *Merge) record(c *vk.Commands, a *MergeArgs) error {
	w := mergeLaunch{sq: uint32(a.Sq), hq: uint32(a.Hq)}
	if err := m.check(&w.mergeLayouts, a); err != nil || w.list[mergeO].Empty() {
		return err
	}
	if err := w.fits32(); err != nil {
		return err
	}
	v, err := m.variant(&w.mergeLayouts)
	if err != nil {
		return err
	}
	w.access = v.access
	limits := &m.dev.Caps().Limits
	blocks := arith.CeilDiv32(uint32(a.Hq*a.Sq), mergeRows(m.cfg.HeadDim))
	w.groups[0] = min(blocks, limits.MaxWorkGroupCount[0])
	w.groups[1] = arith.CeilDiv32(blocks, w.groups[0])
	if w.groups[1] > limits.MaxWorkGroupCount[1] {
		return fmt.Errorf("%w: %d row blocks, the device dispatches %d x %d", problem.ErrUnsupported, blocks,
			limits.MaxWorkGroupCount[0], limits.MaxWorkGroupCount[1])
	}
	chunk, err := w.batchesAtOnce(limits, a.B)
	if err != nil {
		return err
	}
	if w.pipeline, err = m.pipelines.Of(m.dev, &m.cfg, v); err != nil {
		return err
	}
	if v.access == problem.AccessDescriptors && chunk < a.B {
		if err := c.Reserve((a.B+chunk-1)/chunk, mergeTensors); err != nil {
			return err
		}
	}
	if err := w.order(c); err != nil {
		return err
	}
	for first := 0; first < a.B; first += chunk {
		if err := w.dispatch(c, first, min(chunk, a.B-first)); err != nil {
			return err
		}
	}
	return nil
}

// order puts the merge behind the earlier work of a stream that it depends on.
func (l *mergeLayouts) order(c *vk.Commands) error {
	if !c.Ordered() {
		return nil
	}
	var u tensors.Uses
	for i := range l.list {
		t := l.list[i]
		if t.states == 0 {
			continue
		}
		if i == mergeO || i == mergeLSE {
			u.Write(&t.Layout)
			continue
		}
		t.Dim += (t.states - 1) * t.step // from the first state to the last
		u.Read(&t.Layout)
	}
	return u.Order(c)
}

// mergeLaunch holds a merge while its dispatches are recorded.
type mergeLaunch struct {
	mergeLayouts
	pipeline *vk.Pipeline
	access   problem.Access
	sq, hq   uint32
	groups   [3]uint32 // z is set for each dispatch
}

// extent is the number of elements that one batch of all states spans.
func (t *stack) extent() uint64 { return uint64((t.states-1)*t.step) + t.Layout.Extent() }

// batchesAtOnce returns how many batches one dispatch may cover. The grid's z, the 32 bits
// of a stride and of a row number, and the range of a descriptor bound it.
func (w *mergeLaunch) batchesAtOnce(limits *vk.Limits, batches int) (int, error) {
	most := min(uint64(batches), uint64(limits.MaxWorkGroupCount[2]), max(1, math.MaxUint32/uint64(w.hq)))
	for i := range w.list {
		t := &w.list[i]
		if t.states == 0 {
			continue
		}
		if t.Steps[0] > math.MaxUint32 && !isLSE(i) {
			most = 1
		}
		if w.access == problem.AccessAddresses {
			continue
		}
		extent, size, step := t.extent(), uint64(t.Size), uint64(t.Steps[0])
		span := limits.MaxWindow()
		if extent > span/size {
			return 0, fmt.Errorf("%w: one batch of %s spans %d elements of %d bytes, a descriptor reaches %d bytes; buffers with device addresses have no such limit",
				problem.ErrUnsupported, t.Field, extent, size, span)
		}
		most = dispatch.BatchesInSpan(most, span, size, extent, step)
	}
	return int(max(most, 1)), nil
}

// dispatch records batches [first, first+count).
func (w *mergeLaunch) dispatch(c *vk.Commands, first, count int) error {
	var push mergeParams
	addresses := [mergeTensors]*uint64{mergeFirst: &push.addrFirst, mergeSecond: &push.addrSecond, mergeFirstLSE: &push.addrFirstLSE,
		mergeSecondLSE: &push.addrSecondLSE, mergeO: &push.addrO, mergeLSE: &push.addrLSE}
	strides := [mergeTensors]*[3]uint32{mergeFirst: &push.strideFirst, mergeSecond: &push.strideSecond, mergeO: &push.strideO}
	steps := [mergeTensors]*uint32{mergeFirst: &push.stepFirst, mergeSecond: &push.stepSecond,
		mergeFirstLSE: &push.stepFirstLSE, mergeSecondLSE: &push.stepSecondLSE}
	var bound [mergeTensors]vk.BufferRange
	var held [mergeTensors]vk.Resource
	n := 0
	for i := range w.list {
		t := &w.list[i]
		if t.states == 0 {
			// Neither read nor written; its binding must still name a buffer.
			bound[i] = dispatch.EmptyBinding(w.list[mergeO].Tensor.Buffer)
			continue
		}
		b := t.Tensor.Buffer
		held[n] = b
		n++
		var at uint64
		if w.access == problem.AccessAddresses {
			at = b.Address() + t.at(first)
		} else {
			var err error
			if at, bound[i], err = t.bind(first, count); err != nil {
				return err
			}
		}
		*addresses[i] = at
		if strides[i] != nil {
			for d, stride := range t.Steps {
				if d == 0 && count == 1 {
					stride = 0
				}
				strides[i][d] = uint32(stride)
			}
		}
		if steps[i] != nil {
			*steps[i] = uint32(t.step)
		}
	}
	inFirst, inSecond := w.list[mergeFirst].states, w.list[mergeSecond].states
	push.firstCount, push.states, push.Sq, push.Hq = uint32(inFirst), uint32(inFirst+inSecond), w.sq, w.hq
	w.groups[2] = uint32(count)
	if w.access == problem.AccessAddresses {
		return c.Dispatch(w.pipeline, nil, dispatch.ParamBytes(&push, mergePushBytes), w.groups, held[:n]...)
	}
	return c.Dispatch(w.pipeline, bound[:], dispatch.ParamBytes(&push, mergePushBytes), w.groups)
}

// at returns the byte offset of a batch's first element in the tensor's buffer.
func (t *stack) at(batch int) uint64 {
	return (uint64(t.Tensor.Offset) + uint64(batch)*uint64(t.Steps[0])) * uint64(t.Size)
}

// bind returns a descriptor of batches [first, first+count) and the position of the first
// element in it, in elements.
func (t *stack) bind(first, count int) (uint64, vk.BufferRange, error) {
	size := uint64(t.Size)
	r, rest, err := t.Tensor.Buffer.Window(t.at(first), (uint64(count-1)*uint64(t.Steps[0])+t.extent())*size)
	return rest / size, r, err
}

// mergeParams is the block Params of shaders/merge.comp.
type mergeParams struct {
	addrFirst, addrSecond, addrFirstLSE, addrSecondLSE, addrO, addrLSE uint64

	strideFirst  [3]uint32 `glsl:"strideFirstBatch strideFirstHead strideFirstSeq"`
	strideSecond [3]uint32 `glsl:"strideSecondBatch strideSecondHead strideSecondSeq"`
	strideO      [3]uint32 `glsl:"strideOBatch strideOHead strideOSeq"`

	stepFirst, stepSecond, stepFirstLSE, stepSecondLSE uint32

	firstCount, states, Sq, Hq uint32
}
