package attention

import (
	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// A request is all that a plan depends on, and the key of an Op's cache of plans. This
// file reads it off a shape or off the checked arguments of a call.

// typical returns the request for packed tensors at the start of their own buffers.
func (op *Op) typical(s Shape) plan.Request {
	return op.requestOf(s, plan.OptionsOf(&Args{Shape: s}, &op.cfg))
}

// requestOf returns the request for packed tensors of a shape with the given options.
func (op *Op) requestOf(s Shape, f plan.Options) plan.Request {
	s.Hkv, s.B = s.KVHeads(), max(s.B, 1)
	r := plan.Request{Shape: s, Options: f, Experiment: op.experiment}
	r.SeparateCombine = op.dev != nil && op.dev.QueueIsUnguarded() // vk.Commands.Scratch has no zeroed counters there
	// A driver on the CPU has few threads: more workgroups gain nothing, and the general
	// kernel compiles longer.
	r.Plain = op.dev != nil && op.dev.Info().Type == vk.DeviceCPU && op.cfg.FixedSplit == 0
	r.ChooseAccess(op.dev.Caps(), &op.cfg)
	d, dv := op.cfg.HeadDim, op.cfg.ValueDim()
	r.VInK = plan.MayCUDA(&op.cfg) && plan.MayAliasKV(&op.cfg, &s)
	for i, dim := range [4]int{d, tensors.AlignedRow(op.cfg.KeyType, d), tensors.AlignedRow(op.cfg.ValueType, dv), dv} {
		r.Align[i] = tensors.LargestAlignment(uint64(dim))
	}
	return r
}

// request returns the request of a call whose arguments are checked.
func (op *Op) request(l *tensors.Layouts, a *Args) plan.Request {
	r := op.requestOf(a.Shape, plan.OptionsOf(a, &op.cfg))
	r.LSE, r.BlockMap = a.LSE.Given(), a.BlockMap != nil
	if v := a.Varlen; a.Pages != nil && a.Pages.Count == 0 || v != nil && v.CuK.Given() && v.TotalK > a.B*a.Sk {
		r.Experiment.ConvertKV = -1 // there are no keys, whatever lengths say, or more rows of K than of sequences
	}
	if a.SparseTokens != nil {
		r.SparseTokens = tensors.MeanSparseTokens(a)
	}
	if r.Options.Lengths&plan.LengthCuQ != 0 {
		r.TotalQ = a.Varlen.TotalQ
	}
	if op.dev == nil {
		return r
	}
	if plan.MayCUDA(&op.cfg) {
		r.CUDARefusal, r.VInK = plan.CUDARefusalOf(l, a), l.VInK()
	}
	r.FarKV = plan.FarKV(l, a)
	all := l.All()
	if op.cfg.Access == AccessAuto {
		for i := range all {
			if all[i].Tensor.Buffer.Address() == 0 {
				r.Access = AccessDescriptors
			}
		}
	}
	for i := range r.Align {
		t := &all[i]
		// The head dim counts too: the kernel reads eight elements at once only if the row has eight.
		r.Align[i] = t.Alignment(r.Access)
	}
	return r
}
