package attention

import (
	"sync"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// cudaCalls recycles CUDACalls so that a call allocates nothing. Passing a CUDACall to the
// interface would otherwise move each one to the heap.
var cudaCalls = sync.Pool{New: func() any { return new(problem.CUDACall) }}

// forwardCUDA launches a CUDA kernel on the stream with the tensors of a call.
func (op *Op) forwardCUDA(k problem.CUDAKernel, s *vk.Stream, a *Args, all []tensors.Layout) error {
	c := cudaCalls.Get().(*problem.CUDACall)
	defer putCUDACall(c)
	op.fillCUDACall(c, a, all)
	return k.Launch(s, c)
}

// recordCubin records a CUDA kernel into the commands with the tensors of a call.
func (op *Op) recordCubin(k problem.CubinKernel, commands *vk.Commands, a *Args, all []tensors.Layout) error {
	c := cudaCalls.Get().(*problem.CUDACall)
	defer putCUDACall(c)
	op.fillCUDACall(c, a, all)
	return k.Record(commands, c)
}

func putCUDACall(c *problem.CUDACall) {
	*c = problem.CUDACall{} // holds no buffers
	cudaCalls.Put(c)
}

func (op *Op) fillCUDACall(c *problem.CUDACall, a *Args, all []tensors.Layout) {
	c.Shape = a.Shape
	c.Hkv = a.KVHeads()
	c.HeadDim, c.HeadDimV = op.cfg.HeadDim, op.cfg.ValueDim()
	for i := range c.Tensors {
		t := &all[i]
		c.Tensors[i] = problem.CUDATensor{Buffer: t.Tensor.Buffer, Offset: uint64(t.Tensor.Offset * t.Size), Batch: t.Steps[0], Head: t.Steps[1], Row: t.Steps[2]}
	}
	if len(all) > len(c.Tensors) {
		t := &all[len(c.Tensors)]
		c.LSE, c.LSEOffset = t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size)
	}
	switch op.cfg.Causal {
	case CausalNone:
		c.CausalOffset = problem.NoCausal
	case BottomRight:
		c.CausalOffset = int32(a.Sk - a.Sq)
	}
	f := &op.factors.Products
	c.Scale, c.ScaleLog2 = op.cfg.ScaleValue(), f.Scale
	c.UnitHigh, c.UnitLow = f.UnitHigh, f.UnitLow
}

// backwardCUDA launches the backward kernels of CUDA on the stream with the tensors of a call.
func (op *Op) backwardCUDA(k problem.CUDABackward, s *vk.Stream, a *BackwardArgs, l *tensors.BackwardTensors) error {
	c := problem.CUDABackwardCall{Shape: a.Shape, HeadDim: op.cfg.HeadDim, HeadDimV: op.cfg.ValueDim(), Left: problem.NoCausal, Right: problem.NoCausal,
		Scale: op.factors.Natural.Scale, Softcap: op.factors.Natural.Softcap, Accumulate: a.Accumulate, PartialKeys: a.PartialKeys}
	c.Hkv = a.KVHeads()
	for i, which := range [len(c.Tensors)]int{tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardO, tensors.BackwardDO,
		tensors.BackwardDQ, tensors.BackwardDK, tensors.BackwardDV} {
		if t := l.Tensor(which); t != nil {
			c.Tensors[i] = problem.CUDATensor{Buffer: t.Tensor.Buffer, Offset: uint64(t.Tensor.Offset * t.Size), Batch: t.Steps[0], Head: t.Steps[1], Row: t.Steps[2]}
		}
	}
	vector := func(b *vk.Buffer, offset int64) problem.CUDAVector {
		return problem.CUDAVector{Buffer: b, Offset: uint64(offset) * 4}
	}
	c.LSE, c.DLSE = vector(a.LSE.Buffer, a.LSE.Offset), vector(a.DLSE.Buffer, a.DLSE.Offset)
	if v := a.Varlen; v != nil {
		c.CuQ, c.CuK = vector(v.CuQ.Buffer, v.CuQ.Offset), vector(v.CuK.Buffer, v.CuK.Offset)
		c.UsedQ, c.UsedK = vector(v.UsedQ.Buffer, v.UsedQ.Offset), vector(v.UsedK.Buffer, v.UsedK.Offset)
		c.TotalQ, c.TotalK = v.TotalQ, v.TotalK
	}
	if op.cfg.Causal != CausalNone {
		c.Right = 0
	}
	c.BottomRight = op.cfg.Causal == BottomRight || op.cfg.Causal == CausalNone && op.cfg.Align == BottomRight
	if w := op.cfg.Window; w.Given() {
		if w.Left() >= 0 {
			c.Left = int32(w.Left())
		}
		if w.Right() >= 0 {
			c.Right = min(c.Right, int32(w.Right()))
		}
	}
	return k.Launch(s, &c)
}
