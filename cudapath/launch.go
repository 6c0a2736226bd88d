package cudapath

// #include "cua.h"
import "C"

import (
	"fmt"

	"vkattn/attention"
	"vkattn/internal/grid"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// invocation is a call with its kernel parameters.
type invocation struct {
	call  C.cua_call
	shape attention.Shape
	held  [5]vk.Resource // Q, K, V, O and LSE
	n     int
}

// Launch implements problem.CUDAKernel.
func (k *kernel) Launch(s *vk.Stream, a *problem.CUDACall) error {
	if err := k.Load(); err != nil {
		return err
	}
	var v invocation
	if err := k.bind(&v, a); err != nil {
		return err
	}
	l, err := k.c.link(s)
	if err != nil {
		return err
	}
	if err := s.HandOver(v.held[:v.n]...); err != nil {
		return err
	}
	return k.launch(l.stream, &v)
}

// bind fills in v for a call.
func (k *kernel) bind(v *invocation, a *problem.CUDACall) error {
	p := &v.call.params
	for i, t := range [...]*C.cua_tensor{&p.q, &p.k, &p.v, &p.o} {
		x := &a.Tensors[i]
		address, err := k.c.Address(x.Buffer)
		if err != nil {
			return fmt.Errorf("%s: %w", tensorNames[i], err)
		}
		v.held[i] = x.Buffer
		t.base = C.uint64_t(address + x.Offset)
		t.batch, t.head, t.row = C.int64_t(x.Batch), C.int64_t(x.Head), C.int64_t(x.Row)
	}
	v.shape, v.n = a.Shape, len(a.Tensors)
	if a.LSE != nil {
		address, err := k.c.Address(a.LSE)
		if err != nil {
			return fmt.Errorf("LSE: %w", err)
		}
		v.held[v.n] = a.LSE
		v.n++
		p.lse = C.uint64_t(address + a.LSEOffset)
	}
	p.hq, p.hkv, p.sq, p.sk = C.int32_t(a.Hq), C.int32_t(a.Hkv), C.int32_t(a.Sq), C.int32_t(a.Sk)
	p.d, p.dv, p.causal_offset = C.int32_t(a.HeadDim), C.int32_t(a.HeadDimV), C.int32_t(a.CausalOffset)
	p.scale, p.scale_log2 = C.float(a.Scale), C.float(a.ScaleLog2)
	p.unit_high, p.unit_low = C.float(a.UnitHigh), C.float(a.UnitLow)
	v.call.function = k.handle
	v.call.threads, v.call.shared = C.uint32_t(k.Threads), C.uint32_t(k.Shared)
	return nil
}

var tensorNames = [...]string{"Q", "K", "V", "O"}

// launch launches all heads and batches, in several launches if one grid cannot hold them. It
// changes v.
func (k *kernel) launch(s *Stream, v *invocation) error {
	if err := s.use("Launch"); err != nil {
		return err
	}
	defer s.c.leave()
	parts, whole := k.parts(&v.shape), v.call.params
	for part, ok := parts.Next(); ok; part, ok = parts.Next() {
		v.call.params = whole
		k.advance(&v.call.params, &v.shape, part)
		shape := partOf(&v.shape, part)
		v.call.params.b = C.int32_t(shape.B)
		g, err := k.blocksOf(k.tiles(&shape, shape.B))
		if err != nil {
			return err
		}
		for i, n := range g {
			v.call.grid[i] = C.uint32_t(n)
		}
		p := &v.call.params
		tensors := [...]mappedTensor{
			{uint64(p.q.base), int64(p.q.batch), int64(p.q.head), int64(p.q.row), int(p.d), shape.Sq, shape.Hq, false},
			{uint64(p.k.base), int64(p.k.batch), int64(p.k.head), int64(p.k.row), int(p.d), shape.Sk, shape.Hkv, false},
			{uint64(p.v.base), int64(p.v.batch), int64(p.v.head), int64(p.v.row), int(p.dv), shape.Sk, shape.Hkv, false},
			{uint64(p.o.base), int64(p.o.batch), int64(p.o.head), int64(p.o.row), int(p.dv), shape.Sq, shape.Hq, false},
		}
		if err := k.setMaps(&v.call, tensors[:], shape.B); err != nil {
			return err
		}
		var name *C.char
		r := C.cua_launch(s.c.lib.api, s.c.handle, s.handle, &v.call, &name)
		if r != C.CUDA_SUCCESS {
			err := s.c.check(opName(name, "cuLaunchKernel"), r)
			err.(*Error).Detail = k.Entry
			return err
		}
	}
	return nil
}

// advance moves the tensors to the first head and batch of a part. The number of heads stays:
// LSE is packed, and a group of query heads has its size.
func (k *kernel) advance(p *C.cua_params, shape *attention.Shape, part grid.Part) {
	for _, t := range [...]*C.cua_tensor{&p.q, &p.k, &p.v, &p.o} {
		head := part.Head
		if t == &p.k || t == &p.v {
			head /= shape.Group()
		}
		t.base += C.uint64_t(k.elementBytes()) * (C.uint64_t(t.batch)*C.uint64_t(part.Batch) + C.uint64_t(t.head)*C.uint64_t(head))
	}
	if p.lse != 0 {
		p.lse += C.uint64_t(lseBytes(shape, part))
	}
}

// lseBytes is the distance from the first LSE of a call to that of a part.
func lseBytes(shape *attention.Shape, part grid.Part) uint64 {
	return 4 * (uint64(part.Batch)*uint64(shape.Hq) + uint64(part.Head)) * uint64(shape.Sq)
}

// blocksOf is the grid of a launch.
func (k *kernel) blocksOf(t tiles) ([3]uint64, error) {
	if k.persistent() {
		return [3]uint64{min(k.units(t), uint64(k.c.info.SMs*k.blocks)), 1, 1}, nil
	}
	return k.grid(t)
}

func (k *Kernel) elementBytes() int {
	if k.DType == "f32" {
		return 4
	}
	return 2
}

// Constants of the driver for a tensor map.
const (
	mapF16  = 6
	mapF32  = 7
	mapBF16 = 9
)

func (k *Kernel) mapType() C.int32_t {
	switch k.DType {
	case "bf16":
		return mapBF16
	case "f32":
		return mapF32
	}
	return mapF16
}

// mappedTensor is a tensor that a map describes: its address and strides, and its sizes.
type mappedTensor struct {
	base             uint64
	batch, head, row int64 // elements
	dim, rows, heads int
	packed           bool // its rows are those of all sequences
}

// setMaps creates the tensor maps of the tensor memory accelerator. tensors are in the order of mapTensors.
func (k *kernel) setMaps(call *C.cua_call, tensors []mappedTensor, batches int) error {
	size := C.uint64_t(k.elementBytes())
	call.maps = C.uint32_t(len(k.Maps))
	for i := range k.Maps {
		m, to := &k.Maps[i], &call._map[i]
		which, err := m.tensor()
		if err != nil {
			return err
		}
		swizzle, err := m.swizzle()
		if err != nil {
			return err
		}
		if which >= len(tensors) {
			return fmt.Errorf("cudapath: %s: a map of tensor %q, which the call has not", k.Entry, m.Tensor)
		}
		x := &tensors[which]
		to.base, to._type, to.swizzle = C.uint64_t(x.base), k.mapType(), C.int32_t(swizzle)
		to.dims = [4]C.uint64_t{C.uint64_t(x.dim), C.uint64_t(x.rows), C.uint64_t(x.heads), C.uint64_t(batches)}
		if x.packed {
			to.dims[3] = 1
		}
		for j, stride := range [3]int64{x.row, x.head, x.batch} {
			to.strides[j] = C.uint64_t(stride) * size
			if to.dims[j+1] == 1 {
				to.strides[j] = 16 // not used for one element; the driver refuses some other values
			}
		}
		for j, n := range m.Box {
			to.box[j] = C.uint32_t(n)
		}
	}
	return nil
}
