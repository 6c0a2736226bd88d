package cudapath

import (
	"fmt"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// backwardKernels implements problem.CUDABackward.
type backwardKernels struct {
	c       *Context
	kernels []*kernel // in the order in which they run
}

// Load implements problem.CUDABackward.
func (b *backwardKernels) Load() error {
	for _, k := range b.kernels {
		if err := k.Load(); err != nil {
			return err
		}
	}
	return nil
}

// statsBytes is the size of the workspace: the statistics of every row.
func statsBytes(s *attention.Shape, totalQ int) uint64 {
	rows := uint64(s.B) * uint64(s.Sq)
	if totalQ > 0 {
		rows = uint64(totalQ)
	}
	return rows * uint64(s.Hq) * statBytes
}

// workspace is the size of the workspace of a call.
func (b *backwardKernels) workspace(s *attention.Shape, totalQ int) uint64 {
	switch k := b.kernels[0]; k.Family {
	case "fa3":
		return fa3Workspace(s, totalQ, b.kernels[1].Kernel, b.kernels[len(b.kernels)-1].Outputs == "dQ")
	case "fa2":
		return fa2Workspace(s, totalQ, k.Kernel)
	}
	return statsBytes(s, totalQ)
}

// rowBlocks is the number of blocks of rows of a head in all sequences. Packed ones have at
// most a block more each than their rows fill.
func rowBlocks(s *attention.Shape, totalQ int, k *Kernel) uint64 {
	if totalQ > 0 {
		return uint64(totalQ/k.Rows) + uint64(s.B)
	}
	return uint64(s.B) * ((uint64(s.Sq) + uint64(k.Rows) - 1) / uint64(k.Rows))
}

// fa3Workspace is the size of what Workspace of kernels/fa3_backward_work.h describes: a
// ticket, a word per block of rows, three statistics per row, and either counters and dQ in
// float32, or a word per unit and per KV head, dS of a launch and, if several launches add to a
// row, dQ. Arrays of counters and of these words end at a multiple of 128 bytes. k is the main
// kernel. dQ: a kernel with DSBytes has to store dS.
func fa3Workspace(s *attention.Shape, totalQ int, k *Kernel, dQ bool) uint64 {
	blocks := rowBlocks(s, totalQ, k) * uint64(s.Hq)
	rows := blocks * uint64(k.Rows)
	up := func(words uint64) uint64 { return (words + 31) / 32 * 32 }
	words := 32 + 4*blocks + 3*rows
	if k.DSBytes == 0 {
		return 4 * (words + up(blocks) + rows*uint64(k.D))
	}
	u := unitsOf(s, k, dQ)
	if u.launch < u.head {
		words += rows * uint64(k.D)
	}
	return 4*(words+up(u.call+uint64(s.KVHeads())*uint64(s.B))) + u.launch*u.bytes
}

// units are the units of work of a kernel with DSBytes: blocks of keys of a KV head.
type units struct {
	call, launch, head uint64 // of the call, of a launch, which the last may not fill, and of a KV head
	bytes              uint64 // dS of one; 0 without dQ
}

// unitsOf repeats unitsOfLaunch of kernels/fa3_backward_work.h.
func unitsOf(s *attention.Shape, k *Kernel, dQ bool) (u units) {
	tiles := func(n, of int) uint64 { return (uint64(n) + uint64(of) - 1) / uint64(of) }
	u.head = tiles(s.Sk, k.Cols)
	heads := uint64(s.KVHeads()) * uint64(s.B)
	u.call = u.head * heads
	u.launch = u.call
	if !dQ {
		return u
	}
	u.bytes = uint64(s.Group()) * tiles(s.Sq, k.Rows) * uint64(2*k.Rows*k.Cols)
	most := min(max(uint64(k.DSBytes)/u.bytes, 1), u.call)
	// As many whole heads, or parts of a head, in each launch as in the others.
	equal := func(n, most uint64) uint64 {
		launches := (n + most - 1) / most
		return (n + launches - 1) / launches
	}
	if most >= u.head {
		u.launch = equal(heads, most/u.head) * u.head
	} else {
		u.launch = equal(u.head, most)
	}
	return u
}

// fa2Workspace is the size of what Workspace of kernels/fa2_backward_work.h describes: for
// each block of rows a counter, three statistics per row and a word, and dQ in float32.
func fa2Workspace(s *attention.Shape, totalQ int, k *Kernel) uint64 {
	blocks := rowBlocks(s, totalQ, k) * uint64(s.Hq)
	up := func(words uint64) uint64 { return (words + 31) / 32 * 32 }
	return 4 * (32 + up(blocks) + up(blocks*uint64(3*k.Rows+4)) + blocks*uint64(k.Rows*k.D))
}

// backwardInvocation is a backward call with its kernel parameters.
type backwardInvocation struct {
	params  backwardParams
	call    cudaCall
	tensors [5]mappedTensor
	memoryOfCall
}

// Launch implements problem.CUDABackward.
func (b *backwardKernels) Launch(s *vk.Stream, a *problem.CUDABackwardCall) error {
	if err := b.Load(); err != nil {
		return err
	}
	var v backwardInvocation
	if err := b.bind(&v, a); err != nil {
		return err
	}
	l, err := b.c.link(s)
	if err != nil {
		return err
	}
	if v.params.stats, err = l.scratch(b.workspace(&a.Shape, a.TotalQ)); err != nil {
		return fmt.Errorf("memory for the workspace: %w", err)
	}
	if err := s.HandOver(v.held[:v.n]...); err != nil {
		return err
	}
	return b.launch(l.stream, &v, &a.Shape)
}

// bind fills in v for a call, but for the workspace.
func (b *backwardKernels) bind(v *backwardInvocation, a *problem.CUDABackwardCall) error {
	if err := v.bind(b.c, a); err != nil {
		return err
	}
	if a.PartialKeys {
		v.params.accumulate |= lseOfMoreKeys
	}
	return nil
}

var backwardTensorNames = [...]string{"Q", "K", "V", "O", "DO", "DQ", "DK", "DV"}

// bind fills in v for a call.
func (v *backwardInvocation) bind(c *Context, a *problem.CUDABackwardCall) error {
	p := &v.params
	var err error
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o, &p.dO, &p.dQ, &p.dK, &p.dV} {
		x := &a.Tensors[i]
		if t.base, err = v.address(c, backwardTensorNames[i], &x.CUDAVector); err != nil {
			return err
		}
		t.batch, t.head, t.row = x.Batch, x.Head, x.Row
	}
	for _, x := range [...]struct {
		name string
		to   *uint64
		v    *problem.CUDAVector
	}{
		{"LSE", &p.lse, &a.LSE}, {"DLSE", &p.dLSE, &a.DLSE}, {"Varlen.CuQ", &p.cuQ, &a.CuQ}, {"Varlen.CuK", &p.cuK, &a.CuK},
		{"Varlen.UsedQ", &p.usedQ, &a.UsedQ}, {"Varlen.UsedK", &p.usedK, &a.UsedK},
	} {
		if *x.to, err = v.address(c, x.name, x.v); err != nil {
			return err
		}
	}
	p.b, p.hq, p.hkv, p.sq, p.sk = int32(a.B), int32(a.Hq), int32(a.KVHeads()), int32(a.Sq), int32(a.Sk)
	p.d, p.dv, p.totalQ, p.totalK = int32(a.HeadDim), int32(a.HeadDimV), int32(a.TotalQ), int32(a.TotalK)
	p.left, p.right, p.scale, p.softcap = a.Left, a.Right, a.Scale, a.Softcap
	if a.BottomRight {
		p.bottomRight = 1
	}
	if a.Accumulate {
		p.accumulate = 1
	}
	return nil
}

// launch launches the kernels one after the other, each for as many sequences as a grid
// holds, and those with DSBytes in turns, for as many units as that holds. It changes v.
//
// A kernel that may start early does so in its first launch, which follows the kernel before it, and that of dQ in
// each. The first kernel of a call never does: it waits for all earlier work of the stream.
func (b *backwardKernels) launch(s *Stream, v *backwardInvocation, shape *attention.Shape) error {
	if err := s.use(launchOp); err != nil {
		return err
	}
	defer s.c.leave()
	for i, k := range b.kernels {
		if k.DSBytes > 0 {
			return b.launchUnits(s, v, shape, b.kernels[i:])
		}
		for first := 0; first < shape.B; first += k.batches() {
			if err := b.launchOne(s, v, shape, k, int32(first), min(shape.B-first, k.batches())); err != nil {
				return err
			}
		}
	}
	return nil
}

// launchUnits launches kernels with DSBytes.
func (b *backwardKernels) launchUnits(s *Stream, v *backwardInvocation, shape *attention.Shape, kernels []*kernel) error {
	u := unitsOf(shape, kernels[0].Kernel, v.params.dQ.base != 0)
	return u.each(func(first int32) error {
		for _, k := range kernels {
			if err := b.launchOne(s, v, shape, k, first, shape.B); err != nil {
				return err
			}
		}
		return nil
	})
}

// each calls f for each launch with its first unit.
func (u *units) each(f func(first int32) error) error {
	for first := uint64(0); first < u.call; first += u.launch {
		if err := f(int32(first)); err != nil {
			return err
		}
	}
	return nil
}

// launchOne launches a kernel for `count` sequences. first is the first of them, or the first unit of a kernel with DSBytes.
func (b *backwardKernels) launchOne(s *Stream, v *backwardInvocation, shape *attention.Shape, k *kernel, first int32, count int) error {
	g, err := k.blocksOf(k.tiles(shape, count))
	if err != nil {
		return err
	}
	v.params.first = first
	c := &v.call
	c.function, c.threads, c.shared = k.handle, uint32(k.Threads), uint32(k.Shared)
	c.early = k.Early && (first == 0 || k.Outputs == "dQ") && s.c.lib.launchesEarly()
	for i, n := range g {
		c.grid[i] = uint32(n)
	}
	if err := k.setMaps(c, v.mapped(shape), count); err != nil {
		return err
	}
	name, r := launch(s, c, &v.params)
	if r != cudaSuccess {
		err := s.c.check(name, r)
		err.(*Error).Detail = k.Entry
		return err
	}
	return nil
}

// mapped returns the tensors that maps may describe.
func (v *backwardInvocation) mapped(s *attention.Shape) []mappedTensor {
	p := &v.params
	of := func(t *tensorParams, dim int32, rows, heads int, packed bool) mappedTensor {
		return mappedTensor{t.base, t.batch, t.head, t.row, int(dim), rows, heads, packed}
	}
	rows, keys, packedQ, packedK := s.Sq, s.Sk, p.cuQ != 0, p.cuK != 0
	if packedQ {
		rows = int(p.totalQ)
	}
	if packedK {
		keys = int(p.totalK)
	}
	v.tensors = [len(v.tensors)]mappedTensor{
		of(&p.q, p.d, rows, s.Hq, packedQ), of(&p.k, p.d, keys, s.KVHeads(), packedK), of(&p.v, p.dv, keys, s.KVHeads(), packedK),
		of(&p.o, p.dv, rows, s.Hq, packedQ), of(&p.dO, p.dv, rows, s.Hq, packedQ),
	}
	return v.tensors[:]
}

// tensorParams is AttnTensor of kernels/attn.h.
type tensorParams struct {
	base             uint64
	batch, head, row int64
}

// backwardParams is AttnBackwardParams of kernels/attn_backward.h.
type backwardParams struct {
	q, k, v, o, dO, dQ, dK, dV tensorParams
	lse, dLSE, stats           uint64
	cuQ, cuK, usedQ, usedK     uint64
	first, hq, hkv             int32
	sq, sk, d, dv              int32
	totalQ, totalK             int32
	bottomRight, left, right   int32
	accumulate                 int32 // 1, and lseOfMoreKeys
	scale, softcap             float32
	b                          int32 // all sequences
}

// lseOfMoreKeys is a bit of accumulate.
const lseOfMoreKeys = 2

// statBytes are the bytes of the workspace for each row.
const statBytes = 16
