package attention

import (
	"vkattn/vk"
)

// A request is all that a plan depends on, and the key of an Op's cache of plans. This
// file reads it off a shape or off the checked arguments of a call.

// typical returns the request for packed tensors at the start of their own buffers.
func (op *Op) typical(s Shape) request {
	return op.requestOf(s, optionsOf(&Args{Shape: s}, &op.cfg))
}

// requestOf returns the request for packed tensors of a shape with the given options.
func (op *Op) requestOf(s Shape, f options) request {
	s.Hkv = s.KVHeads()
	r := request{shape: s, options: f, access: op.cfg.Access, experiment: op.experiment}
	r.separateCombine = op.dev != nil && op.dev.QueueIsUnguarded() // vk.Commands.Scratch has no zeroed counters there
	// A driver on the CPU has few threads: more workgroups gain nothing, and the general
	// kernel compiles longer.
	r.plain = op.dev != nil && op.dev.Info().Type == vk.DeviceCPU && op.cfg.FixedSplit == 0
	if r.access == AccessAuto {
		r.access = AccessDescriptors
		if op.dev != nil && op.dev.Caps().BufferDeviceAddress && !op.needsDescriptors(&r) {
			r.access = AccessAddresses
		}
	}
	d, dv := op.cfg.HeadDim, op.cfg.ValueDim()
	for i, dim := range [4]int{d, d, dv, dv} {
		r.align[i] = largestAlignment(uint64(dim))
	}
	return r
}

// needsDescriptors reports whether r, which has AccessDescriptors, is computed by a module
// that has no address form.
func (op *Op) needsDescriptors(r *request) bool {
	caps := op.dev.Caps()
	return pushTooSmall(&caps.Limits) && (r.options.any() || decodes(caps, &op.cfg, r))
}

// request returns the request of a call whose arguments are checked.
func (op *Op) request(l *layouts, a *Args) request {
	r := op.requestOf(a.Shape, optionsOf(a, &op.cfg))
	r.lse = a.LSE.Given()
	if a.SparseTokens != nil {
		r.sparseTokens = max(1, a.SparseTokens.Total/max(1, a.B*a.KVHeads()))
	}
	if r.options.lengths&lengthCuQ != 0 {
		r.totalQ = a.Varlen.TotalQ
	}
	if op.dev == nil {
		return r
	}
	if op.cfg.mayCUDA() {
		r.bar = cudaBarOf(l)
	}
	all := l.all()
	if op.cfg.Access == AccessAuto {
		for i := range all {
			if all[i].tensor.Buffer.Address() == 0 {
				r.access = AccessDescriptors
			}
		}
	}
	for i := range r.align {
		t := &all[i]
		// The head dim counts too: the kernel reads eight elements at once only if the row has eight.
		r.align[i] = largestAlignment(uint64(t.dim), uint64(t.tensor.Offset), uint64(t.steps[0]), uint64(t.steps[1]),
			uint64(t.steps[2]), t.tensor.base(t.size, r.access)/uint64(t.size))
	}
	return r
}
