package attention

import (
	"vkattn/vk"
)

// typical is the request of packed tensors at the start of their own buffers.
func (op *Op) typical(s Shape) request {
	return op.requestOf(s, optionsOf(&Args{Shape: s}, &op.cfg))
}

func (op *Op) requestOf(s Shape, f options) request {
	s.Hkv = s.KVHeads()
	r := request{shape: s, options: f, access: op.cfg.Access, experiment: op.experiment}
	// A few threads have no use for more workgroups, and kernels with features compile for longer.
	r.separateCombine = op.dev != nil && op.dev.QueueIsUnguarded() // vk.Commands.Scratch has no zeros there
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

// needsDescriptors reports whether a request that may use them is computed by a module
// that knows nothing else. r has AccessDescriptors.
func (op *Op) needsDescriptors(r *request) bool {
	caps := op.dev.Caps()
	return paramsInBuffer(&caps.Limits) && (r.options.any() || decodes(caps, &op.cfg, r))
}

// request reads off checked arguments what a plan depends on.
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
		// The dimension counts too: eight elements are read at once only where eight are there.
		r.align[i] = largestAlignment(uint64(t.dim), uint64(t.tensor.Offset), uint64(t.steps[0]), uint64(t.steps[1]),
			uint64(t.steps[2]), t.tensor.base(t.size, r.access)/uint64(t.size))
	}
	return r
}
