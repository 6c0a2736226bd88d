package attention

import (
	"sync"

	"vkattn/attention/internal/tensors"
	"vkattn/vk"
)

// cudaCalls recycles CUDACalls so that a call allocates nothing. Passing a CUDACall to the
// interface would otherwise move each one to the heap.
var cudaCalls = sync.Pool{New: func() any { return new(CUDACall) }}

// forwardCUDA launches a CUDA kernel on the stream with the tensors of a call.
func (op *Op) forwardCUDA(k CUDAKernel, s *vk.Stream, a *Args, all []tensors.Layout) error {
	c := cudaCalls.Get().(*CUDACall)
	defer func() {
		*c = CUDACall{} // holds no buffers
		cudaCalls.Put(c)
	}()
	c.Shape = a.Shape
	c.Hkv = a.KVHeads()
	c.HeadDim, c.HeadDimV = op.cfg.HeadDim, op.cfg.ValueDim()
	for i := range c.Tensors {
		t := &all[i]
		c.Tensors[i] = CUDATensor{Buffer: t.Tensor.Buffer, Offset: uint64(t.Tensor.Offset * t.Size), Batch: t.Steps[0], Head: t.Steps[1], Row: t.Steps[2]}
	}
	if len(all) > len(c.Tensors) {
		t := &all[len(c.Tensors)]
		c.LSE, c.LSEOffset = t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size)
	}
	switch op.cfg.Causal {
	case CausalNone:
		c.CausalOffset = NoCausal
	case BottomRight:
		c.CausalOffset = int32(a.Sk - a.Sq)
	}
	f := &op.factors.Products
	c.Scale, c.ScaleLog2 = op.cfg.ScaleValue(), f.Scale
	c.UnitHigh, c.UnitLow = f.UnitHigh, f.UnitLow
	return k.Launch(s, c)
}
