//go:build !windows

package cudapath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// graphs are the functions of the driver with which a program captures a stream: the tests are that program.
type graphs struct {
	c           *Context
	push        func(context uint64) int32
	pop         func(context *uint64) int32
	begin       func(stream uint64, mode int32) int32
	end         func(stream uint64, graph *uint64) int32
	instantiate func(exec *uint64, graph, flags uint64) int32
	launch      func(exec, stream uint64) int32
	destroyExec func(exec uint64) int32
	destroy     func(graph uint64) int32
}

func newGraphs(t testing.TB, c *Context) *graphs {
	t.Helper()
	lib, err := purego.Dlopen(cmp.Or(os.Getenv(LibraryEnv), DefaultLibrary), purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	g := &graphs{c: c}
	for name, function := range map[string]any{"cuCtxPushCurrent_v2": &g.push, "cuCtxPopCurrent_v2": &g.pop, "cuStreamBeginCapture_v2": &g.begin,
		"cuStreamEndCapture": &g.end, "cuGraphInstantiateWithFlags": &g.instantiate, "cuGraphLaunch": &g.launch,
		"cuGraphExecDestroy": &g.destroyExec, "cuGraphDestroy": &g.destroy} {
		purego.RegisterLibFunc(function, lib, name)
	}
	return g
}

// in calls f on a thread whose context is the device's.
func (g *graphs) in(t testing.TB, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.Zero(t, g.push(g.c.Handle()))
	defer func() { require.Zero(t, g.pop(new(uint64))) }()
	f()
}

// capture records what f does on the stream into a graph and returns what launches it on the stream.
func (g *graphs) capture(t testing.TB, stream uint64, f func()) (launch func()) {
	t.Helper()
	runtime.LockOSThread() // a capture ends on the thread on which it began
	defer runtime.UnlockOSThread()
	var exec uint64
	g.in(t, func() {
		require.Zero(t, g.begin(stream, 0)) // CU_STREAM_CAPTURE_MODE_GLOBAL: no call of the process allocates or waits
	})
	f()
	g.in(t, func() {
		var graph uint64
		require.Zero(t, g.end(stream, &graph), "the capture went on")
		require.Zero(t, g.instantiate(&exec, graph, 0))
		t.Cleanup(func() {
			g.in(t, func() {
				require.Zero(t, g.destroyExec(exec))
				require.Zero(t, g.destroy(graph))
			})
		})
	})
	return func() { g.in(t, func() { require.Zero(t, g.launch(exec, stream)) }) }
}

// bytesOf is the size of a tensor.
func bytesOf(x attention.Tensor) int {
	dtype, _ := x.DType()
	n := dtype.Size()
	for _, size := range x.Shape() {
		n *= size
	}
	return n
}

// replay captures a forward and a backward call and launches the graph with new contents: the bits are those of the calls
// themselves.
func replay(t *testing.T, dev *attention.Device, cfg attention.Config, shape attention.Shape, launches, different int) {
	t.Helper()
	c := ContextOf(dev)
	g := newGraphs(t, c)
	own, err := c.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	op, err := attention.New(dev, cfg)
	require.NoError(t, err)
	a := problemOn(t, dev, cfg.DType, shape, cfg.HeadDim)
	require.NoError(t, dev.Wait(background(t)))
	calls := func() {
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, op.Backward(s, a))
	}
	outputs := []attention.Tensor{a.O, a.LSE, a.DQ, a.DK, a.DV}
	results := func() (all [][]byte) {
		require.NoError(t, s.Wait(background(t)))
		for _, x := range outputs {
			b, err := x.Bytes(background(t))
			require.NoError(t, err)
			all = append(all, b)
		}
		return all
	}
	calls() // the first of the shape loads and allocates
	results()
	launch := g.capture(t, own.Handle(), calls)
	inputs := []attention.Tensor{a.Q, a.K, a.V, a.DO}
	var drawn [][][]byte
	for i := range different {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		var all [][]byte
		for _, x := range inputs {
			fillTensor(t, x, r)
			b, err := x.Bytes(background(t))
			require.NoError(t, err)
			all = append(all, b)
		}
		drawn = append(drawn, all)
	}
	contents := func(i int) {
		for j, x := range inputs {
			require.NoError(t, x.SetBytes(drawn[i][j]))
		}
		for _, x := range outputs {
			require.NoError(t, x.SetBytes(bytes.Repeat([]byte{0xff}, bytesOf(x))))
		}
		require.NoError(t, dev.Wait(background(t)))
	}
	var want [][][]byte
	for i := range different {
		contents(i)
		calls()
		want = append(want, results())
	}
	require.NotEqual(t, want[0], want[1])
	for i := range launches {
		contents(i % different)
		launch()
		got := results()
		for j := range got {
			require.Equal(t, want[i%different][j], got[j], "launch %d, output %d", i, j)
		}
	}
	closeAll(t, &a)
	require.NoError(t, op.Close())
}

// A captured stream computes what its calls would, in graphs that are launched again and again.
func TestDeviceGraph(t *testing.T) {
	_, dev := openFake(t)
	useEmulator(t, attention.F16)
	replay(t, dev, attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "ref", Causal: attention.TopLeft}, attention.Shape{B: 1, Hq: 2, Sq: 5, Sk: 5}, 20, 3)
	require.NoError(t, emulated.err)
}

// replayOutputs captures a call with a state of dropout in memory and launches the graph: each launch has the mask of what the state is
// then, and the largest score of each head.
func replayOutputs(t *testing.T, dev *attention.Device, dtype attention.DType, shape attention.Shape, launches int) {
	t.Helper()
	c := ContextOf(dev)
	g := newGraphs(t, c)
	own, err := c.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	cfg := attention.Config{DType: dtype, HeadDim: 64, Dropout: 0.3, Causal: attention.BottomRight}
	op, err := attention.New(dev, cfg)
	require.NoError(t, err)
	a := problemOn(t, dev, dtype, shape, cfg.HeadDim)
	state, err := dev.Tensor(attention.F32, 4)
	require.NoError(t, err)
	logits, err := dev.Tensor(attention.F32, shape.Hq)
	require.NoError(t, err)
	a.DropoutState, a.MaxLogits = attention.Vector{Memory: state.Memory}, attention.Vector{Memory: logits.Memory}
	a.DropoutSeed, a.DropoutOffset = 9, 1<<32-2
	host := attention.Args{Shape: shape}
	for _, x := range []struct{ to, from *attention.Tensor }{{&host.Q, &a.Q}, {&host.K, &a.K}, {&host.V, &a.V}} {
		x.to.Host, err = x.from.Bytes(background(t))
		require.NoError(t, err)
	}
	want, err := attention.ReferenceMaxLogits(cfg, host)
	require.NoError(t, err)
	results := func() (all [][]byte) {
		require.NoError(t, s.Wait(background(t)))
		for _, x := range []attention.Tensor{a.O, a.LSE, logits} {
			b, err := x.Bytes(background(t))
			require.NoError(t, err)
			all = append(all, b)
			require.NoError(t, x.SetBytes(bytes.Repeat([]byte{0x7f}, len(b))))
		}
		require.NoError(t, dev.Wait(background(t)))
		return all
	}
	require.NoError(t, op.Forward(s, a.Args)) // loads the kernel
	results()
	launch := g.capture(t, own.Handle(), func() { require.NoError(t, op.Forward(s, a.Args)) })
	var before []byte
	for i := range launches {
		seed, offset := uint64(i)*0x9e3779b97f4a7c15, uint64(i%4)<<33|uint64(i)
		require.NoError(t, state.SetBytes(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, seed), offset)))
		require.NoError(t, dev.Wait(background(t)))
		launch()
		got := results()
		require.NotEqual(t, before, got[0], "launch %d", i)
		before = got[0]
		plain := a.Args
		m := dropout.Mask{Seed: a.DropoutSeed, Offset: a.DropoutOffset}.Moved(seed, offset)
		plain.DropoutState, plain.DropoutSeed, plain.DropoutOffset = attention.Vector{}, m.Seed, m.Offset
		require.NoError(t, op.Forward(s, plain))
		require.Equal(t, results(), got, "launch %d", i)
		for h, x := range want {
			require.InDelta(t, x, math.Float32frombits(binary.LittleEndian.Uint32(got[2][4*h:])), 1e-4*(1+math.Abs(x)), "head %d", h)
		}
	}
	none := a.Args
	none.B, none.LSE = 0, attention.Tensor{}
	for _, x := range []*attention.Tensor{&none.Q, &none.K, &none.V, &none.O} {
		*x = attention.Tensor{Memory: x.Memory}
	}
	require.NoError(t, op.Forward(s, none))
	for _, word := range results()[2] {
		require.Contains(t, []byte{0, 0x80, 0xff}, word)
	}
	closeAll(t, &a)
	require.NoError(t, op.Close())
}

func TestDeviceGraphDrawsMasks(t *testing.T) {
	f, dev := openFake(t)
	f.launches()
	replayOutputs(t, dev, attention.F16, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 40, Sk: 100}, 4)
	require.Contains(t, f.launches(), "_general_slots")
	require.NoError(t, forwardError.err)
}

// A call that would end a capture is refused before it does, and Prepare makes it one that does not.
func TestDeviceCaptureRefuses(t *testing.T) {
	_, dev := openFake(t)
	useEmulator(t, attention.F16)
	c := ContextOf(dev)
	g := newGraphs(t, c)
	own, err := c.NewStream()
	require.NoError(t, err)
	s, err := WrapStream(dev, own.Handle())
	require.NoError(t, err)
	shape := attention.Shape{B: 1, Hq: 1, Sq: 5, Sk: 5}
	a, larger := problemOn(t, dev, attention.F16, shape, 16), problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 70, Sk: 5}, 16)
	require.NoError(t, dev.Wait(background(t)))
	op, err := attention.New(dev, attention.Config{HeadDim: 16, Tier: attention.TierCUDA, Kernel: "ref"})
	require.NoError(t, err)
	refused := func(err error, text string) {
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.ErrorContains(t, err, text)
	}
	g.capture(t, own.Handle(), func() {
		refused(op.Forward(s, a.Args), "the stream is being captured into a CUDA graph, and the call loads the kernel")
		refused(op.Backward(s, a), "the call loads the kernel")
		refused(s.Wait(background(t)), "it waits")
		refused(UseWorkspace(s, a.Q.Memory), "it changes the workspace")
	})
	require.NoError(t, op.Prepare(shape))
	require.NoError(t, op.Prepare(larger.Shape))
	require.NoError(t, op.PrepareBackward(shape))
	g.capture(t, own.Handle(), func() {
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, op.Backward(s, a))
		require.NoError(t, op.Forward(s, larger.Args))
		refused(op.Backward(s, larger), "the call allocates a workspace of 1.1 KiB")
	})
	require.NoError(t, op.PrepareBackward(larger.Shape))
	g.capture(t, own.Handle(), func() {
		require.NoError(t, op.Backward(s, larger))
		require.NoError(t, op.Backward(s, a))
	})
	w := &problemStream(s).workspace
	require.Len(t, w.retired, 1, "a graph has it")

	// With memory of the caller's nothing is allocated.
	plan, err := op.PlanBackwardFor(larger)
	require.NoError(t, err)
	space, err := dev.Tensor(attention.F32, int(plan.ScratchBytes/4))
	require.NoError(t, err)
	require.NoError(t, UseWorkspace(s, space.Memory))
	require.Empty(t, w.retired)
	require.NoError(t, op.Backward(s, larger))
	small, err := dev.Tensor(attention.F32, 4)
	require.NoError(t, err)
	require.NoError(t, UseWorkspace(s, small.Memory))
	err = op.Backward(s, larger)
	require.ErrorIs(t, err, vk.ErrInvalid)
	require.ErrorContains(t, err, "the call needs a workspace of 1.1 KiB, UseWorkspace gave 16 B")
	require.NoError(t, small.Close())
	require.Error(t, UseWorkspace(s, small.Memory))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, s.Close())
	require.NoError(t, emulated.err)
}

// A repeated call allocates nothing.
func TestDeviceCallsAllocateNothing(t *testing.T) {
	f, dev := openFake(t)
	f.forward(0)
	f.backward(0)
	s, err := dev.NewStream("")
	require.NoError(t, err)
	a := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 5, Sk: 5}, 64)
	d, err := of("", dev)
	require.NoError(t, err)
	op, err := d.Attention(problem.Config{HeadDim: 64})
	require.NoError(t, err)
	general, err := d.Attention(problem.Config{HeadDim: 64, Softcap: 5, Causal: attention.TopLeft, Window: attention.WindowOf(3, 0)})
	require.NoError(t, err)
	on := problemStream(s)
	long := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 1, Sk: 3000}, 64)
	slow := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 1, Sq: 100, Sk: 5}, 64)
	for name, call := range map[string]func() error{"forward": func() error { return op.Forward(on, a.Args) },
		"split decode": func() error { return op.Forward(on, long.Args) }, "row blocks": func() error { return op.Forward(on, slow.Args) },
		"forward with options": func() error { return general.Forward(on, a.Args) }, "backward": func() error { return op.Backward(on, a) }} {
		require.NoError(t, call())
		live := f.live()
		require.Zero(t, testing.AllocsPerRun(20, func() { err = errors.Join(err, call()) }), name)
		require.NoError(t, err)
		require.Equal(t, live, f.live(), name)
	}
	require.NoError(t, s.Wait(background(t)))
}

func problemStream(s *attention.Stream) *deviceStream {
	return problem.StreamBackingOf(s).(*deviceStream)
}
