package attention

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// The separate combine kernel, shaders/combine.comp: it combines the splits of each row
// that another dispatch left in scratch memory. launch_splits.go records both.

// Push constant bytes, bindings and workgroup size of shaders/combine.comp. Every device
// supports workgroups of this size.
const (
	combinePushBytes = 80
	combineBindings  = 5
	combineLocal     = 128
)

// combineVariant is the key of an Op's pipelines for the separate combine kernel.
type combineVariant struct {
	access Access // AccessAddresses or AccessDescriptors, decided
	lse    bool
	sinks  bool
	align  uint32 // of O, in elements
}

// combineLaunch combines the splits that a dispatch with split keys leaves in scratch
// memory: first row max and row sum, float32 [splits, rows, 2], then O, float32 [splits, rows,
// dim].
type combineLaunch struct {
	scratch      *vk.Buffer
	statsAt, oAt uint64         // byte offsets in scratch
	splits, rows uint32         // rows per split: all rows of the output
	o, lse       tensors.Layout // values, since pointers would put the layouts of every call on the heap; lse may be zero
	sinks        Vector         // may be zero

	natural           bool // row maxima are natural exponents
	unitHigh, unitLow float32

	pipeline *vk.Pipeline
	access   Access
	groups   [3]uint32
	limits   *vk.Limits
}

func (l *combineLaunch) hasLSE() bool { return l.lse.Field != "" }

// prepare chooses the grid and the pipeline. It runs before anything is recorded, so that
// after an error nothing is.
func (l *combineLaunch) prepare(op *Op, access Access) (err error) {
	l.access, l.limits = access, &op.dev.Caps().Limits
	l.groups = [3]uint32{min(l.rows, l.limits.MaxWorkGroupCount[0]), 1, 1}
	if l.groups[1] = arith.CeilDiv32(l.rows, l.groups[0]); l.groups[1] > l.limits.MaxWorkGroupCount[1] {
		return fmt.Errorf("%w: %d rows to combine, the device dispatches %d x %d", ErrUnsupported, l.rows,
			l.limits.MaxWorkGroupCount[0], l.limits.MaxWorkGroupCount[1])
	}
	t := &l.o
	v := combineVariant{access: access, lse: l.hasLSE(), sinks: l.sinks.Given(), align: tensors.LargestAlignment(uint64(t.Dim), uint64(t.Tensor.Offset),
		uint64(t.Steps[0]), uint64(t.Steps[1]), uint64(t.Steps[2]), tensors.BaseOf(&t.Tensor, t.Size, access)/uint64(t.Size))}
	l.pipeline, err = op.combines.Of(op.dev, &op.cfg, v)
	return err
}

// Pipeline describes the kernel to package vk.
func (v combineVariant) Pipeline(cfg *problem.Config) (*vk.PipelineDesc, error) {
	module, err := shaders.Get(dispatch.ModuleName("combine", v.access))
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(module, combineLocal, map[uint32]uint32{
		shaders.ConstLocalSize: combineLocal,
		shaders.ConstHeadDimV:  uint32(cfg.ValueDim()),
		shaders.ConstHasLse:    dispatch.BoolConstant(v.lse),
		shaders.ConstSinks:     dispatch.BoolConstant(v.sinks),
		shaders.ConstAlignO:    v.align,
		shaders.ConstDtype:     uint32(cfg.OType()),
	})
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d align %d", module.Name, cfg.OType(), cfg.ValueDim(), v.align)
	return desc, nil
}

// dispatch records the kernel.
func (l *combineLaunch) dispatch(c *vk.Commands) error {
	var push combineParams
	var bound [combineBindings]vk.BufferRange
	var err error
	bind := func(binding int, address *uint64, b *vk.Buffer, offset, length, size uint64) {
		if err != nil {
			return
		}
		if l.access == AccessAddresses {
			*address = b.Address() + offset
			return
		}
		var rest uint64
		bound[binding], rest, err = b.Window(offset, length)
		*address = rest / size
	}
	states := uint64(l.splits) * uint64(l.rows)
	t := &l.o
	held := [4]vk.Resource{l.scratch, t.Tensor.Buffer, t.Tensor.Buffer, t.Tensor.Buffer}
	bind(0, &push.addrSplitO, l.scratch, l.oAt, states*uint64(t.Dim)*4, 4)
	bind(1, &push.addrSplitStats, l.scratch, l.statsAt, states*8, 4)
	if l.sinks.Given() {
		bind(2, &push.addrSinks, l.sinks.Buffer, uint64(l.sinks.Offset*4), uint64(t.Counts[1])*4, 4)
		held[3] = l.sinks.Buffer
	}
	bind(3, &push.addrO, t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size), t.SpanBytes(), uint64(t.Size))
	if l.hasLSE() {
		bind(4, &push.addrLSE, l.lse.Tensor.Buffer, uint64(l.lse.Tensor.Offset*4), l.lse.SpanBytes(), 4)
		held[2] = l.lse.Tensor.Buffer
	}
	if err != nil {
		return err
	}
	for d, step := range t.Steps {
		if t.Counts[d] == 1 {
			step = 0
		}
		push.strideO[d] = uint32(step)
	}
	push.splits, push.rows, push.Sq, push.Hq = l.splits, l.rows, uint32(t.Counts[2]), uint32(t.Counts[1])
	push.naturalScores, push.unitHigh, push.unitLow = dispatch.BoolConstant(l.natural), l.unitHigh, l.unitLow
	if l.access == AccessAddresses {
		return c.Dispatch(l.pipeline, nil, dispatch.ParamBytes(&push, combinePushBytes), l.groups, held[:]...)
	}
	for i := range bound {
		if bound[i].Buffer == nil {
			bound[i] = dispatch.EmptyBinding(l.scratch)
		}
	}
	return c.Dispatch(l.pipeline, bound[:], dispatch.ParamBytes(&push, combinePushBytes), l.groups)
}
