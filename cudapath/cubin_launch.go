package cudapath

import (
	"sync"
	"unsafe"

	"vkattn/attention"
	"vkattn/internal/grid"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// maxCubinMaps is the largest number of tensor maps of a kernel of cubinFamily.
const maxCubinMaps = 2

// cubinParams are the parameters of a kernel of cubinFamily: its tensor maps and AttnParams of
// kernels/attn.h, which it mirrors. Fewer maps than maxCubinMaps are the last ones.
type cubinParams struct {
	maps                      [maxCubinMaps]tensorMap
	q, k, v, o                tensorParams
	lse                       uint64
	b, hq, hkv, sq, sk, d, dv int32
	causalOffset              int32
	scale, scaleLog2          float32
	unitHigh, unitLow         float32
}

// setMaps sets the maps of a kernel from the other fields.
func (p *cubinParams) setMaps(k *Kernel) error {
	to := p.maps[maxCubinMaps-len(k.Maps):]
	for i := range k.Maps {
		m := &k.Maps[i]
		tensor, dim := &p.k, p.d
		if m.Tensor == "v" {
			tensor, dim = &p.v, p.dv
		}
		const elementBytes = 2
		spec := tensorMapSpec{address: tensor.base, sizes: [tensorMapRank]uint64{uint64(dim), uint64(p.sk), uint64(p.hkv), uint64(p.b)}, box: m.Box}
		for j, stride := range [tensorMapRank - 1]int64{tensor.row, tensor.head, tensor.batch} {
			spec.strides[j] = elementBytes * uint64(stride)
		}
		if err := spec.encode(&to[i]); err != nil {
			return err
		}
	}
	return nil
}

// bytes are the parameters as a launch of k takes them; they share p's memory.
func (p *cubinParams) bytes(k *Kernel) []byte {
	all := unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
	return all[(maxCubinMaps-len(k.Maps))*len(tensorMap{}):]
}

// cubinCall is a call with its parameters. A pool recycles them, so that a call allocates
// nothing.
type cubinCall struct {
	params cubinParams
	held   [5]vk.Resource // Q, K, V, O and LSE
	n      int
}

var cubinCalls = sync.Pool{New: func() any { return new(cubinCall) }}

// bind fills in c for a call.
func (c *cubinCall) bind(a *problem.CUDACall) {
	p := &c.params
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		x := &a.Tensors[i]
		*t = tensorParams{x.Buffer.Address() + x.Offset, x.Batch, x.Head, x.Row}
		c.held[i] = x.Buffer
	}
	c.n = len(a.Tensors)
	if a.LSE.Given() {
		p.lse = a.LSE.Buffer.Address() + a.LSE.Offset
		c.held[c.n] = a.LSE.Buffer
		c.n++
	}
	p.b, p.hq, p.hkv, p.sq, p.sk = int32(a.B), int32(a.Hq), int32(a.Hkv), int32(a.Sq), int32(a.Sk)
	p.d, p.dv, p.causalOffset = int32(a.HeadDim), int32(a.HeadDimV), a.CausalOffset
	p.scale, p.scaleLog2, p.unitHigh, p.unitLow = a.Scale, a.ScaleLog2, a.UnitHigh, a.UnitLow
}

// Record implements problem.CubinKernel.
func (k *cubinKernel) Record(commands *vk.Commands, a *problem.CUDACall) error {
	if err := k.Load(); err != nil {
		return err
	}
	if k.KV != "" {
		return k.recordDecode(commands, a)
	}
	c := cubinCalls.Get().(*cubinCall)
	defer func() {
		*c = cubinCall{} // holds no buffers
		cubinCalls.Put(c)
	}()
	c.bind(a)
	parts, whole := k.parts(&a.Shape), c.params
	for part, ok := parts.Next(); ok; part, ok = parts.Next() {
		c.params = whole
		c.params.advance(&a.Shape, part)
		if err := c.params.setMaps(k.Kernel); err != nil {
			return unsupported(binaryImport, "%v", err)
		}
		shape := partOf(&a.Shape, part)
		if err := commands.Launch(k.f.Load(), k.launchOf(k.tiles(&shape, shape.B), k.c.dev.Caps().ShaderCores), c.params.bytes(k.Kernel), c.held[:c.n]...); err != nil {
			return err
		}
	}
	return nil
}

// advance moves the tensors to the first head and batch of a part, as kernel.advance does.
func (p *cubinParams) advance(shape *attention.Shape, part grid.Part) {
	const elementBytes = 2
	for _, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		head := part.Head
		if t == &p.k || t == &p.v {
			head /= shape.Group()
		}
		t.base += elementBytes * (uint64(t.batch)*uint64(part.Batch) + uint64(t.head)*uint64(head))
	}
	if p.lse != 0 {
		p.lse += lseBytes(shape, part)
	}
	p.b = int32(part.Batches)
}

// launchOf is the launch for a number of tiles: of a persistent kernel, one CTA per
// multiprocessor.
func (k *Kernel) launchOf(t tiles, cores uint32) vk.CubinLaunch {
	l := vk.CubinLaunch{Grid: [3]uint32{uint32(min(t.count(), uint64(max(cores, 1)))), 1, 1}, Block: [3]uint32{uint32(k.Threads), 1, 1}, SharedBytes: uint32(k.Shared)}
	if !k.persistent() {
		g, _ := k.grid(t) // the table has been validated
		l.Grid = [3]uint32{uint32(g[0]), uint32(g[1]), uint32(g[2])}
	}
	return l
}
