package attention

import (
	"errors"
	"sync"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// cudaCalls recycles CUDACalls so that a call allocates nothing. Passing a CUDACall to the
// interface would otherwise move each one to the heap.
var cudaCalls = sync.Pool{New: func() any { return new(problem.CUDACall) }}

// forwardCUDA launches a CUDA kernel on the stream with the tensors of a call.
func (op *Op) forwardCUDA(p *prepared, s *vk.Stream, a *Args, all []tensors.Layout) error {
	if err := plan.CheckSlots(a); err != nil {
		return err
	}
	c := cudaCalls.Get().(*problem.CUDACall)
	defer putCUDACall(c)
	plan.SetCUDACall(c, &op.cfg, &op.factors, a, all)
	c.Decode.Splits = p.splits
	return p.cuda.Launch(s, c)
}

// recordCubin records a CUDA kernel into the commands with the tensors of a call.
func (op *Op) recordCubin(p *prepared, commands *vk.Commands, a *Args, all []tensors.Layout) error {
	c := cudaCalls.Get().(*problem.CUDACall)
	defer putCUDACall(c)
	plan.SetCUDACall(c, &op.cfg, &op.factors, a, all)
	c.Decode.Splits = p.splits
	err := p.cubin.Record(commands, c)
	if p.splits > 1 && errors.Is(err, vk.ErrUnsupported) { // nothing was recorded, for lack of scratch memory with counters
		return errNeedsCombine
	}
	return err
}

func putCUDACall(c *problem.CUDACall) {
	*c = problem.CUDACall{} // holds no buffers
	cudaCalls.Put(c)
}

// backwardCUDA launches the backward kernels of CUDA on the stream with the tensors of a call.
func (op *Op) backwardCUDA(k problem.CUDABackward, s *vk.Stream, a *BackwardArgs, l *tensors.BackwardTensors) error {
	c := plan.CUDABackwardCall(&op.cfg, &op.factors, a, l)
	return k.Launch(s, &c)
}
