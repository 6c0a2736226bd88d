package cudapath

import (
	"fmt"
	"math"
	"unsafe"

	"vkattn/internal/arith"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// The decode kernels of kernels/decode.cu, which tiers cuda and cubin launch.

// decodeHeads is the number of query heads of a group that a CTA computes.
const decodeHeads = 8

// decodeParams is DecodeParams of kernels/decode_tile.h.
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
	headDim                             int32
	alibi, sinks                        uint64
	left, right, bottomRight, changes   int32
	scoreScale, softcap                 float32
	alibiBatch, _                       int32
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
	p.headDim, p.left, p.right, p.scoreScale, p.softcap = int32(a.HeadDim), a.Left, a.Right, a.ScoreScale, a.Softcap
	p.alibiBatch = int32(a.ALiBiBatch)
	if a.BottomRight {
		p.bottomRight = 1
	}
	if a.Changed {
		p.changes = 1
	}
	if a.PageSize > 0 {
		p.kPage, p.vPage, p.scalePage = uint32(p.k.batch), uint32(p.v.batch), uint32(d.ScaleBatch)
	}
}

// beyond says which limit of the decode kernels a call is beyond that no plan knows; "" if none. A kernel has strides of rows and pages in 32
// bits, and sums of positions of keys.
func (p *decodeParams) beyond(a *problem.CUDACall) string {
	for _, t := range [...]*tensorParams{&p.k, &p.v} {
		if t.row > math.MaxUint32 || p.pageSize > 0 && t.batch > math.MaxUint32 {
			return fmt.Sprintf("strides of %d bytes between rows and %d between pages of K or V: its decode kernels take fewer than 2^32", t.row, t.batch)
		}
	}
	const maxKeys = 1 << 30
	grid, _ := decodeGrid(a)
	switch {
	case grid[0] > math.MaxInt32 || grid[1] > maxGridY || grid[2] > maxGridY:
		return fmt.Sprintf("a grid of %v blocks, the device takes %v", grid, [3]int{maxGridX, maxGridY, maxGridY})
	case a.Sk > maxKeys || a.TotalK > maxKeys:
		return fmt.Sprintf("%d keys, its decode kernels take 2^30", max(a.Sk, a.TotalK))
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

// decodeScratch is the scratch memory of a call of a kernel for a head dim: a counter for each row tile, which is 0, and the states of its
// splits.
func decodeScratch(a *problem.CUDACall, d int) (counters, states uint64) {
	_, tiles := decodeGrid(a)
	const align = 256
	counters = (4*tiles + align - 1) / align * align
	return counters, 4 * tiles * uint64(a.Decode.Splits) * uint64(min(a.Group(), decodeHeads)) * uint64(d+4)
}

// decodeKernel finds the first kernel of a list for an architecture, a storage type, K and V's and head dims. If there is none, it says
// why. Quantized K and V need their very head dim.
func decodeKernel(list []Kernel, arch, dtype, kv string, d, dv int) (k *Kernel, why string) {
	for i := range list {
		k := &list[i]
		holds := k.D == d || kv == problem.KVSame.String() && k.D > d
		if k.Arch == arch && k.DType == dtype && k.KV == kv && holds && d == dv {
			return k, ""
		}
	}
	return nil, fmt.Sprintf("its decode kernels are for int8, fp8, q8_0 and q4_0, head dims 64, 128 and 256, and sm_90a, there is none for %s, %s, %d/%d on %s",
		dtype, kv, d, dv, arch)
}

// chooseDecode returns the decode kernel for a problem on a device of tier cuda, or why there is none.
func (t *table) chooseDecode(d *DeviceInfo, p *problem.CUDAProblem) (k *Kernel, why string) {
	if p.NoDecode != "" {
		return nil, p.NoDecode
	}
	if d.Major != 9 || d.Minor != 0 {
		return nil, fmt.Sprintf("its decode kernels are for compute capability 9.0, the device has %d.%d", d.Major, d.Minor)
	}
	if k, why = decodeKernel(t.cudaDecodes, cubinArchitectures[0].name, p.DType.String(), p.KV.String(), p.HeadDim, p.HeadDimV); why != "" {
		return nil, why
	}
	group := uint64(p.Group())
	tiles := arith.CeilDiv64(group, decodeHeads)
	switch {
	case p.Sq > problem.MaxCUDADecodeRows:
		return nil, fmt.Sprintf("%d rows a sequence, its decode kernels take %d", p.Sq, problem.MaxCUDADecodeRows)
	case k.Shared > d.MaxShared:
		return nil, fmt.Sprintf("%d bytes of shared memory a block, the device has %d", k.Shared, d.MaxShared)
	case p.KVHeads() > maxGridY || p.B > maxGridY || p.Rows*tiles*problem.MaxStates > maxGridX:
		return nil, "more heads, sequences or rows than a grid of its decode kernels has"
	case max(p.Sq, p.Sk) > maxDecodeKeys:
		return nil, fmt.Sprintf("Sq %d and Sk %d, its decode kernels take 2^29", p.Sq, p.Sk)
	}
	return k, ""
}

// maxDecodeKeys is the most rows and keys that decode kernels of K and V stored as Q count.
const maxDecodeKeys = 1 << 29

// decodesFaster reports whether a decode kernel is predicted to be faster than the others, for K and V stored as Q: it reads the keys of
// a KV head once for each row and eight query heads of a group, the others once for each query head, and they divide them over no CTAs.
func decodesFaster(d *DeviceInfo, p *problem.CUDAProblem) bool {
	reads := uint64(p.Sq) * arith.CeilDiv64(uint64(p.Group()), decodeHeads)
	return reads <= uint64(p.Group()) || uint64(p.B)*uint64(p.KVHeads())*reads <= uint64(d.SMs)
}

// launchDecode launches a decode kernel.
func (k *kernel) launchDecode(s *deviceStream, a *problem.CUDACall) error {
	var v invocation
	var p decodeParams
	if err := k.bindDecode(&v, &p, a); err != nil {
		return err
	}
	if a.Decode.Splits > 1 {
		var err error
		if p.counters, p.partial, err = s.splitScratch(decodeScratch(a, k.D)); err != nil {
			return err
		}
	}
	return k.launchDecodeOn(s.Stream, &v, &p)
}

// launchDecodeInTurn launches a decode kernel in a turn of CUDA in a Vulkan stream.
func (k *kernel) launchDecodeInTurn(s *vk.Stream, a *problem.CUDACall) error {
	var v invocation
	var p decodeParams
	if err := k.bindDecode(&v, &p, a); err != nil {
		return err
	}
	l, err := k.c.link(s)
	if err != nil {
		return err
	}
	clear := false
	if a.Decode.Splits > 1 {
		counters, states := decodeScratch(a, k.D)
		if counters > counterBytes {
			return notComputed("%s of counters, a stream has %s", hostmem.Bytes(counters), hostmem.Bytes(counterBytes))
		}
		if p.partial, err = l.scratch(states); err != nil {
			return fmt.Errorf("memory for the splits of the keys: %w", err)
		}
		p.counters, clear = p.partial-counterBytes, !l.zeroed
	}
	if err := s.HandOver(v.held[:v.n]...); err != nil {
		return err
	}
	if clear {
		if err := l.stream.Fill(p.counters, 0, counterBytes); err != nil {
			return err
		}
		l.zeroed = true
	}
	return k.launchDecodeOn(l.stream, &v, &p)
}

// bindDecode fills in v and p for a call, but for the memory of its splits.
func (k *kernel) bindDecode(v *invocation, p *decodeParams, a *problem.CUDACall) error {
	d := &a.Decode
	if k.KV == problem.KVSame.String() {
		d.UnitBytes = 2
	}
	var err error
	p.set(a)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		if t.base, err = v.address(k.c, tensorNames[i], &a.Tensors[i].CUDAVector); err != nil {
			return err
		}
	}
	from := [...]*problem.CUDAVector{&a.LSE, &d.KScale, &d.VScale, &a.CuQ, &a.CuK, &a.UsedQ, &a.UsedK, &a.Table, &a.ALiBi, &a.Sinks}
	for i, to := range [...]*uint64{&p.lse, &p.kScale, &p.vScale, &p.cuQ, &p.cuK, &p.usedQ, &p.usedK, &p.table, &p.alibi, &p.sinks} {
		if *to, err = v.address(k.c, decodeVectorNames[i], from[i]); err != nil {
			return err
		}
	}
	p.setWide(a)
	if why := p.beyond(a); why != "" {
		return notComputed("%s", why)
	}
	grid, _ := decodeGrid(a)
	v.call.function, v.call.threads, v.call.shared = k.handle, uint32(k.Threads), uint32(k.Shared)
	for i, n := range grid {
		v.call.grid[i] = uint32(n)
	}
	return nil
}

func (k *kernel) launchDecodeOn(s *Stream, v *invocation, p *decodeParams) error {
	if err := s.use(launchOp); err != nil {
		return err
	}
	defer s.c.leave()
	if name, r := launch(s, &v.call, p); r != cudaSuccess {
		err := s.c.check(name, r)
		err.(*Error).Detail = k.Entry
		return err
	}
	return nil
}

var decodeVectorNames = [...]string{"LSE", "KScale", "VScale", "Varlen.CuQ", "Varlen.CuK", "Varlen.UsedQ", "Varlen.UsedK", "Pages.Table", "ALiBi", "Sinks"}
