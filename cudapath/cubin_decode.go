package cudapath

import (
	"sync"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Quantized decode on tier cubin: the kernels of kernels/decode.cu. Splits of the keys leave their states in scratch memory, and
// the kernel itself combines them.

// chooseDecode is Choose for quantized K and V.
func (c *cubins) chooseDecode(arch string, p *problem.CUDAProblem) (choice problem.CubinChoice, err error) {
	const op = "choose a cubin"
	k, why := decodeKernel(c.table.decodes, arch, p.DType.String(), p.KV.String(), p.HeadDim, p.HeadDimV)
	switch {
	case why != "":
		return choice, unsupported(op, "%s", why)
	case p.Sq > problem.MaxCUDADecodeRows && !p.AnyArgs:
		return choice, unsupported(op, "%d rows a sequence, its decode kernels take %d", p.Sq, problem.MaxCUDADecodeRows)
	case uint64(k.Shared) > uint64(c.dev.Caps().Limits.MaxSharedBytes):
		return choice, unsupported(op, "%d bytes of shared memory a CTA, the device has %d", k.Shared, c.dev.Caps().Limits.MaxSharedBytes)
	}
	loaded := c.kernel(k)
	if err := loaded.Load(); err != nil {
		return choice, err
	}
	return problem.CubinChoice{Kernel: loaded, Name: k.Entry, Rows: decodeHeads, Cols: uint32(k.Cols), SharedBytes: uint64(k.Shared), Resident: min(k.Blocks, launchShared/(k.Shared+reservedShared))}, nil
}

// CTAs of launches share 48 KiB of a multiprocessor, of which the system reserves 1 KiB of each (docs/log/cubin.md, 2).
const launchShared, reservedShared = 48 << 10, 1 << 10

// decodeCall is a call with its parameters, recycled like cubinCall.
type decodeCall struct {
	params decodeParams
	addressed
}

var decodeCalls = sync.Pool{New: func() any { return new(decodeCall) }}

// recordDecode is Record of a decode kernel.
func (k *cubinKernel) recordDecode(commands *vk.Commands, a *problem.CUDACall) error {
	c := decodeCalls.Get().(*decodeCall)
	defer func() {
		*c = decodeCall{} // holds no buffers
		decodeCalls.Put(c)
	}()
	p, d := &c.params, &a.Decode
	p.set(a)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		t.base = c.address(&a.Tensors[i].CUDAVector)
	}
	p.lse = c.address(&a.LSE)
	p.kScale, p.vScale = c.address(&d.KScale), c.address(&d.VScale)
	p.cuQ, p.cuK, p.usedQ, p.usedK, p.table = c.address(&a.CuQ), c.address(&a.CuK), c.address(&a.UsedQ), c.address(&a.UsedK), c.address(&a.Table)
	p.setWide(a)
	if why := p.beyond(a); why != "" {
		return notComputed("%s", why)
	}
	grid, _ := decodeGrid(a)
	if p.splits > 1 {
		counters, states := decodeScratch(a, a.HeadDim)
		scratch, first, err := commands.Scratch(counters, states)
		if err != nil {
			return err
		}
		p.counters, p.partial = scratch.Address()+first-counters, scratch.Address()+first
	}
	l := vk.CubinLaunch{Grid: [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}, Block: [3]uint32{uint32(k.Threads), 1, 1}, SharedBytes: uint32(k.Shared)}
	return commands.Launch(k.f.Load(), l, p.bytes(), c.held[:c.n]...)
}
