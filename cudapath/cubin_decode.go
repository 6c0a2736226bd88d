package cudapath

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Quantized decode on tier cubin: the kernels of kernels/cubin_decode.cu. Splits of the keys leave their states in scratch
// memory, and the kernel itself combines them.

// maxDecodeRows is the most rows of a sequence that the tier computes: each row reads the keys anew.
const maxDecodeRows = 8

// decodeHeads is the number of query heads of a group that a CTA computes.
const decodeHeads = 8

// decodeParams is DecodeParams of kernels/cubin_decode.cu.
type decodeParams struct {
	q, k, v, o                          tensorParams
	kScale, vScale, lse                 uint64
	cuQ, cuK, usedQ, usedK, table       uint64
	counters, partial                   uint64
	b, hq, hkv, sq, sk                  int32
	totalQ, totalK                      int32
	causal, splits                      int32
	pageSize, pages, tableStride        int32
	scaleGroups, scaleBlock             int32
	wideK, wideV                        int32
	scaleLog2, unitHigh, unitLow        float32
	kRow, vRow, kPage, vPage, scalePage uint32
}

// set fills in p for a call, but for addresses.
func (p *decodeParams) set(a *problem.CUDACall) {
	d := &a.Decode
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		x := &a.Tensors[i]
		t.batch, t.head, t.row = x.Batch, x.Head, x.Row
	}
	for _, t := range [...]*tensorParams{&p.k, &p.v} {
		t.batch, t.head, t.row = t.batch*d.UnitBytes, t.head*d.UnitBytes, t.row*d.UnitBytes
	}
	p.b, p.hq, p.hkv, p.sq, p.sk = int32(a.B), int32(a.Hq), int32(a.Hkv), int32(a.Sq), int32(a.Sk)
	p.totalQ, p.totalK, p.causal, p.splits = int32(a.TotalQ), int32(a.TotalK), int32(d.Causal), int32(max(d.Splits, 1))
	p.pageSize, p.pages, p.tableStride = int32(a.PageSize), int32(a.Pages), int32(a.TableStride)
	if a.PageSize > 0 && a.Pages == 0 {
		p.sk = 0 // a pool without pages has no keys
	}
	p.scaleGroups, p.scaleBlock = int32(d.ScaleHead), int32(max(d.ScaleKeys, 1))
	p.scaleLog2, p.unitHigh, p.unitLow = a.ScaleLog2, a.UnitHigh, a.UnitLow
	p.kRow, p.vRow = uint32(p.k.row), uint32(p.v.row)
	if a.PageSize > 0 {
		p.kPage, p.vPage, p.scalePage = uint32(p.k.batch), uint32(p.v.batch), uint32(d.ScaleBatch)
	}
}

// tooFar says which stride of K or V does not fit the 32 bits in which a kernel has those of rows and pages; "" if all do.
func (p *decodeParams) tooFar() string {
	for _, t := range [...]*tensorParams{&p.k, &p.v} {
		if t.row > math.MaxUint32 || p.pageSize > 0 && t.batch > math.MaxUint32 {
			return fmt.Sprintf("strides of %d bytes between rows and %d between pages of K or V: its decode kernels take fewer than 2^32", t.row, t.batch)
		}
	}
	return ""
}

// setWide chooses how wide the copies of K and V are, from addresses and strides: 16 bytes where they are multiples of 16, and
// of blocks where rows are adjacent.
func (p *decodeParams) setWide(a *problem.CUDACall) {
	const wide = 16
	rowBytes := a.Decode.UnitBytes * int64(a.HeadDim)
	if a.Decode.KV.Blocked() {
		rowBytes /= blockElements
	}
	for _, x := range [...]struct {
		t    *tensorParams
		wide *int32
	}{{&p.k, &p.wideK}, {&p.v, &p.wideV}} {
		ends := int64(x.t.base) | x.t.batch | x.t.head
		fits := ends%wide == 0 && x.t.row%wide == 0
		if a.Decode.KV.Blocked() { // a packed sequence may begin anywhere
			fits = ends%wide == 0 && x.t.row == rowBytes && (p.cuK == 0 || rowBytes%wide == 0)
		}
		if *x.wide = 0; fits {
			*x.wide = 1
		}
	}
}

// blockElements are the elements of a block of q8_0 and q4_0.
const blockElements = 32

// bytes are the parameters as a launch takes them; they share p's memory.
func (p *decodeParams) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// decodeRows are the rows of a call, of all sequences: each is row tiles of its own.
func decodeRows(a *problem.CUDACall) (rows, batches int) {
	if a.CuQ.Given() {
		return a.TotalQ, 1
	}
	return a.Sq, a.B
}

// decodeGrid is the grid of a call, and its row tiles.
func decodeGrid(a *problem.CUDACall) (grid [3]uint64, tiles uint64) {
	rows, batches := decodeRows(a)
	heads := uint64((a.Group() + decodeHeads - 1) / decodeHeads)
	grid = [3]uint64{uint64(rows) * heads * uint64(max(a.Decode.Splits, 1)), uint64(a.Hkv), uint64(batches)}
	return grid, uint64(rows) * heads * uint64(a.Hkv) * uint64(batches)
}

// decodeScratch is the scratch memory of a call: a counter for each row tile, which is 0, and the states of its splits.
func decodeScratch(a *problem.CUDACall) (counters, states uint64) {
	_, tiles := decodeGrid(a)
	const align = 256
	counters = (4*tiles + align - 1) / align * align
	return counters, 4 * tiles * uint64(a.Decode.Splits) * uint64(min(a.Group(), decodeHeads)) * uint64(a.HeadDim+4)
}

// decode finds the decode kernel for a storage type, K and V's and a head dim. If there is none, it says why.
func (t *table) decode(arch, dtype, kv string, d, dv int) (k *Kernel, why string) {
	for i := range t.decodes {
		k := &t.decodes[i]
		if k.Arch == arch && k.DType == dtype && k.KV == kv && k.D == d && k.DV == dv {
			return k, ""
		}
	}
	return nil, fmt.Sprintf("its decode kernels are for int8, fp8, q8_0 and q4_0, head dims 64, 128 and 256, and sm_90a, there is none for %s, %s, %d/%d on %s", dtype, kv, d, dv, arch)
}

// chooseDecode is Choose for quantized K and V.
func (c *cubins) chooseDecode(arch string, p *problem.CUDAProblem) (choice problem.CubinChoice, err error) {
	const op = "choose a cubin"
	k, why := c.table.decode(arch, p.DType.String(), p.KV.String(), p.HeadDim, p.HeadDimV)
	switch {
	case why != "":
		return choice, unsupported(op, "%s", why)
	case p.Sq > maxDecodeRows && !p.AnyArgs:
		return choice, unsupported(op, "%d rows a sequence, its decode kernels take %d", p.Sq, maxDecodeRows)
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
	held   [16]vk.Resource
	n      int
}

var decodeCalls = sync.Pool{New: func() any { return new(decodeCall) }}

// address is the address of memory of the call, 0 if it has none.
func (c *decodeCall) address(x *problem.CUDAVector) uint64 {
	if !x.Given() {
		return 0
	}
	c.held[c.n] = x.Buffer
	c.n++
	return x.Buffer.Address() + x.Offset
}

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
	grid, _ := decodeGrid(a)
	const maxKeys = 1 << 30 // sums of positions fit 32 bits
	far := p.tooFar()
	switch {
	case far != "":
		return unsupported(binaryImport, "%s", far)
	case grid[0] > math.MaxInt32 || grid[1] > maxGridY || grid[2] > maxGridY:
		return unsupported(binaryImport, "a grid of %v blocks, the device takes %v", grid, [3]int{maxGridX, maxGridY, maxGridY})
	case a.Sk > maxKeys || a.TotalK > maxKeys:
		return unsupported(binaryImport, "%d keys, its decode kernels take 2^30", max(a.Sk, a.TotalK))
	}
	if p.splits > 1 {
		counters, states := decodeScratch(a)
		scratch, first, err := commands.Scratch(counters, states)
		if err != nil {
			return err
		}
		p.counters, p.partial = scratch.Address()+first-counters, scratch.Address()+first
	}
	l := vk.CubinLaunch{Grid: [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}, Block: [3]uint32{uint32(k.Threads), 1, 1}, SharedBytes: uint32(k.Shared)}
	return commands.Launch(k.f.Load(), l, p.bytes(), c.held[:c.n]...)
}
