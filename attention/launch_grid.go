package attention

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/grid"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Grids that one dispatch does not hold. A kernel takes heads and batches from its place in the
// grid and the rest from its parameters. So each part of a grid has the parameters of the call,
// except that addresses are those of the part's first head and batch.

// parts divides a grid of the forward kernel p over dispatches.
func (p *prepared) parts(a *Args, groups [3]uint32, limits *vk.Limits) grid.Parts {
	perY, splits := int(max(p.options.PackRows(), 1)), max(p.splitWorkgroups, 1)
	parts := grid.Parts{Heads: int(groups[1]) / splits, Batches: int(groups[2] / p.slices), Group: a.Group() / perY,
		MostHeads: int(limits.MaxWorkGroupCount[1]) / splits, MostBatches: int(limits.MaxWorkGroupCount[2] / p.slices)}
	if splits > 1 && parts.Heads > parts.MostHeads {
		parts.MostBatches = 1 // see dispatchParts
	}
	return parts
}

// checkParts refuses a grid that is larger than a dispatch and cannot be divided.
func (p *prepared) checkParts(a *Args, cfg *problem.Config, groups [3]uint32, limits *vk.Limits) error {
	parts := p.parts(a, groups, limits)
	refuse := func(what string) error {
		return fmt.Errorf("%w: a grid of %v workgroups, the device dispatches %v at once: %s", ErrUnsupported, groups, limits.MaxWorkGroupCount, what)
	}
	switch {
	case groups[0] > limits.MaxWorkGroupCount[0]:
		return refuse("row blocks are not divided")
	case parts.One():
		return nil
	case parts.MostHeads < 1 || parts.MostBatches < 1:
		return refuse("not even one head")
	case a.SparseTokens != nil && a.SparseTokens.TopK != 0:
		return refuse(plan.OneTopK)
	case cfg.Dropout != 0:
		return refuse(plan.OneDropout)
	case cfg.ScoreMod.Given() || cfg.MaskMod.Given():
		return refuse(plan.OneModified)
	case p.splitWorkgroups > 1 && parts.Heads > parts.MostHeads && (a.SparseTokens != nil || cfg.KeyType.Scaled()):
		return refuse("sparse tokens and scales of K and V take the splits of all heads at once")
	}
	return nil
}

// steps returns how far the addresses of the bindings move with the batch and the head.
func (l *launch) steps(a *Args, all []tensors.Layout) (s [plan.MostBindings]dispatch.Step) {
	cfg := &l.op.cfg
	packedQ, packedK := l.options.Lengths&plan.LengthCuQ != 0, a.Pages != nil || a.Varlen != nil && a.Varlen.CuK.Given()
	for i := range all[:tensors.FirstOutput+1] {
		t := &all[i]
		head := uint64(t.Steps[1] * t.Size)
		s[i].Batch = uint64(t.Steps[0] * t.Size)
		if i == 1 || i == 2 {
			s[i].KVHead = head
		} else {
			s[i].Head = head
		}
	}
	_, rows := tensors.QueryExtent(a)
	ofRows := func(words int) dispatch.Step { // packed float32
		head := 4 * uint64(words) * uint64(rows)
		return dispatch.Step{Batch: head * uint64(a.Hq), Head: head}
	}
	s[bindLSE] = ofRows(1)
	if l.options.Split() { // states: row max and row sum, and O
		s[bindLSE], s[tensors.FirstOutput] = ofRows(2), ofRows(cfg.ValueDim())
	}
	o := optionSteps(a)
	for _, i := range [...]int{bindCuQ, bindCuK, bindUsedQ, bindUsedK} {
		s[i] = o.lengths
	}
	s[bindALiBi], s[bindSinks], s[bindBias], s[bindMap] = o.slopes, o.heads, o.bias, o.mapped
	if p := a.Pages; p != nil {
		s[bindTable].Batch = 4 * uint64(tensors.TableStride(p, &a.Shape))
	}
	_, keys := tensors.KVExtent(a)
	of := tensors.ScaleStepsOf(cfg.KVBlock, a.KVHeads(), keys)
	scales := dispatch.Step{Batch: 4 * uint64(of.Batch), KVHead: 4 * uint64(of.Head)}
	s[bindKScale], s[bindVScale] = scales, scales
	for i := range s {
		if packedQ && (i == 0 || i == tensors.FirstOutput || i == bindLSE) || packedK && (i == 1 || i == 2 || i == bindKScale || i == bindVScale) {
			s[i].Batch = 0
		}
	}
	return s
}

// optionStep has the steps of the vectors and tensors that forward and backward share.
type optionStep struct{ lengths, heads, slopes, bias, mapped dispatch.Step }

func optionSteps(a *Args) (o optionStep) {
	o.lengths, o.heads = dispatch.Step{Batch: 4}, dispatch.Step{Head: 4}
	o.slopes = dispatch.Step{Batch: 4 * uint64(tensors.SlopeStride(a)), Head: 4}
	if b := a.Bias; b != nil {
		n := tensors.BiasStrides(b, a.Shape)
		o.bias = dispatch.Step{Batch: uint64(n[0]) * uint64(b.DType.Size()), Head: uint64(n[1]) * uint64(b.DType.Size())}
	}
	switch {
	case a.Blocks != nil:
		n := tensors.BlocksStrides(a.Blocks, a.Shape)
		o.mapped = dispatch.Step{Batch: 4 * uint64(n[0]), Head: 4 * uint64(n[1])}
	case a.SparseTokens != nil:
		o.mapped = dispatch.Step{Batch: 4 * uint64(a.KVHeads()), KVHead: 4}
		if a.SparseTokens.PerRow {
			o.mapped.Batch *= uint64(a.Sq)
		}
	}
	if a.Mask != nil {
		if masksList(a) {
			o.bias = o.mapped
		}
		n := tensors.MaskStrides(a.Mask, a.Shape)
		o.mapped = dispatch.Step{Batch: uint64(n[0]), Head: uint64(n[1])}
	}
	return o
}

// dispatchParts records the kernel p in as many dispatches as its grid needs.
func (l *launch) dispatchParts(c *vk.Commands, p *prepared, a *Args, all []tensors.Layout, groups [3]uint32) error {
	parts := p.parts(a, groups, l.limits)
	if parts.One() {
		return l.dispatchOne(c, p.pipeline, groups)
	}
	steps, whole, group := l.steps(a, all), l.params, a.Group()
	perY, splits := int(max(p.options.PackRows(), 1)), max(p.splitWorkgroups, 1)
	for part, ok := parts.Next(); ok; part, ok = parts.Next() {
		l.params = whole
		for i := range bindTokens {
			if l.units[i] == 0 {
				continue
			}
			*l.params.address(i) += steps[i].To(part.Batch, part.Head*perY, group) / l.units[i]
		}
		if splits > 1 && part.Heads < parts.Heads { // workgroups find their split by the number of heads
			l.params.Hq = uint32(part.Heads * perY)
		}
		if err := l.writeParams(c); err != nil {
			return err
		}
		if err := l.dispatchOne(c, p.pipeline, [3]uint32{groups[0], uint32(part.Heads * splits), uint32(part.Batches) * p.slices}); err != nil {
			return err
		}
	}
	l.params = whole
	return l.writeParams(c)
}

// dispatchesOf returns the number of dispatches of a backward kernel.
func (l *backwardLaunch) dispatchesOf(k *plan.BackwardKernel) int {
	if k.Variant.Kernel == plan.KernelDSinks {
		return int(arith.CeilDiv32(k.Groups[0], l.limits.MaxWorkGroupCount[0]))
	}
	parts, _ := k.Parts(l.limits, &l.args.Shape)
	return parts.Count()
}

// statsStep is the step of row statistics in scratch memory.
func (l *backwardLaunch) statsStep() dispatch.Step {
	a := l.args
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		return dispatch.Step{Head: plan.StatBytes * uint64(a.Varlen.TotalQ)}
	}
	head := plan.StatBytes * uint64(a.Sq)
	return dispatch.Step{Batch: head * uint64(a.Hq), Head: head}
}

// steps returns how far the addresses of the bindings of a kernel move with the batch and the
// head.
func (l *backwardLaunch) steps(k *plan.BackwardKernel) (s [plan.MostBackwardBindings]dispatch.Step) {
	a := l.args
	set := func(binding, tensor int, ofKeys bool) {
		t := l.tensors.Tensor(tensor)
		if t == nil {
			return
		}
		v, step := a.Varlen, uint64(t.Steps[1]*t.Size)
		s[binding].Head = step
		if ofKeys {
			s[binding] = dispatch.Step{KVHead: step}
		}
		if packed := v != nil && (ofKeys && v.CuK.Given() || !ofKeys && v.CuQ.Given()); !packed {
			s[binding].Batch = uint64(t.Steps[0] * t.Size)
		}
	}
	set(bwdQ, tensors.BackwardQ, false)
	set(bwdK, tensors.BackwardK, true)
	set(bwdV, tensors.BackwardV, true)
	set(bwdDO, tensors.BackwardDO, false)
	s[bwdStats] = l.statsStep()
	o := optionSteps(&a.Args)
	for _, i := range [...]int{bwdCuQ, bwdCuK, bwdUsedQ, bwdUsedK} {
		s[i] = o.lengths
	}
	s[bwdALiBi], s[bwdBias], s[bwdMap] = o.slopes, o.bias, o.mapped
	switch k.Variant.Kernel {
	case plan.KernelLSE: // stores to the statistics, and reads the sinks
		s[bwdDX], s[bwdDV] = s[bwdStats], o.heads
	case plan.KernelScores, plan.KernelDV, plan.KernelDK, plan.KernelDKDV:
		set(bwdDX, tensors.BackwardDK, true)
		set(bwdDV, tensors.BackwardDV, true)
	default:
		set(bwdDX, tensors.BackwardDQ, false)
	}
	return s
}
