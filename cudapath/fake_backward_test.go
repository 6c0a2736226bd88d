//go:build !windows

package cudapath

import (
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// emulated is what the callback of the fake driver runs kernels with, and its first error.
var emulated struct {
	sync.Mutex
	e   *emulator
	err error
}

// fakeBackwardKernels is called by the fake's threads.
var fakeBackwardKernels = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(name *byte, p *backwardParams, grid *[3]uint32, threads uintptr) uintptr {
		n := 0
		for *(*byte)(unsafe.Add(unsafe.Pointer(name), n)) != 0 {
			n++
		}
		emulated.Lock()
		defer emulated.Unlock()
		if err := emulated.e.launch(unsafe.String(name, n), p, *grid, int(threads), false); emulated.err == nil {
			emulated.err = err
		}
		return 0
	})
})

// gradientsByCUDA computes O and LSE of a case on tier scalar and its gradients on tier
// cuda by a family of kernels, in one stream, and returns the memory behind it.
func gradientsByCUDA(t *testing.T, c *Context, s *vk.Stream, kernel string, b *cases.Backward, before [][]byte) (after [][]byte) {
	t.Helper()
	var buffers []*vk.Buffer
	for _, image := range before {
		x := newBuffer(t, c, uint64(len(image)+3)&^3)
		require.NoError(t, s.Upload(x, 0, image))
		buffers = append(buffers, x)
	}
	a := b.BackwardDeviceArgs(buffers)
	cfg := b.Config(cases.On(attention.TierScalar, b.DType))
	cfg.Access = attention.AccessAuto
	forward, err := attention.New(attention.On(c.dev), attention.Config(cfg))
	require.NoError(t, err)
	cfg.Tier, cfg.Kernel = attention.TierCUDA, kernel
	op, err := attention.New(attention.On(c.dev), attention.Config(cfg))
	require.NoError(t, err)
	require.NoError(t, s.Barrier())
	require.NoError(t, forward.Forward(attention.OnStream(s), a.Args))
	require.NoError(t, op.Backward(attention.OnStream(s), a))
	for i, x := range buffers {
		after = append(after, make([]byte, len(before[i])))
		require.NoError(t, s.Download(background(t), after[i], x, 0))
	}
	require.NoError(t, forward.Close())
	require.NoError(t, op.Close())
	return after
}

// A forward call with options on tier cuda, between what Vulkan uploads and downloads.
func TestOptionsTakeTheirTurn(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	f.forward(fakeForwardKernels())
	forwardError.err = nil
	seqs := []cases.Seq{{ID: 1, Rows: 5, Keys: 80}, {ID: 2, Rows: 66, Keys: 3}}
	for _, x := range []cases.Case{
		{Name: "packed", D: 16, Dv: 16, Shape: attention.Shape{Hq: 2, Hkv: 1}, Causal: attention.TopLeft, Seqs: seqs, PackedQ: true, PackedK: true, LooseQ: true, LSE: true, Softcap: 3},
		{Name: "paged", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, Causal: attention.BottomRight, Seqs: seqs, PageSize: 16, LooseK: true, ALiBi: true, Sinks: true},
	} {
		t.Run(x.Name, func(t *testing.T) {
			p, err := cases.NewProblem(x, attention.F16)
			require.NoError(t, err)
			f.launches()
			after := forwardByVulkan(t, c, "", p, p.Image)
			require.NoError(t, forwardError.err)
			require.Contains(t, f.launches(), "_general")
			require.NoError(t, p.Trespass(p.Image, after))
			var truth cases.Truth
			require.NoError(t, truth.Judge(p, after))
		})
	}
}

// Decode over quantized K and V on tier cuda, between what Vulkan uploads and downloads. The counters of splits are 0 in each call of a
// stream, also behind calls that write the whole workspace.
func TestQuantizedDecodeTakesItsTurn(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	f.forward(fakeForwardKernels())
	forwardError.err = nil
	for _, kv := range decodeTypes {
		for i, x := range decodeCases(64, kv)[:7] {
			p, err := cases.NewProblem(x, []attention.DType{attention.F16, attention.BF16}[i%2])
			require.NoError(t, err)
			f.launches()
			after := forwardByVulkan(t, c, "", p, p.Image)
			require.NoError(t, forwardError.err)
			require.Contains(t, f.launches(), "_decode_", "%v", x)
			judgeDecode(t, p, after)
		}
	}
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA, KeyType: attention.KVInt8, ValueType: attention.KVInt8})
	require.NoError(t, err)
	for _, keys := range []int{3000, 6000, 3000, 70} {
		a := fakeCall(t, c, attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: keys}, 64)
		a.KScale.Buffer, a.VScale.Buffer = newBuffer(t, c, uint64(8*keys)), newBuffer(t, c, uint64(8*keys))
		plan, err := op.PlanFor(a)
		require.NoError(t, err)
		require.Equal(t, keys > 70, plan.Splits > 1, "%d keys", keys)
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		require.NoError(t, s.Wait(background(t)))
		require.NoError(t, forwardError.err)
		l := s.Peer().(*link)
		at, err := l.scratch(1 << 16)
		require.NoError(t, err)
		require.NoError(t, l.stream.Fill(at, 0xffffffff, 1<<16))
	}

	f.launches()
	far := fakeCall(t, c, attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 1}, 64)
	far.KScale.Buffer, far.VScale.Buffer = newBuffer(t, c, 8), newBuffer(t, c, 8)
	far.K.Strides = attention.Strides{Batch: 1 << 32, Head: 64, Seq: 1 << 32}
	require.ErrorIs(t, op.Forward(attention.OnStream(s), far), attention.ErrUnsupported)
	// A launch refuses it too, of whatever plan it is.
	choice, err := tier{}.Choose(c.dev, problem.CUDAProblem{Shape: far.Shape, HeadDim: 64, HeadDimV: 64, Align: 8, KV: attention.KVInt8, Rows: 1})
	require.NoError(t, err)
	call := problem.CUDACall{Shape: far.Shape, HeadDim: 64, Decode: problem.CUDADecode{KV: attention.KVInt8, UnitBytes: 1}}
	for i, x := range []attention.Tensor{far.Q, far.K, far.V, far.O} {
		call.Tensors[i] = problem.CUDATensor{CUDAVector: problem.CUDAVector{Buffer: x.Buffer}, Batch: x.Strides.Batch, Head: 64, Row: x.Strides.Seq}
	}
	err = choice.Kernel.Launch(s, &call)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "strides of 4294967296 bytes between rows")
	require.Empty(t, f.launches())
}

// The whole way: tier scalar writes O and LSE, the kernels of tier cuda make gradients of
// them, Vulkan downloads those, and they are right.
func TestBackwardTakesItsTurn(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	f.backward(fakeBackwardKernels())
	s := newVulkanStream(t, c)
	for i, x := range []cases.Case{
		{Name: "grouped", D: 40, Dv: 24, Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 100}, Causal: attention.BottomRight, Layout: cases.BSHD},
		{Name: "packed", D: 16, Dv: 16, Shape: attention.Shape{Hq: 2, Hkv: 1}, Causal: attention.TopLeft, Seqs: []cases.Seq{{ID: 1, Rows: 5, Keys: 80}, {ID: 2, Rows: 66, Keys: 3}},
			PackedQ: true, PackedK: true, LooseQ: true},
		{Name: "window", D: 32, Dv: 32, Shape: attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 130, Sk: 90}, Align: attention.TopLeft, Window: attention.WindowOf(20, 5), Softcap: 3},
	} {
		t.Run(x.Name, func(t *testing.T) {
			dtype := attention.DTypes()[i]
			e := newEmulator(t, dtype.String())
			emulated.Lock()
			emulated.e, emulated.err = e, nil
			emulated.Unlock()
			b, err := cases.NewBackward(x, dtype)
			require.NoError(t, err)
			f.launches()
			after := gradientsByCUDA(t, c, s, "ref", b, b.Image)
			emulated.Lock()
			require.NoError(t, emulated.err)
			emulated.Unlock()
			require.NoError(t, b.BackwardTrespass(b.Image, after))
			require.NoError(t, b.BackwardJudge(after))
			lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
			require.Len(t, lines, 3)
			for i, step := range []string{"stats", "dq", "dkdv"} {
				require.Contains(t, lines[i], "attn_ref_"+dtype.String()+"_backward_"+step+" grid ")
			}
			spoiled := b.BackwardSpoiled()
			again := gradientsByCUDA(t, c, s, "ref", b, spoiled)
			require.NoError(t, b.BackwardTrespass(spoiled, again))
			require.NoError(t, b.BackwardSame(after, again))
		})
	}
}

// A stream keeps one workspace that grows with the calls, and frees it.
func TestBackwardWorkspace(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	before := f.live()
	for _, rows := range []int{100, 200_000, 50, 400_000} {
		a := attention.BackwardArgs{Args: fakeCall(t, c, attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: 3}, 8)}
		a.LSE.Buffer, a.DO.Buffer, a.DQ.Buffer = newBuffer(t, c, uint64(4*rows)), newBuffer(t, c, uint64(16*rows)), newBuffer(t, c, uint64(16*rows))
		plan, err := op.PlanBackwardFor(a)
		require.NoError(t, err)
		require.Equal(t, attention.TierCUDA, plan.Tier)
		require.Equal(t, uint64(16*rows), plan.ScratchBytes)
		require.Len(t, plan.Kernels, 2)
		require.NoError(t, op.Backward(attention.OnStream(s), a))
	}
	require.NoError(t, s.Wait(background(t)))
	require.Greater(t, f.live(), before)
	l := s.Peer().(*link)
	require.NoError(t, s.Close())
	require.NoError(t, c.dev.WaitIdle())
	require.True(t, l.workspace.closed.Load())
	require.Empty(t, l.retired)
}

// A workspace that is too small goes before a larger one comes if the stream is idle, and otherwise with the first call
// that finds the stream idle. Without memory for a larger one an idle stream has none, and the next call works.
func TestWorkspaceOfAnIdleStream(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	_, err := c.Turn(s)
	require.NoError(t, err)
	require.NoError(t, s.Wait(background(t)))
	l := s.Peer().(*link)
	scratch := func(bytes uint64) *Memory {
		t.Helper()
		address, err := l.scratch(bytes)
		require.NoError(t, err)
		require.Equal(t, l.workspace.Address()+counterBytes, address)
		return l.workspace
	}
	small := scratch(4 << 20)
	live := f.live()
	middle := scratch(8 << 20)
	require.True(t, small.closed.Load())
	require.Equal(t, live, f.live())
	f.fail("cuStreamQuery", 600) // not ready
	large := scratch(16 << 20)
	require.False(t, middle.closed.Load())
	require.Equal(t, large, scratch(1))
	require.False(t, middle.closed.Load())
	f.fail("", 0)
	require.Equal(t, large, scratch(1))
	require.True(t, middle.closed.Load())
	require.Equal(t, live, f.live())
	f.fail("cuMemCreate", 2)
	_, err = l.scratch(32 << 20)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)
	require.True(t, large.closed.Load())
	f.fail("", 0)
	scratch(1)
	require.Equal(t, live, f.live())
}

// The kernels of fa3 without options start early, the first of a call and those with options do
// not. An old driver launches all of them plainly.
func TestBackwardStartsEarly(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	const heads, rows = 2, 100
	entry := c.lib.api.cuLaunchKernelEx
	newest := c.lib.version
	for _, x := range []struct {
		name    string
		dim     int
		softcap float32
		change  func()
		want    []string // steps, and whether they start early
	}{
		{"head dim 64", 64, 0, func() {}, []string{"stats", "main early"}},
		{"head dim 128", 128, 0, func() {}, []string{"stats", "main early", "dq early"}},
		{"head dim 256", 256, 0, func() {}, []string{"stats", "main early", "dq early"}},
		{"softcap", 128, 3, func() {}, []string{"stats", "main", "dq"}},
		{"no entry point", 128, 0, func() { c.lib.api.cuLaunchKernelEx = 0 }, []string{"stats", "main", "dq"}},
		{"before CUDA 12.3", 128, 0, func() { c.lib.version = 12020 }, []string{"stats", "main", "dq"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.change()
			defer func() { c.lib.api.cuLaunchKernelEx, c.lib.version = entry, newest }()
			op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: x.dim, Tier: attention.TierCUDA, Kernel: "fa3", Causal: attention.TopLeft, Softcap: x.softcap})
			require.NoError(t, err)
			a := attention.BackwardArgs{Args: fakeCall(t, c, attention.Shape{B: 1, Hq: heads, Sq: rows, Sk: rows}, x.dim)}
			bytes := uint64(2 * heads * rows * x.dim)
			a.LSE.Buffer, a.DO.Buffer, a.DQ.Buffer = newBuffer(t, c, 4*heads*rows), newBuffer(t, c, bytes), newBuffer(t, c, bytes)
			f.launches()
			require.NoError(t, op.Backward(attention.OnStream(s), a))
			require.NoError(t, s.Wait(background(t)))
			lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
			require.Len(t, lines, len(x.want))
			for i, want := range x.want {
				step, early, _ := strings.Cut(want, " ")
				require.Contains(t, lines[i], "_backward_"+step+"_")
				require.Equal(t, early != "", strings.HasSuffix(lines[i], " early"), lines[i])
			}
			require.NoError(t, op.Close())
		})
	}
}

// Above head dim 128 the kernels after the statistics run in turns, for as many units of work as the bytes for dS hold: parts
// of a head here. The main kernel starts early in the first turn only: it takes the memory of dS of the turn before. That of dQ always does. A call
// without dQ stores no dS and takes one turn.
func TestBackwardLaunchesInTurns(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	const heads, rows, keys, dim, ofUnit = 2, 100, 300, 256, 2 * 2 * 64 * 64
	for i := range c.table.backward {
		if k := &c.table.backward[i]; k.DSBytes > 0 {
			before := k.DSBytes
			t.Cleanup(func() { k.DSBytes = before })
			k.DSBytes = 3*ofUnit - 1
		}
	}
	call := func(dQ bool) attention.BackwardArgs {
		a := attention.BackwardArgs{Args: fakeCall(t, c, attention.Shape{B: 1, Hq: heads, Sq: rows, Sk: keys}, dim)}
		a.LSE.Buffer, a.DO.Buffer, a.DK.Buffer = newBuffer(t, c, 4*heads*rows), newBuffer(t, c, 2*heads*rows*dim), newBuffer(t, c, 2*heads*keys*dim)
		if dQ {
			a.DQ.Buffer = newBuffer(t, c, 2*heads*rows*dim)
		}
		return a
	}
	launched := func(op *attention.Op, a attention.BackwardArgs) (lines []string) {
		f.launches()
		require.NoError(t, op.Backward(attention.OnStream(s), a))
		require.NoError(t, s.Wait(background(t)))
		for line := range strings.Lines(f.launches()) {
			_, step, _ := strings.Cut(strings.TrimSpace(line), "_backward_")
			name, _, _ := strings.Cut(step, "_")
			_, first, _ := strings.Cut(step, " first ")
			lines = append(lines, name+" "+first)
		}
		return lines
	}
	for softcap, early := range map[float32]string{0: " early", 3: ""} {
		op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: dim, Tier: attention.TierCUDA, Kernel: "fa3", Softcap: softcap})
		require.NoError(t, err)
		both, keysOnly := call(true), call(false)
		require.Equal(t, []string{"stats 0", "main 0" + early, "dq 0" + early, "main 2", "dq 2" + early, "main 4", "dq 4" + early, "main 6", "dq 6" + early,
			"main 8", "dq 8" + early}, launched(op, both))
		require.Equal(t, []string{"stats 0", "main 0" + early}, launched(op, keysOnly))
		const blocks = heads * 2
		const stats = 4 * (32 + 4*blocks + 3*64*blocks)
		plan, err := op.PlanBackwardFor(both)
		require.NoError(t, err)
		require.Equal(t, uint64(stats+4*32+2*ofUnit+4*64*blocks*dim), plan.ScratchBytes)
		plan, err = op.PlanBackwardFor(keysOnly)
		require.NoError(t, err)
		require.Equal(t, uint64(stats+4*32), plan.ScratchBytes)
		// A turn that fails says so, and the next call begins with the first.
		f.fail("cuLaunchKernel"+map[bool]string{true: "Ex"}[early != ""], 1)
		require.ErrorContains(t, op.Backward(attention.OnStream(s), both), "attn_fa3_f16_d256_backward_")
		f.fail("", 0)
		require.Len(t, launched(op, both), 11)
		require.NoError(t, op.Close())
	}
}

// Errors name the options that the kernels do not support.
func TestBackwardRefusals(t *testing.T) {
	_, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	a := attention.BackwardArgs{Args: fakeCall(t, c, attention.Shape{B: 1, Hq: 2, Sq: 4, Sk: 4}, 8)}
	a.LSE.Buffer, a.DO.Buffer, a.DQ.Buffer = newBuffer(t, c, 64), newBuffer(t, c, 256), newBuffer(t, c, 256)
	vector := attention.Vector{Buffer: newBuffer(t, c, 256)}
	for name, x := range map[string]struct {
		kernel string
		change func(*attention.BackwardArgs)
		want   string
	}{
		"fa3":   {"fa3", func(a *attention.BackwardArgs) { a.Sinks = vector }, "its backward kernels take no sinks"},
		"sinks": {"ref", func(a *attention.BackwardArgs) { a.Sinks = vector }, "its backward kernels take no sinks"},
		"bias": {"ref", func(a *attention.BackwardArgs) {
			a.Bias = &attention.Bias{Tensor: attention.Tensor{Buffer: vector.Buffer}}
		}, "no bias"},
		"mask": {"ref", func(a *attention.BackwardArgs) {
			a.Mask = &attention.Mask{Tensor: attention.Tensor{Buffer: vector.Buffer}}
		}, "no mask"},
		"out of reach": {"ref", func(a *attention.BackwardArgs) {
			b, err := c.dev.NewBuffer(256, vk.BufferOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			a.DQ.Buffer = b
		}, "CUDA does not reach the buffer (made without Exportable?) of DQ"},
	} {
		t.Run(name, func(t *testing.T) {
			op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: x.kernel})
			require.NoError(t, err)
			a := a
			if x.change != nil {
				x.change(&a)
			}
			err = op.Backward(attention.OnStream(s), a)
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorContains(t, err, x.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	require.ErrorContains(t, op.RecordBackward(s.Commands, a), "use Backward")
}

// A driver that fails says so, and the next call works.
func TestBackwardFailures(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	a := attention.BackwardArgs{Args: fakeCall(t, c, attention.Shape{B: 1, Hq: 2, Sq: 4, Sk: 4}, 8)}
	a.LSE.Buffer, a.DO.Buffer, a.DQ.Buffer = newBuffer(t, c, 64), newBuffer(t, c, 256), newBuffer(t, c, 256)
	f.fail("cuModuleLoadDataEx", 1)
	require.Error(t, op.Backward(attention.OnStream(s), a))
	f.fail("cuMemCreate", 2)
	require.ErrorIs(t, op.Backward(attention.OnStream(s), a), vk.ErrOutOfMemory)
	f.fail("cuLaunchKernel", 1)
	require.ErrorContains(t, op.Backward(attention.OnStream(s), a), "attn_ref_f16_backward_stats")
	f.fail("", 0)
	require.NoError(t, op.Backward(attention.OnStream(s), a))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, s.Close())
	require.NoError(t, op.Close())
}
