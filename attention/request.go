package attention

import "math/bits"

// typical is the request of packed tensors at the start of their own buffers.
func (op *Op) typical(s Shape) request {
	s.Hkv = s.KVHeads()
	r := request{shape: s, access: op.cfg.Access, lab: op.lab}
	if r.access == AccessAuto {
		r.access = AccessDescriptors
		if op.dev != nil && op.dev.Caps().BufferDeviceAddress {
			r.access = AccessAddresses
		}
	}
	d, dv := op.cfg.HeadDim, op.cfg.ValueDim()
	for i, dim := range []int{d, d, dv, dv} {
		r.align[i] = largestAlignment(uint64(dim))
	}
	return r
}

// request reads off the arguments what a plan depends on.
func (op *Op) request(a Args) request {
	r := op.typical(a.Shape)
	r.lse = a.LSE.Given()
	if op.dev == nil {
		return r
	}
	if op.cfg.Access == AccessAuto {
		for _, t := range []Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
			if t.Buffer != nil && t.Buffer.Address() == 0 {
				r.access = AccessDescriptors
			}
		}
	}
	dims := [4]int{op.cfg.HeadDim, op.cfg.HeadDim, op.cfg.ValueDim(), op.cfg.ValueDim()}
	heads := [4]int{a.Hq, a.KVHeads(), a.KVHeads(), a.Hq}
	seqs := [4]int{a.Sq, a.Sk, a.Sk, a.Sq}
	for i, t := range [4]Tensor{a.Q, a.K, a.V, a.O} {
		s := t.Strides.Resolve(heads[i], seqs[i], dims[i])
		// The dimension counts too: eight elements are read at once only where eight are there.
		r.align[i] = largestAlignment(uint64(dims[i]), uint64(t.Offset), uint64(s.Batch), uint64(s.Head), uint64(s.Seq),
			t.base(op.cfg.DType, r.access)/uint64(op.cfg.DType.Size()))
	}
	return r
}

// base is the byte position of a device tensor's first element: an address, or
// an offset into its VkBuffer, which descriptors align to far more than 16.
func (t Tensor) base(d DType, a Access) uint64 {
	at := uint64(t.Offset) * uint64(d.Size())
	if a == AccessAddresses {
		return t.Buffer.Address() + at
	}
	return t.Buffer.Offset() + at
}

// largestAlignment is the largest of 1, 2, 4 and 8 that divides all of n.
func largestAlignment(n ...uint64) uint32 {
	all := uint64(8)
	for _, x := range n {
		all |= x
	}
	return 1 << bits.TrailingZeros64(all)
}
