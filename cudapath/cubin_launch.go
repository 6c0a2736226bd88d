package cudapath

import (
	"sync"
	"unsafe"

	"vkattn/attention"
	"vkattn/internal/grid"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// pagedKeys are the keys of a copy of paged K and V where tiles are not parts of pages. It divides page sizes.
const pagedKeys = 16

// maxCubinMaps is the largest number of tensor maps of a kernel of cubinFamily.
const maxCubinMaps = 2

// cubinParams are the parameters of a kernel of cubinFamily: its tensor maps and AttnParams of kernels/attn.h, or with
// options AttnGeneralParams. Fewer maps than maxCubinMaps are the last ones.
type cubinParams struct {
	maps [maxCubinMaps]tensorMap
	generalParams
}

// setMaps sets the maps of a kernel from the other fields.
func (p *cubinParams) setMaps(k *Kernel) error {
	to := p.maps[maxCubinMaps-len(k.Maps):]
	tensors := p.mapped(&attention.Shape{B: int(p.b), Hq: int(p.hq), Hkv: int(p.hkv), Sq: int(p.sq), Sk: int(p.sk)})
	for i := range k.Maps {
		m := &k.Maps[i]
		which, err := m.tensor()
		if err != nil {
			return err
		}
		x, batches, box := &tensors[which], uint64(p.b), m.Box
		switch {
		case x.packed:
			batches = 1
		case k.Paged && p.pages > 0:
			x.rows, batches = int(p.pageSize), uint64(p.pages)
			if x.rows%k.Cols != 0 { // copyPages of kernels/fa3_options.h
				box[1] = pagedKeys
			}
		}
		const elementBytes = 2
		spec := tensorMapSpec{address: x.base, sizes: [tensorMapRank]uint64{uint64(x.dim), uint64(x.rows), uint64(x.heads), batches}, box: box}
		for j, stride := range [tensorMapRank - 1]int64{x.row, x.head, x.batch} {
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
	size := unsafe.Offsetof(p.generalParams) + unsafe.Sizeof(p.callParams)
	if k.General {
		size = unsafe.Sizeof(*p)
	}
	all := unsafe.Slice((*byte)(unsafe.Pointer(p)), size)
	return all[(maxCubinMaps-len(k.Maps))*len(tensorMap{}):]
}

// cubinCall is a call with its parameters. A pool recycles them, so that a call allocates
// nothing.
type cubinCall struct {
	params cubinParams
	addressed
}

// addressed are the buffers that a call holds.
type addressed struct {
	held [16]vk.Resource
	n    int
}

// address is the address of memory of the call, 0 if it has none.
func (c *addressed) address(x *problem.CUDAVector) uint64 {
	if !x.Given() {
		return 0
	}
	c.held[c.n] = x.Buffer
	c.n++
	return x.Buffer.Address() + x.Offset
}

var cubinCalls = sync.Pool{New: func() any { return new(cubinCall) }}

// bind fills in c for a call.
func (c *cubinCall) bind(k *Kernel, a *problem.CUDACall) {
	p := &c.params
	p.set(a)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		t.base = c.address(&a.Tensors[i].CUDAVector)
	}
	p.b, p.lse = int32(a.B), c.address(&a.LSE)
	if k.General {
		p.cuQ, p.cuK, p.usedQ, p.usedK, p.table = c.address(&a.CuQ), c.address(&a.CuK), c.address(&a.UsedQ), c.address(&a.UsedK), c.address(&a.Table)
		p.setOptions(a)
	}
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
	c.bind(k.Kernel, a)
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
