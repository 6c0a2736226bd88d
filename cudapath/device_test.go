//go:build !windows

package cudapath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/cases"
	"vkattn/internal/host"
	"vkattn/internal/problem"
	"vkattn/internal/testdevices"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// hostForward computes what a forward kernel of the fake is given, on the CPU tier.
func hostForward(name string, p *callParams) error {
	if strings.Contains(name, "_decode_") {
		return hostDecode(name, (*decodeParams)(unsafe.Pointer(p)))
	}
	cfg := problem.Config{HeadDim: int(p.d), HeadDimV: int(p.dv), Scale: problem.ScaleOf(p.scale)}
	for _, t := range attention.DTypes() {
		if strings.Contains(name, "_"+t.String()) {
			cfg.DType = t
		}
	}
	a := problem.Args{Shape: problem.Shape{B: int(p.b), Hq: int(p.hq), Hkv: int(p.hkv), Sq: int(p.sq), Sk: int(p.sk)}}
	if strings.HasSuffix(name, "_combine") { // the kernel before it has computed everything
		return nil
	}
	if strings.Contains(name, "_latent_tokens") || strings.Contains(name, "_latent_offsets") {
		l := (*latentParams)(unsafe.Pointer(p))
		n := a.B * a.Sq
		if l.cuQ != 0 {
			n = int(l.totalQ)
		}
		a.SparseTokens = &problem.SparseTokens{PerRow: true, TopK: int(l.topK)}
		a.SparseTokens.Tokens.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&l.tokens)), 4*(n*int(l.topK)+int(l.entries)))
		if l.offsets != 0 {
			a.SparseTokens.Offsets.Host, a.SparseTokens.Total = unsafe.Slice(*(**byte)(unsafe.Pointer(&l.offsets)), 4*(n+1)), int(l.entries)
		}
	}
	if strings.Contains(name, "_general") || strings.Contains(name, "_latent") {
		g := (*generalParams)(unsafe.Pointer(p))
		if strings.HasSuffix(name, "_fp8_ds_mla") {
			cfg.KeyType, cfg.ValueType = problem.KVFP8DSMLA, problem.KVFP8DSMLA
			g.k.batch, g.k.row = g.k.batch/656, g.k.row/656
		}
		return hostGeneral(cfg, a, g)
	}
	switch p.causalOffset {
	case problem.NoCausal:
	case 0:
		cfg.Causal = problem.TopLeft
	case p.sk - p.sq:
		cfg.Causal = problem.BottomRight
	default:
		return fmt.Errorf("a causal offset of %d", p.causalOffset)
	}
	hostTensors(&cfg, &a, p, a.B, a.Sq, a.B, a.Sk)
	return host.Forward(cfg, a)
}

// hostDecode is hostForward of a decode kernel. Of the workspace it checks that counters are 0, and writes all of the states.
func hostDecode(name string, p *decodeParams) error {
	_, kv, _ := strings.Cut(name, "_d64_")
	g := generalParams{callParams: callParams{q: p.q, k: p.k, v: p.v, o: p.o, lse: p.lse, b: p.b, hq: p.hq, hkv: p.hkv, sq: p.sq, sk: p.sk, d: p.headDim, dv: p.headDim},
		cuQ: p.cuQ, cuK: p.cuK, usedQ: p.usedQ, usedK: p.usedK, table: p.table, alibi: p.alibi, sinks: p.sinks, totalQ: p.totalQ, totalK: p.totalK,
		left: p.left, right: p.right, bottomRight: p.bottomRight, pageSize: p.pageSize, pages: p.pages, tableStride: p.tableStride,
		changes: p.changes, scoreScale: p.scoreScale, softcap: p.softcap, alibiBatch: p.alibiBatch}
	cfg := problem.Config{HeadDim: int(p.headDim)}
	if strings.Contains(name, "_bf16_") {
		cfg.DType = problem.BF16
	}
	if err := cfg.KeyType.Set(kv); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	cfg.ValueType = cfg.KeyType
	unit, _ := unitOf(cfg.KeyType)
	for _, t := range [...]*tensorParams{&g.k, &g.v} {
		n := int64(cmp.Or(unit, 2))
		t.batch, t.head, t.row = t.batch/n, t.head/n, t.row/n
	}
	a := problem.Args{Shape: problem.Shape{B: int(p.b), Hq: int(p.hq), Hkv: int(p.hkv), Sq: int(p.sq), Sk: int(p.sk)}}
	if cfg.KeyType != problem.KVSame {
		g.left, g.right, g.bottomRight = problem.NoCausal, problem.NoCausal, 0
		if p.causal != 0 {
			g.right, g.bottomRight = 0, p.causal-1
		}
	}
	if cfg.KeyType.Scaled() {
		batches := a.B
		if p.cuK != 0 {
			batches = 1
		} else if p.pageSize > 0 {
			batches = int(p.pages)
		}
		scales := func(at uint64) problem.Vector {
			return problem.Vector{Host: unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), 4*batches*a.Hkv*int(p.scaleGroups))}
		}
		a.KScale, a.VScale = scales(p.kScale), scales(p.vScale)
		cfg.KVBlock = int(p.scaleBlock)
	}
	scale := float64(p.scaleLog2) / math.Log2E
	if p.changes != 0 {
		if scale = float64(p.scoreScale); p.softcap != 0 {
			scale *= float64(p.softcap)
		}
	}
	cfg.Scale = problem.ScaleOf(float32(scale))
	if p.splits > 1 {
		tiles := int(p.b) * int(p.sq)
		if p.cuQ != 0 {
			tiles = int(p.totalQ)
		}
		tiles *= int(p.hkv)
		group := int(p.hq / p.hkv)
		tiles *= (group + decodeHeads - 1) / decodeHeads
		for i, n := range unsafe.Slice(*(**uint32)(unsafe.Pointer(&p.counters)), tiles) {
			if n != 0 {
				return fmt.Errorf("%s: the counter of row tile %d begins at %d", name, i, n)
			}
		}
		states := unsafe.Slice(*(**float32)(unsafe.Pointer(&p.partial)), tiles*int(p.splits)*min(group, decodeHeads)*(64+4))
		for i := range states {
			states[i] = float32(math.NaN())
		}
	}
	return hostGeneral(cfg, a, &g)
}

// unitOf is what strides of quantized K and V count: its bytes and elements. Elements of K and V stored as Q have the bytes of the storage
// type.
func unitOf(kv problem.KVType) (bytes int, elements int64) {
	switch {
	case kv == problem.KVSame:
		return 0, 1
	case kv.Blocked():
		return kv.RowBytes(problem.F16, kv.Unit()), int64(kv.Unit())
	}
	return 1, 1
}

// hostTensors sets the tensors of a kernel's parameters: the batches and rows of Q and O, and of K and V.
func hostTensors(cfg *problem.Config, a *problem.Args, p *callParams, batches, rows, batchesK, keys int) {
	view := func(t *tensorParams, kv problem.KVType, batches, heads, rows, dim int) problem.Tensor {
		unit, each := unitOf(kv)
		n := int64(max(batches, 1)-1)*t.batch + int64(heads-1)*t.head + int64(max(rows, 1)-1)*t.row + (int64(dim)+each-1)/each
		return problem.Tensor{Host: unsafe.Slice(*(**byte)(unsafe.Pointer(&t.base)), n*int64(cmp.Or(unit, cfg.DType.Size()))),
			Strides: problem.Strides{Batch: t.batch * each, Head: t.head * each, Seq: t.row * each, Expanded: true}}
	}
	const same = problem.KVSame
	a.Q, a.O = view(&p.q, same, batches, a.Hq, rows, cfg.HeadDim), view(&p.o, same, batches, a.Hq, rows, cfg.HeadDimV)
	a.K, a.V = view(&p.k, cfg.KeyType, batchesK, a.Hkv, keys, cfg.HeadDim), view(&p.v, cfg.KeyType, batchesK, a.Hkv, keys, cfg.HeadDimV)
	a.O.Strides.Expanded = false
	if p.lse != 0 {
		a.LSE.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&p.lse)), 4*batches*a.Hq*rows)
	}
}

// hostGeneral is hostForward of a kernel for calls with options.
func hostGeneral(cfg problem.Config, a problem.Args, p *generalParams) error {
	if p.firstBatch != 0 || p.firstHead != 0 {
		return fmt.Errorf("a launch from batch %d and head %d", p.firstBatch, p.firstHead)
	}
	cfg.Align, cfg.Softcap = problem.TopLeft, p.softcap
	if p.bottomRight != 0 {
		cfg.Align = problem.BottomRight
	}
	side := func(n int32) int {
		if n == problem.NoCausal {
			return -1
		}
		return int(n)
	}
	cfg.Window = problem.WindowOf(side(p.left), side(p.right))
	if (p.changes != 0) != (p.softcap != 0 || p.alibi != 0 || p.bias != 0) {
		return fmt.Errorf("scores change: %d", p.changes)
	}
	vector := func(at uint64, n int) problem.Vector {
		if at == 0 {
			return problem.Vector{}
		}
		return problem.Vector{Host: unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), 4*n)}
	}
	a.Varlen = &problem.Varlen{CuQ: vector(p.cuQ, a.B+1), CuK: vector(p.cuK, a.B+1), UsedQ: vector(p.usedQ, a.B), UsedK: vector(p.usedK, a.B),
		TotalQ: int(p.totalQ), TotalK: int(p.totalK)}
	a.ALiBi, a.Sinks = vector(p.alibi, a.Hq), vector(p.sinks, a.Hq)
	if p.alibiBatch != 0 {
		a.ALiBi, a.ALiBiPerSequence = vector(p.alibi, a.B*int(p.alibiBatch)), true
	}
	a.DropoutState, a.MaxLogits = vector(p.dropState, 4), vector(p.maxLogits, a.Hq)
	for i := range a.MaxLogits.Host[:len(a.MaxLogits.Host)/4] {
		if x := math.Float32frombits(binary.LittleEndian.Uint32(a.MaxLogits.Host[4*i:])); !math.IsInf(float64(x), -1) {
			return fmt.Errorf("MaxLogits begins with %v", x)
		}
	}
	batches, rows, batchesK, keys := a.B, a.Sq, a.B, a.Sk
	if p.cuQ != 0 {
		batches, rows = 1, int(p.totalQ)
	}
	if p.cuK != 0 {
		batchesK, keys = 1, int(p.totalK)
	}
	if p.pageSize != 0 {
		a.Pages = &problem.Pages{Table: vector(p.table, a.B*int(p.tableStride)), Stride: int(p.tableStride), PageSize: int(p.pageSize), Count: int(p.pages)}
		batchesK, keys = int(p.pages), int(p.pageSize)
	}
	broadcast := func(at uint64, size int, steps [3]int64) (x problem.Tensor, sizes [3]int) {
		n := int64(a.Sk)
		for i, count := range [3]int{a.B, a.Hq, a.Sq} {
			if sizes[i] = 0; steps[i] == 0 {
				sizes[i] = 1
			}
			n += int64(count-1) * steps[i]
		}
		x.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n*int64(size))
		x.Strides = problem.Strides{Batch: steps[0], Head: steps[1], Seq: steps[2], Expanded: true}
		return x, sizes
	}
	if p.bias != 0 {
		b := problem.Bias{DType: []problem.DType{problem.F16, problem.BF16, problem.F32}[p.biasType]}
		var n [3]int
		b.Tensor, n = broadcast(p.bias, b.DType.Size(), p.biasSteps)
		b.Batches, b.Heads, b.Rows = n[0], n[1], n[2]
		a.Bias = &b
	}
	if p.mask != 0 {
		var m problem.Mask
		var n [3]int
		m.Tensor, n = broadcast(p.mask, 1, p.maskSteps)
		m.Batches, m.Heads, m.Rows = n[0], n[1], n[2]
		a.Mask = &m
	}
	if p.dropThreshold != 0 {
		cfg.Dropout = float32(p.dropThreshold) * 0x1p-32
		a.DropoutSeed, a.DropoutOffset = p.dropSeed, p.dropOffset
	}
	hostTensors(&cfg, &a, &p.callParams, batches, rows, batchesK, keys)
	return host.Forward(cfg, a)
}

// forwardError is the first error of the callback.
var forwardError struct {
	sync.Mutex
	err error
}

// fakeForwardKernels is called by the fake's threads.
var fakeForwardKernels = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(name *byte, p *callParams) uintptr {
		n := 0
		for *(*byte)(unsafe.Add(unsafe.Pointer(name), n)) != 0 {
			n++
		}
		err := hostForward(unsafe.String(name, n), p)
		forwardError.Lock()
		defer forwardError.Unlock()
		if forwardError.err == nil {
			forwardError.err = err
		}
		return 0
	})
})

var fakeUUID = [16]byte{0x7b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

// openFake opens the device of a fake driver, whose kernels compute. Everything that it holds is given back at the end.
func openFake(t testing.TB) (*fake, *attention.Device) {
	t.Helper()
	testlevel.HostOnly(t)
	f := newFake(t)
	f.device(&fakeUUID[0], 90, 13000)
	f.forward(fakeForwardKernels())
	f.backward(fakeBackwardKernels())
	forwardError.err = nil
	dev, err := OpenDevice(DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		f.fail("", 0)
		require.NoError(t, dev.Close())
		require.NoError(t, dev.Close(), "a second time")
		require.Zero(t, f.live(), "of the driver's objects")
		require.NoError(t, forwardError.err)
	})
	return f, dev
}

// useEmulator makes backward kernels of a storage type compute.
func useEmulator(t testing.TB, dtype attention.DType) {
	t.Helper()
	e := newEmulator(t, dtype.String())
	emulated.Lock()
	defer emulated.Unlock()
	emulated.e, emulated.err = e, nil
}

// memories are the images of a problem in memory of a device.
func memories(t testing.TB, dev *attention.Device, images [][]byte) (list []*attention.Memory, tensors []attention.Tensor) {
	t.Helper()
	for _, image := range images {
		x, err := dev.Tensor(attention.F32, (len(image)+3)/4)
		require.NoError(t, err)
		require.NoError(t, x.SetBytes(append(append([]byte{}, image...), make([]byte, -len(image)&3)...)))
		list, tensors = append(list, x.Memory), append(tensors, x)
	}
	return list, tensors
}

// readBack returns what memories holds now, and closes it.
func readBack(t testing.TB, tensors []attention.Tensor, images [][]byte) (after [][]byte) {
	t.Helper()
	for i, x := range tensors {
		b, err := x.Bytes(background(t))
		require.NoError(t, err)
		after = append(after, b[:len(images[i])])
		require.NoError(t, x.Close())
	}
	return after
}

// configOf is the Config of a case on tier cuda.
func configOf(c *cases.Case, dtype attention.DType, kernel string) attention.Config {
	cfg := attention.Config(c.Config(cases.On(attention.TierCUDA, dtype)))
	cfg.Access, cfg.Kernel = attention.AccessAuto, kernel
	return cfg
}

// forwardOnDevice computes O and LSE of a case and returns the memory behind it.
func forwardOnDevice(t testing.TB, dev *attention.Device, kernel string, p *cases.Problem, images [][]byte) (after [][]byte) {
	t.Helper()
	list, tensors := memories(t, dev, images)
	op, err := attention.New(dev, configOf(&p.Case, p.DType, kernel))
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, p.MemoryArgs(list)))
	require.NoError(t, op.Close())
	return readBack(t, tensors, images)
}

// gradientsOnDevice computes the gradients of a case, from O and LSE of the CPU tier.
func gradientsOnDevice(t testing.TB, dev *attention.Device, kernel string, b *cases.Backward, images [][]byte) (after [][]byte) {
	t.Helper()
	var computed [][]byte
	for _, image := range images {
		computed = append(computed, bytes.Clone(image))
	}
	cfg := configOf(&b.Case, b.DType, kernel)
	onCPU := problem.Config(cfg)
	onCPU.Tier, onCPU.Kernel = attention.TierAuto, ""
	require.NoError(t, host.Forward(onCPU, b.HostArgs(computed)))
	list, tensors := memories(t, dev, computed)
	op, err := attention.New(dev, cfg)
	require.NoError(t, err)
	require.NoError(t, op.Backward(nil, b.BackwardMemoryArgs(list)))
	require.NoError(t, op.Close())
	return readBack(t, tensors, images)
}

// judgeOnDevice computes a case forward, unless it has options, and backward, and then with everything changed that must not
// matter.
func judgeOnDevice(t testing.TB, dev *attention.Device, kernel string, b *cases.Backward) {
	t.Helper()
	if b.Seqs == nil && b.Softcap == 0 && !b.Window.Given() {
		judgeForwardOnDevice(t, dev, kernel, b.Problem)
	}
	after := gradientsOnDevice(t, dev, kernel, b, b.Image)
	require.NoError(t, b.BackwardTrespass(b.Image, after))
	require.NoError(t, b.BackwardJudge(after))
	spoiled := b.BackwardSpoiled()
	again := gradientsOnDevice(t, dev, kernel, b, spoiled)
	require.NoError(t, b.BackwardTrespass(spoiled, again))
	require.NoError(t, b.BackwardSame(after, again))
}

func judgeForwardOnDevice(t testing.TB, dev *attention.Device, kernel string, p *cases.Problem) (after [][]byte) {
	t.Helper()
	after = forwardOnDevice(t, dev, kernel, p, p.Image)
	var truth cases.Truth
	require.NoError(t, truth.Judge(p, after))
	require.NoError(t, p.Trespass(p.Image, after))
	if p.Layout.Aliases() {
		return after // a hidden key shares memory with one that is seen
	}
	spoiled, err := p.Spoil(p.Hidden())
	require.NoError(t, err)
	again := forwardOnDevice(t, dev, kernel, p, spoiled)
	require.NoError(t, p.Trespass(spoiled, again))
	require.NoError(t, p.Same(after, again))
	return after
}

// judgeOptionsOnDevice is judgeForwardOnDevice of a case with options.
func judgeOptionsOnDevice(t testing.TB, dev *attention.Device, kernel string, p *cases.Problem) {
	t.Helper()
	after := forwardOnDevice(t, dev, kernel, p, p.Image)
	require.NoError(t, p.Trespass(p.Image, after))
	var truth cases.Truth
	require.NoError(t, truth.Judge(p, after))
	spoiled := p.Spoiled()
	again := forwardOnDevice(t, dev, kernel, p, spoiled)
	require.NoError(t, p.Trespass(spoiled, again))
	require.NoError(t, p.Same(after, again))
}

// judgeDecodeOnDevice is judgeOptionsOnDevice by the formula, which knows extreme scales.
func judgeDecodeOnDevice(t testing.TB, dev *attention.Device, p *cases.Problem) {
	t.Helper()
	after := forwardOnDevice(t, dev, "", p, p.Image)
	judgeDecode(t, p, after)
	spoiled := p.Spoiled()
	require.NoError(t, p.Same(after, forwardOnDevice(t, dev, "", p, spoiled)))
}

func judgeDecode(t testing.TB, p *cases.Problem, after [][]byte) {
	t.Helper()
	require.NoError(t, p.Trespass(p.Image, after))
	formula := cases.NewFormula(p)
	formula.Rounded = p.KeyType.Scaled() // the exponent of V's scale is added to the score
	judged := formula.Judge(after)
	require.NoError(t, judged.Err())
}

// A CUDA device without Vulkan computes calls with the options that its forward kernels take, and refuses the others by name.
func TestDeviceComputesOptions(t *testing.T) {
	f, dev := openFake(t)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		n := 0
		for _, c := range cases.DealOptions(cases.BriefOptions(), 3)[which] {
			if c.Seqs == nil || emulatedTiles(&c) > 64 {
				continue
			}
			p, err := cases.NewProblem(c, dtype)
			require.NoError(t, err)
			if !computesForward(&c) {
				continue
			}
			if n++; n%4 != 0 && !testlevel.IsExhaustive() {
				continue
			}
			t.Run(dtype.String()+" "+c.String(), func(t *testing.T) {
				f.launches()
				judgeOptionsOnDevice(t, dev, "", p)
				require.Contains(t, f.launches(), "_general")
				require.NoError(t, forwardError.err)
			})
		}
		t.Logf("%d cases", n)
	}
}

// Few rows run in decode kernels, whose splits find counters of 0 in the stream's memory, in the caller's and in graphs.
func TestDeviceDecodes(t *testing.T) {
	f, dev := openFake(t)
	for i, c := range asQCases(64) {
		p, err := cases.NewProblem(c, []attention.DType{attention.F16, attention.BF16}[i%2])
		require.NoError(t, err)
		f.launches()
		judgeDecodeOnDevice(t, dev, p)
		if b := c.Bounds(); c.Seqs == nil || decodesFaster(&ContextOf(dev).info, &problem.CUDAProblem{Shape: b}) {
			require.Contains(t, f.launches(), "_decode_", "%v", c)
		}
	}
	for _, kv := range decodeTypes {
		for i, c := range decodeCases(64, kv)[:7] {
			p, err := cases.NewProblem(c, []attention.DType{attention.F16, attention.BF16}[i%2])
			require.NoError(t, err)
			judgeDecodeOnDevice(t, dev, p)
			memory, tensors := memories(t, dev, p.Image)
			op, err := attention.New(dev, configOf(&p.Case, p.DType, ""))
			require.NoError(t, err)
			plan, err := op.PlanFor(p.MemoryArgs(memory))
			require.NoError(t, err, "%v", c)
			require.Contains(t, plan.Kernel, "_decode_")
			plan, err = op.Plan(c.Bounds())
			require.NoError(t, err, "%v", c)
			require.Contains(t, plan.Kernel, "_decode_")
			require.NoError(t, op.Close())
			readBack(t, tensors, p.Image)
		}
	}
	f.backward(0)
	shape := attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 6000}
	a, small := problemOn(t, dev, attention.F16, shape, 64), problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 2, Sq: 300, Sk: 300}, 64)
	op, err := attention.New(dev, attention.Config{HeadDim: 64})
	require.NoError(t, err)
	plan, err := op.PlanFor(a.Args)
	require.NoError(t, err)
	require.Contains(t, plan.Kernel, "_decode_")
	require.Equal(t, 15, plan.Splits, "of 10 multiprocessors with three CTAs each, for two row tiles")
	require.Positive(t, plan.WorkspaceBytes)

	c := ContextOf(dev)
	g := newGraphs(t, c)
	own, err := c.NewStream()
	require.NoError(t, err)
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	g.capture(t, own.Handle(), func() {
		require.ErrorContains(t, op.Forward(s, a.Args), "the call allocates a workspace of 32 KiB: make one like it, or prepare it, before")
	})
	require.NoError(t, op.Prepare(a.Shape))
	replay := g.capture(t, own.Handle(), func() { require.NoError(t, op.Forward(s, a.Args)) })
	w := &problemStream(s).workspace
	require.False(t, w.zeroed, "the graph has not run")
	replay()
	f.fail("cuMemsetD32Async", 2)
	require.ErrorIs(t, op.Forward(s, a.Args), vk.ErrOutOfMemory)
	require.False(t, w.zeroed)
	f.fail("", 0)
	for range 2 {
		require.NoError(t, op.Forward(s, a.Args))
		require.True(t, w.zeroed)
		require.NoError(t, op.Backward(s, small)) // in the rest of the workspace
	}
	replay()
	space, err := dev.Tensor(attention.F32, int(plan.WorkspaceBytes/4))
	require.NoError(t, err)
	require.NoError(t, UseWorkspace(s, space.Memory))
	for range 2 {
		require.NoError(t, space.SetBytes(bytes.Repeat([]byte{0xff}, bytesOf(space)))) // as another call leaves it
		require.NoError(t, dev.Wait(background(t)))
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, s.Wait(background(t)))
	}
	less, err := dev.Tensor(attention.F32, int(plan.WorkspaceBytes/4)-1)
	require.NoError(t, err)
	require.NoError(t, UseWorkspace(s, less.Memory))
	require.ErrorIs(t, op.Forward(s, a.Args), vk.ErrInvalid)
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, s.Close())
	require.NoError(t, own.Close())
}

// A CUDA device without Vulkan computes latent attention by a kernel of its own and one that combines splits, in a workspace that the
// plan tells the size of.
func TestDeviceComputesLatent(t *testing.T) {
	f, dev := openFake(t)
	list, _ := latentCases()
	tokens, _ := latentTokenCases()
	offsets, _ := latentOffsetCases()
	list = slices.Concat(list, tokens, offsets)
	list = append(list, latentRowCases(list)...)
	list = append(list, cases.Case{Name: "no keys", D: 576, Dv: 512, VInK: true, LSE: true, Shape: attention.Shape{Hq: 16, Hkv: 1}, PackedQ: true, LooseK: true,
		Seqs: []cases.Seq{{ID: 1, Rows: 1}, {ID: 2, Rows: 1}}})
	for _, c := range list {
		t.Run(c.String(), func(t *testing.T) {
			p, err := cases.NewProblem(c, attention.BF16)
			require.NoError(t, err)
			memory, _ := memories(t, dev, p.Image)
			op, err := attention.New(dev, configOf(&p.Case, attention.BF16, ""))
			require.NoError(t, err)
			args := p.MemoryArgs(memory)
			args.V.Memory, err = WrapMemory(dev, problem.BackingOf(args.K.Memory).Address(), args.K.Memory.Size()) // as C and Python pass pointers
			require.NoError(t, err)
			plan, err := op.PlanFor(args)
			require.NoError(t, err)
			require.NoError(t, op.Close())
			kernel := "attn_fa3_bf16" + latentSuffix(&c)
			require.Equal(t, kernel, plan.Kernel)
			f.launches()
			judgeOptionsOnDevice(t, dev, "", p)
			lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
			parts := plan.WorkspaceBytes > 0 && c.SparseRatio == 0 || len(lines) == 4 // with lists, parts may have whole ones
			require.Len(t, lines, map[bool]int{true: 4, false: 2}[parts], "two calls")
			require.True(t, strings.HasPrefix(lines[0], fmt.Sprintf(kernel+" grid %d,1,1 threads 512", plan.Workgroups)), lines[0])
			if parts {
				require.True(t, strings.HasPrefix(lines[1], kernel+"_combine"), lines[1])
			}
			require.NoError(t, forwardError.err)
		})
	}
}

// Prepare loads the kernels of calls with V in K and of those with V in memory of its own: a shape says nothing of it. Its workspace is
// for a graph.
func TestDevicePreparesLatent(t *testing.T) {
	_, dev := openFake(t)
	shape := attention.Shape{B: 1, Hq: 16, Hkv: 1, Sq: 1, Sk: 4096}
	var list [4]attention.Tensor
	for i, dims := range [...][3]int{{16, 1, 576}, {1, 4096, 576}, {1, 4096, 512}, {16, 1, 512}} {
		var err error
		list[i], err = dev.Tensor(attention.F16, 1, dims[0], dims[1], dims[2])
		require.NoError(t, err)
	}
	separate := attention.Args{Shape: shape, Q: list[0], K: list[1], V: list[2], O: list[3]}
	inK := separate
	inK.V = attention.Tensor{Memory: separate.K.Memory, Strides: attention.Strides(problem.BHSD(1, 4096, 576))}
	own, err := ContextOf(dev).NewStream()
	require.NoError(t, err)
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	op, err := attention.New(dev, attention.Config{HeadDim: 576, HeadDimV: 512})
	require.NoError(t, err)
	g := newGraphs(t, ContextOf(dev))
	for _, a := range []attention.Args{separate, inK} {
		g.capture(t, own.Handle(), func() { require.ErrorContains(t, op.Forward(s, a), "the call loads the kernel") })
	}
	require.NoError(t, op.Prepare(shape))
	require.NoError(t, op.Forward(nil, inK)) // allocates a workspace of its own, and leaves the prepared one
	for _, a := range []attention.Args{separate, inK} {
		g.capture(t, own.Handle(), func() { require.NoError(t, op.Forward(s, a)) })
	}
	require.NoError(t, s.Close())
	require.NoError(t, own.Close())
	for _, x := range list {
		require.NoError(t, x.Close())
	}
}

// Tier cuda refuses rows of fp8_ds_mla where V is elsewhere, where there are two KV heads, and at addresses that are no multiples of 16.
func TestDeviceRefusesLatentRows(t *testing.T) {
	_, dev := openFake(t)
	shape := attention.Shape{B: 1, Hq: 16, Hkv: 1, Sq: 1, Sk: 70}
	q, err := dev.Tensor(attention.F16, 1, 16, 1, 576)
	require.NoError(t, err)
	o, err := dev.Tensor(attention.F16, 1, 16, 1, 512)
	require.NoError(t, err)
	rows, err := dev.Tensor(attention.F32, 3*70*656/4)
	require.NoError(t, err)
	op, err := attention.New(dev, attention.Config{HeadDim: 576, HeadDimV: 512, KeyType: attention.KVFP8DSMLA, ValueType: attention.KVFP8DSMLA})
	require.NoError(t, err)
	require.NoError(t, op.Prepare(shape))
	at := func(bytes uint64) attention.Tensor {
		m, err := WrapMemory(dev, problem.BackingOf(rows.Memory).Address()+bytes, 2*70*656)
		require.NoError(t, err)
		return attention.Tensor{Memory: m}
	}
	for _, x := range []struct {
		k, v attention.Tensor
		hkv  int
		want string
	}{
		{at(0), at(0), 1, ""},
		{at(16), at(16), 1, ""},
		{at(8), at(8), 1, "it takes fp8_ds_mla at multiples of 16 bytes"},
		{at(4), at(4), 1, "offsets and strides have to be multiples of 8"},
		{at(0), at(656), 1, "its kernels take fp8_ds_mla with one KV head and V that is the tensor of K"},
		{at(0), at(0), 2, "its kernels take fp8_ds_mla with one KV head and V that is the tensor of K"},
	} {
		a := attention.Args{Shape: shape, Q: q, K: x.k, V: x.v, O: o}
		a.Hkv = x.hkv
		err := op.Forward(nil, a)
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.ErrorContains(t, err, x.want)
		require.NotContains(t, err.Error(), "\n")
	}
	require.NoError(t, op.Close())
}

// A CUDA device without Vulkan computes attention and gradients, in memory and streams of its own.
func TestDeviceComputes(t *testing.T) {
	_, dev := openFake(t)
	require.Contains(t, dev.String(), "compute capability 9.0")
	require.Nil(t, dev.Vulkan())
	require.Equal(t, fakeUUID, ContextOf(dev).Info().UUID)
	for i, x := range []cases.Case{
		{Name: "grouped", D: 40, Dv: 24, Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 100}, Causal: attention.BottomRight, Layout: cases.BSHD},
		{Name: "square", D: 16, Dv: 16, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 65, Sk: 65}, Causal: attention.TopLeft},
		{Name: "full", D: 32, Dv: 32, Shape: attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 130, Sk: 90}},
	} {
		dtype := attention.DTypes()[i]
		t.Run(x.Name, func(t *testing.T) {
			useEmulator(t, dtype)
			b, err := cases.NewBackward(x, dtype)
			require.NoError(t, err)
			judgeOnDevice(t, dev, "ref", b)
			require.NoError(t, emulated.err)
		})
	}
}

// attention.Open takes a CUDA device by name, and where Vulkan has none.
func TestOpenTakesCUDA(t *testing.T) {
	f := newFake(t)
	f.device(&fakeUUID[0], 90, 13000)
	if driver := os.Getenv("VKATTN_DRIVER"); driver == "none" {
		t.Setenv("VKATTN_LIBVULKAN", filepath.Join(t.TempDir(), "libvulkan.so.1"))
		dev, err := attention.Open(attention.Options{})
		require.NoError(t, err)
		require.NotNil(t, ContextOf(dev))
		require.Empty(t, dev.WhyCPU())
		require.NoError(t, dev.Close())
	}
	for _, name := range []string{"0", "GPU-7b010203-0405-0607-0809-0a0b0c0d0e0f"} {
		dev, err := attention.Open(attention.Options{CUDA: name})
		require.NoError(t, err)
		require.Equal(t, fakeUUID, ContextOf(dev).Info().UUID)
		s, err := dev.NewStream("order")
		require.NoError(t, err)
		require.Equal(t, ContextOf(dev), StreamOf(s).Context())
		require.NoError(t, s.Close())
		require.NoError(t, dev.Close())
		require.Zero(t, f.live())
	}
	require.Nil(t, StreamOf(nil))
	_, err := attention.Open(attention.Options{CUDA: "3"})
	require.ErrorIs(t, err, vk.ErrNoDevice)
	dev, err := attention.Open(attention.Options{CPU: true, CUDA: "0"})
	require.NoError(t, err)
	require.Nil(t, ContextOf(dev))
}

// problemOn is a problem with gradients in tensors of a device.
func problemOn(t testing.TB, dev *attention.Device, dtype attention.DType, s attention.Shape, dim int) (a attention.BackwardArgs) {
	t.Helper()
	r := rand.New(rand.NewPCG(9, 0))
	a.Shape = s
	for _, x := range []struct {
		to     *attention.Tensor
		heads  int
		rows   int
		dim    int
		random bool
	}{{&a.Q, s.Hq, s.Sq, dim, true}, {&a.K, s.KVHeads(), s.Sk, dim, true}, {&a.V, s.KVHeads(), s.Sk, dim, true}, {&a.O, s.Hq, s.Sq, dim, false},
		{&a.DO, s.Hq, s.Sq, dim, true}, {&a.DQ, s.Hq, s.Sq, dim, false}, {&a.DK, s.KVHeads(), s.Sk, dim, false}, {&a.DV, s.KVHeads(), s.Sk, dim, false}} {
		var err error
		*x.to, err = dev.Tensor(dtype, s.B, x.heads, x.rows, x.dim)
		require.NoError(t, err)
		if x.random {
			fillTensor(t, *x.to, r)
		}
	}
	var err error
	a.LSE, err = dev.Tensor(attention.F32, s.B, s.Hq, s.Sq)
	require.NoError(t, err)
	return a
}

func fillTensor(t testing.TB, x attention.Tensor, r *rand.Rand) {
	t.Helper()
	n := 1
	for _, size := range x.Shape() {
		n *= size
	}
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(r.NormFloat64())
	}
	require.NoError(t, x.SetFloats(numbers))
}

func closeAll(t testing.TB, a *attention.BackwardArgs) {
	t.Helper()
	for _, x := range []attention.Tensor{a.Q, a.K, a.V, a.O, a.LSE, a.DO, a.DQ, a.DK, a.DV} {
		require.NoError(t, x.Close())
	}
}

// slowKernel is a forward kernel that takes 20 ms and then sets slowKernelEnded.
var (
	slowKernelEnded atomic.Bool
	slowKernel      = sync.OnceValue(func() uintptr {
		return purego.NewCallback(func(*byte, *callParams) uintptr {
			time.Sleep(20 * time.Millisecond)
			slowKernelEnded.Store(true)
			return 0
		})
	})
)

// Close of a stream waits for the calls on it, whose tensors may be freed then.
func TestDeviceStreamCloseWaits(t *testing.T) {
	f, dev := openFake(t)
	f.forward(slowKernel())
	slowKernelEnded.Store(false)
	a := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9}, 64)
	defer closeAll(t, &a)
	op := testdevices.Op(t, dev, attention.Config{DType: attention.F16, HeadDim: 64})
	s, err := dev.NewStream("closed")
	require.NoError(t, err)
	require.NoError(t, op.Forward(s, a.Args))
	require.NoError(t, s.Close())
	require.True(t, slowKernelEnded.Load(), "the kernel was running when Close returned")
}

// What the kernels do not compute is refused by name, and so is what is not the device's.
func TestDeviceRefuses(t *testing.T) {
	f, dev := openFake(t)
	for text, cfg := range map[string]attention.Config{
		"tier scalar on fake: a CUDA device that was opened without Vulkan has tier cuda alone": {HeadDim: 64, Tier: attention.TierScalar},
		"tier cpu on fake": {HeadDim: 64, Tier: attention.TierCPU},
		"its forward kernels take no attention chunks":                                   {HeadDim: 64, AttentionChunk: 16, Causal: attention.TopLeft},
		"its decode kernels are for int8, fp8, q8_0 and q4_0, head dims 64, 128 and 256": {HeadDim: 96, KeyType: attention.KVInt8, ValueType: attention.KVInt8},
		"its quantized decode takes K and V of one type, not int8/fp8":                   {HeadDim: 64, KeyType: attention.KVInt8, ValueType: attention.KVFP8},
		"latent attention: it takes no softcap":                                          {HeadDim: 576, HeadDimV: 512, KeyType: attention.KVFP8DSMLA, ValueType: attention.KVFP8DSMLA, Softcap: 9},
		"it takes no fp8_ds_mla":                                                         {HeadDim: 576, HeadDimV: 512, KeyType: attention.KVFP8DSMLA, ValueType: attention.KVFP8DSMLA, Tier: attention.TierCUDA, Kernel: "fa2"},
		"fixed splits":                                                                   {HeadDim: 64, FixedSplit: 64},
		"f32":                                                                            {HeadDim: 64, DType: attention.F32, Tier: attention.TierCUDA, Kernel: "fa3"},
	} {
		_, err := attention.New(dev, cfg)
		require.ErrorIs(t, err, attention.ErrUnsupported, text)
		require.ErrorContains(t, err, text)
	}
	_, err := merge.NewMerge(dev, merge.MergeConfig{HeadDim: 64})
	require.ErrorContains(t, err, "no kernel that merges states")

	// Options have forward kernels of 16-bit types alone, backward kernels of all. The plan says why fa3 does not take them.
	op, err := attention.New(dev, attention.Config{HeadDim: 64, Softcap: 20, DType: attention.F32})
	require.NoError(t, err)
	_, err = op.PlanBackward(attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9})
	require.NoError(t, err)
	_, err = op.Plan(attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9})
	require.ErrorContains(t, err, "fa2: there is none for f32; fa2_any: there is none for f32; ref: it takes no softcap")
	op, err = attention.New(dev, attention.Config{HeadDim: 64, Softcap: 20, Causal: attention.BottomRight, Window: attention.WindowOf(9, 0)})
	require.NoError(t, err)
	general, err := op.Plan(attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9})
	require.NoError(t, err)
	require.Equal(t, "attn_fa2_f16_d64_general", general.Kernel)
	require.Contains(t, general.String(), "fa3: it takes no softcap")

	// Odd head dims go to the kernels for any alignment, and the plan says why.
	op, err = attention.New(dev, attention.Config{HeadDim: 33})
	require.NoError(t, err)
	plan, err := op.Plan(attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9})
	require.NoError(t, err)
	require.Equal(t, attention.TierCUDA, plan.Tier)
	require.Contains(t, plan.Kernel, "fa2")
	require.Contains(t, plan.String(), "have to be multiples of 8 elements")

	other, err := OpenDevice(DeviceOptions{Device: "0"})
	require.NoError(t, err)
	a, foreign := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9}, 64), problemOn(t, other, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9}, 64)
	op, err = attention.New(dev, attention.Config{HeadDim: 64})
	require.NoError(t, err)
	bad := a.Args
	bad.K = foreign.K
	require.ErrorContains(t, op.Forward(nil, bad), "memory of another device")
	s, err := other.NewStream("")
	require.NoError(t, err)
	require.ErrorContains(t, op.Forward(s, a.Args), "the stream is of another device")
	require.ErrorIs(t, UseWorkspace(s, a.Q.Memory), vk.ErrInvalid)
	require.ErrorIs(t, UseWorkspace(nil, a.Q.Memory), vk.ErrInvalid)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "a second time")
	require.Error(t, s.Submit())
	bad = a.Args
	bad.O = bad.Q
	require.ErrorContains(t, op.Forward(nil, bad), "overlapping Q")
	require.NoError(t, a.V.Close())
	require.ErrorIs(t, a.V.SetFloats(make([]float32, 9*64)), vk.ErrClosed)
	require.NoError(t, other.Close())
	require.ErrorIs(t, foreign.Q.SetFloats(make([]float32, 9*64)), vk.ErrClosed)
	_, err = other.NewStream("")
	require.ErrorIs(t, err, vk.ErrClosed)
	_, err = dev.Tensor(attention.F32, 1<<40)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)
	_ = f
}

// Devices are named by ordinals and UUIDs.
func TestDeviceNames(t *testing.T) {
	openFake(t)
	const uuid = "7b010203-0405-0607-0809-0a0b0c0d0e0f"
	for name, want := range map[string]error{"": nil, "0": nil, uuid: nil, "GPU-" + uuid: nil, "1": vk.ErrNoDevice, "-1": vk.ErrNoDevice,
		"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f": vk.ErrNoDevice, "GPU-7b": vk.ErrInvalid, "NVIDIA": vk.ErrInvalid} {
		dev, err := OpenDevice(DeviceOptions{Device: name})
		require.ErrorIs(t, err, want, name)
		if err == nil {
			require.NoError(t, dev.Close())
		}
	}
	t.Setenv(LibraryEnv, "off")
	_, err := OpenDevice(DeviceOptions{})
	require.ErrorIs(t, err, vk.ErrUnsupported)
}

// A device in the caller's context works in it, and leaves it and his memory and streams as they are.
func TestDeviceOfTheCaller(t *testing.T) {
	f, caller := openFake(t)
	c := ContextOf(caller)
	before := f.live()
	dev, err := OpenDevice(DeviceOptions{Context: c.Handle()})
	require.NoError(t, err)
	_, err = OpenDevice(DeviceOptions{Context: 12})
	require.ErrorIs(t, err, vk.ErrDeviceLost, "CUDA_ERROR_INVALID_CONTEXT")
	useEmulator(t, attention.F16)
	own, err := c.NewStream()
	require.NoError(t, err)
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	_, err = WrapStream(dev, 4096)
	require.Error(t, err)
	_, err = WrapStream(attention.On(nil), own.Handle())
	require.ErrorIs(t, err, vk.ErrInvalid)

	a := problemOn(t, caller, attention.F16, attention.Shape{B: 2, Hq: 2, Sq: 9, Sk: 9}, 16)
	require.NoError(t, caller.Wait(background(t)), "another stream is to use them")
	wrapped := a
	for _, x := range []*attention.Tensor{&wrapped.Q, &wrapped.K, &wrapped.V, &wrapped.O, &wrapped.LSE, &wrapped.DO, &wrapped.DQ, &wrapped.DK, &wrapped.DV} {
		m, err := WrapMemory(dev, problem.BackingOf(x.Memory).Address(), x.Memory.Size())
		require.NoError(t, err)
		*x = attention.Tensor{Memory: m}
	}
	_, err = WrapMemory(dev, 0, 8)
	require.ErrorIs(t, err, vk.ErrInvalid)
	op, err := attention.New(dev, attention.Config{HeadDim: 16, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	require.NoError(t, op.Forward(s, wrapped.Args))
	require.NoError(t, op.Backward(s, wrapped))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, emulated.err)
	same, err := attention.New(caller, attention.Config{HeadDim: 16, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	got := func() (all [][]byte) {
		for _, x := range []attention.Tensor{a.O, a.LSE, a.DQ, a.DK, a.DV} {
			b, err := x.Bytes(background(t))
			require.NoError(t, err)
			all = append(all, b)
		}
		return all
	}
	first := got()
	require.NoError(t, same.Forward(nil, a.Args))
	require.NoError(t, same.Backward(nil, a))
	require.Equal(t, first, got())
	short := wrapped.Args
	short.Q.Memory, err = WrapMemory(dev, problem.BackingOf(a.Q.Memory).Address(), 100)
	require.NoError(t, err)
	require.ErrorContains(t, op.Forward(s, short), "Q")
	require.NoError(t, wrapped.Q.Memory.Close())
	require.ErrorIs(t, op.Forward(s, wrapped.Args), vk.ErrClosed)

	require.NoError(t, s.Close())
	require.NoError(t, dev.Close())
	closeAll(t, &a)
	require.NoError(t, own.Close())
	require.Equal(t, before+4, f.live(), "of the device that the caller opened: its default stream with a workspace, and two modules")
}
