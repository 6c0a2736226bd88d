package cudapath

import (
	"cmp"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/internal/grid"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// invocation is a call with its kernel parameters.
type invocation struct {
	call   cudaCall
	params latentParams // a kernel with options takes generalParams, one without them callParams
	shape  attention.Shape
	memoryOfCall
}

// memoryOfCall is the memory that a call holds: Q, K, V, O, LSE, the gradients, and what options have.
type memoryOfCall struct {
	held [18]vk.Resource
	n    int
}

// address is the address of memory of the call, 0 if it has none.
func (v *memoryOfCall) address(c *Context, name string, x *problem.CUDAVector) (uint64, error) {
	if !x.Given() {
		return 0, nil
	}
	address, err := c.addressOf(x)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	v.held[v.n] = x.Buffer
	v.n++
	return address, nil
}

// Launch implements problem.CUDAKernel.
func (k *kernel) Launch(s *vk.Stream, a *problem.CUDACall) error {
	if err := k.Load(); err != nil {
		return err
	}
	if k.KV != "" && !k.Latent {
		return k.launchDecodeInTurn(s, a)
	}
	var v invocation
	if err := k.bind(&v, a); err != nil {
		return err
	}
	l, err := k.c.link(s)
	if err != nil {
		return err
	}
	if bytes := k.workspace(&v.shape); bytes > 0 {
		if v.params.partial, err = l.scratch(bytes); err != nil {
			return fmt.Errorf("memory for the workspace: %w", err)
		}
	}
	if err := s.HandOver(v.held[:v.n]...); err != nil {
		return err
	}
	return k.launch(l.stream, &v)
}

// bind fills in v for a call.
func (k *kernel) bind(v *invocation, a *problem.CUDACall) error {
	p := &v.params
	v.shape, v.n = a.Shape, 0
	var err error
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		x := &a.Tensors[i]
		if t.base, err = v.address(k.c, tensorNames[i], &x.CUDAVector); err != nil {
			return err
		}
	}
	if p.lse, err = v.address(k.c, "LSE", &a.LSE); err != nil {
		return err
	}
	p.set(a)
	if k.General || k.Latent {
		from := [...]*problem.CUDAVector{&a.CuQ, &a.CuK, &a.UsedQ, &a.UsedK, &a.Table, &a.ALiBi, &a.Sinks, &a.Bias.CUDAVector, &a.Mask.CUDAVector,
			&a.DropoutState, &a.MaxLogits, &a.Tokens, &a.Offsets}
		for i, to := range [...]*uint64{&p.cuQ, &p.cuK, &p.usedQ, &p.usedK, &p.table, &p.alibi, &p.sinks, &p.bias, &p.mask, &p.dropState, &p.maxLogits, &p.tokens, &p.offsets} {
			if *to, err = v.address(k.c, vectorNames[i], from[i]); err != nil {
				return err
			}
		}
		p.setOptions(a)
		p.setLatent(a)
		if rows := a.Decode.KV; rows.Latent() && p.k.base%latentAlignment != 0 {
			return notComputed("K at address %#x: it takes %v at multiples of %d bytes", p.k.base, rows, latentAlignment)
		}
	}
	v.call.function = k.handle
	v.call.threads, v.call.shared = uint32(k.Threads), uint32(k.Shared)
	return nil
}

// set fills in p for a call, but for addresses.
func (p *callParams) set(a *problem.CUDACall) {
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		x := &a.Tensors[i]
		t.batch, t.head, t.row = x.Batch, x.Head, x.Row
	}
	p.hq, p.hkv, p.sq, p.sk = int32(a.Hq), int32(a.Hkv), int32(a.Sq), int32(a.Sk)
	p.d, p.dv, p.causalOffset = int32(a.HeadDim), int32(a.HeadDimV), int32(a.CausalOffset)
	p.scale, p.scaleLog2 = float32(a.Scale), float32(a.ScaleLog2)
	p.unitHigh, p.unitLow = float32(a.UnitHigh), float32(a.UnitLow)
}

// setOptions fills in what a call with options has in addition. The addresses are set.
func (p *generalParams) setOptions(a *problem.CUDACall) {
	p.totalQ, p.totalK = int32(a.TotalQ), int32(a.TotalK)
	p.left, p.right = a.Left, a.Right
	if a.BottomRight {
		p.bottomRight = 1
	}
	if p.pageSize, p.pages, p.tableStride = int32(a.PageSize), int32(a.Pages), int32(a.TableStride); p.pageSize > 0 && p.pages == 0 {
		p.sk = 0 // a pool without pages has no keys
	}
	if a.Changed {
		p.changes = 1
	}
	p.scoreScale, p.softcap = a.ScoreScale, a.Softcap
	p.biasSteps = [3]int64{a.Bias.Batch, a.Bias.Head, a.Bias.Row}
	p.maskSteps = [3]int64{a.Mask.Batch, a.Mask.Head, a.Mask.Row}
	p.alibiBatch = int32(a.ALiBiBatch)
	p.biasType = biasTypes[a.BiasType]
	p.dropSeed, p.dropOffset, p.dropThreshold, p.dropScale = a.Dropout.Seed, a.Dropout.Offset, a.Dropout.Threshold, a.DropoutScale
	ends := int64(p.d) | int64(p.dv)
	for _, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		ends |= t.batch | t.head | t.row | int64(t.base/2) | int64(t.base%2)
	}
	if ends%alignment != 0 {
		p.unaligned = 1
	}
}

var (
	tensorNames = [...]string{"Q", "K", "V", "O"}
	vectorNames = [...]string{"Varlen.CuQ", "Varlen.CuK", "Varlen.UsedQ", "Varlen.UsedK", "Pages.Table", "ALiBi", "Sinks", "Bias", "Mask", "DropoutState", "MaxLogits", "SparseTokens.Tokens", "SparseTokens.Offsets"}
	biasTypes   = map[attention.DType]int32{attention.F16: 0, attention.BF16: 1, attention.F32: 2} // BiasType of kernels/attn_general.h
)

// launch launches all heads and batches, in several launches if one grid cannot hold them. It
// changes v.
func (k *kernel) launch(s *Stream, v *invocation) error {
	if p := &v.params; p.maxLogits != 0 {
		if err := s.Fill(p.maxLogits, math.Float32bits(float32(math.Inf(-1))), 4*uint64(p.hq)); err != nil || v.shape.B == 0 || p.cuQ != 0 && p.totalQ == 0 {
			return err
		}
	}
	if err := s.use(launchOp); err != nil {
		return err
	}
	defer s.c.leave()
	if k.Latent {
		return k.launchLatent(s, v)
	}
	parts, whole := k.parts(&v.shape), v.params.callParams
	for part, ok := parts.Next(); ok; part, ok = parts.Next() {
		if v.params.callParams = whole; k.General {
			v.params.firstBatch, v.params.firstHead = int32(part.Batch), int32(part.Head)
		} else {
			k.advance(&v.params.callParams, &v.shape, part)
		}
		shape := partOf(&v.shape, part)
		v.params.b = int32(shape.B)
		g, err := k.blocksOf(k.tiles(&shape, shape.B))
		if err != nil {
			return err
		}
		for i, n := range g {
			v.call.grid[i] = uint32(n)
		}
		tensors := v.params.mapped(&shape)
		if err := k.setMaps(&v.call, tensors[:], shape.B); err != nil {
			return err
		}
		var name string
		var r int32
		if k.General {
			name, r = launch(s, &v.call, &v.params.generalParams)
		} else {
			name, r = launch(s, &v.call, &v.params.callParams)
		}
		if r != cudaSuccess {
			err := s.c.check(name, r)
			err.(*Error).Detail = k.Entry
			return err
		}
	}
	return nil
}

// advance moves the tensors to the first head and batch of a part. The number of heads stays:
// LSE is packed, and a group of query heads has its size.
func (k *kernel) advance(p *callParams, shape *attention.Shape, part grid.Part) {
	for _, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		head := part.Head
		if t == &p.k || t == &p.v {
			head /= shape.Group()
		}
		t.base += uint64(k.elementBytes()) * (uint64(t.batch)*uint64(part.Batch) + uint64(t.head)*uint64(head))
	}
	if p.lse != 0 {
		p.lse += lseBytes(shape, part)
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

func (k *Kernel) mapType() int32 {
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

// mapped are the tensors of a call. The first rows of those that are packed are of all sequences, and a tensor without rows, of
// which no copy reads any, has one.
func (p *generalParams) mapped(s *attention.Shape) [4]mappedTensor {
	t := [...]mappedTensor{
		{p.q.base, p.q.batch, p.q.head, p.q.row, int(p.d), s.Sq, s.Hq, p.cuQ != 0},
		{p.k.base, p.k.batch, p.k.head, p.k.row, int(p.d), s.Sk, s.KVHeads(), p.cuK != 0},
		{p.v.base, p.v.batch, p.v.head, p.v.row, int(p.dv), s.Sk, s.KVHeads(), p.cuK != 0},
		{p.o.base, p.o.batch, p.o.head, p.o.row, int(p.dv), s.Sq, s.Hq, p.cuQ != 0},
	}
	for i, total := range [...]int32{p.totalQ, p.totalK, p.totalK, p.totalQ} {
		x := &t[i]
		if x.packed {
			x.rows = int(total)
		}
		if x.rows < 1 {
			x.base, x.rows, x.heads = cmp.Or(p.q.base, p.o.base, p.k.base)&^15, 1, 1
		}
	}
	return t
}

// setMaps creates the tensor maps of the tensor memory accelerator. tensors are in the order of mapTensors.
func (k *kernel) setMaps(call *cudaCall, tensors []mappedTensor, batches int) error {
	size := uint64(k.elementBytes())
	call.count = uint32(len(k.Maps))
	for i := range k.Maps {
		m, to := &k.Maps[i], &call.maps[i]
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
		to.base, to.kind, to.swizzle = x.base, k.mapType(), int32(swizzle)
		to.dims = [4]uint64{uint64(x.dim), uint64(x.rows), uint64(x.heads), uint64(batches)}
		if x.packed {
			to.dims[3] = 1
		}
		for j, stride := range [3]int64{x.row, x.head, x.batch} {
			to.strides[j] = uint64(stride) * size
			if to.dims[j+1] == 1 {
				to.strides[j] = 16 // not used for one element; the driver refuses some other values
			}
		}
		for j, n := range m.Box {
			to.box[j] = uint32(n)
		}
	}
	return nil
}
