//go:build !windows

package cudapath

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// reachable skips where the fake cannot map what the Vulkan driver exports.
func reachable(t *testing.T, c *Context) {
	t.Helper()
	b := newBuffer(t, c, 4096)
	if _, err := c.Address(b); err != nil {
		t.Skipf("the memory of this driver is no file: %v", err)
	}
}

// call is a problem on device buffers that hold nothing of interest.
func fakeCall(t *testing.T, c *Context, shape attention.Shape, dim int) attention.Args {
	t.Helper()
	a := attention.Args{Shape: shape}
	q, kv := uint64(shape.B*shape.Hq*shape.Sq*dim*2), uint64(shape.B*shape.KVHeads()*shape.Sk*dim*2)
	a.Q.Buffer, a.O.Buffer = newBuffer(t, c, q), newBuffer(t, c, q)
	a.K.Buffer, a.V.Buffer = newBuffer(t, c, kv), newBuffer(t, c, kv)
	return a
}

func word(t *testing.T, s *vk.Stream, b *vk.Buffer, off uint64) uint32 {
	t.Helper()
	got := make([]byte, 4)
	require.NoError(t, s.Download(background(t), got, b, off))
	return uint32(got[0]) | uint32(got[1])<<8 | uint32(got[2])<<16 | uint32(got[3])<<24
}

// The whole way: Vulkan writes Q, a CUDA kernel makes O of it, Vulkan copies that,
// many times, and nothing is out of order.
func TestForwardTakesItsTurn(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA, Kernel: "fa2"})
	require.NoError(t, err)
	a := fakeCall(t, c, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 130, Sk: 300}, 64)
	a.LSE.Buffer = newBuffer(t, c, 4*4*130)
	results := newBuffer(t, c, 4*50)
	long := newBuffer(t, c, 8<<20)
	for i := range uint64(50) {
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: long}, 0)) // takes its time
		require.NoError(t, s.Barrier())
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.Q.Buffer}, uint32(1000*i)))
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		if i%3 == 0 {
			require.NoError(t, op.Forward(attention.OnStream(s), a)) // twice makes no difference
		}
		require.NoError(t, s.Copy(vk.BufferRange{Buffer: results, Offset: 4 * i, Size: 4}, vk.BufferRange{Buffer: a.O.Buffer, Size: 4}))
	}
	for i := range uint64(50) {
		require.Equal(t, uint32(1000*i+1), word(t, s, results, 4*i))
	}
	require.Equal(t, uint32(0x3fc00000), word(t, s, a.LSE.Buffer, 0), "1.5")
	lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
	require.Len(t, lines, 50+17)
	k, _, err := c.table.choose(&c.info, &problem.CUDAProblem{Shape: a.Shape, HeadDim: 64, HeadDimV: 64, Align: 8, Kernel: "fa2"})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("attn_fa2_f16_d64_full grid %d,4,1 threads %d shared %d b1 hq4 hkv2 sq130 sk300 d64 dv64 off2147483647",
		(130+k.Rows-1)/k.Rows, k.Threads, k.Shared), lines[0])

	gone := 0
	for _, x := range []attention.Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
		_, err := x.Buffer.Attach("gone", func() (vk.Attached, error) { return detached(func() { gone++ }), nil })
		require.NoError(t, err)
	}
	require.NoError(t, op.Forward(attention.OnStream(s), a))
	for _, x := range []attention.Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
		require.NoError(t, x.Buffer.Close())
	}
	require.Zero(t, gone, "held by the work")
	require.NoError(t, s.Wait(background(t)), "which this covers")
	require.Equal(t, 5, gone)
}

type detached func()

func (f detached) Detach() { f() }

// Batches beyond a grid's reach take several launches.
func TestManyBatches(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "fa2", Causal: attention.TopLeft})
	require.NoError(t, err)
	const batches = 70_000
	a := fakeCall(t, c, attention.Shape{B: batches, Hq: 2, Sq: 1, Sk: 1}, 8)
	require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.Q.Buffer}, 5))
	require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.O.Buffer}, 0))
	require.NoError(t, op.Forward(attention.OnStream(s), a))
	require.Equal(t, uint32(6), word(t, s, a.O.Buffer, 0))
	require.Equal(t, uint32(6), word(t, s, a.O.Buffer, maxGridY*2*8*2), "the first of the second launch")
	require.Zero(t, word(t, s, a.O.Buffer, maxGridY*2*8*2-32))
	lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], "attn_fa2_f16_d32_causal grid 1,2,65535 ")
	require.Contains(t, lines[0], " b65535 ")
	require.Contains(t, lines[0], " off0")
	require.Contains(t, lines[1], " grid 1,2,4465 ")
}

// So do heads, with whole groups of query heads in each, or some heads of one group.
func TestManyHeads(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 8, Tier: attention.TierCUDA, Kernel: "fa2", Causal: attention.TopLeft})
	require.NoError(t, err)
	for _, x := range []struct {
		hkv    int
		grids  []string
		second uint64 // first query head of the second launch
	}{{35_000, []string{"1,65534,2", "1,4466,2"}, 65534}, {1, []string{"1,65535,2", "1,4465,2"}, 65535}} {
		before := len(f.launches())
		a := fakeCall(t, c, attention.Shape{B: 2, Hq: 70_000, Hkv: x.hkv, Sq: 1, Sk: 1}, 8)
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.Q.Buffer}, 5))
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.O.Buffer}, 0))
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		require.Equal(t, uint32(6), word(t, s, a.O.Buffer, 0))
		require.Equal(t, uint32(6), word(t, s, a.O.Buffer, x.second*8*2), "the first of the second launch")
		require.Zero(t, word(t, s, a.O.Buffer, x.second*8*2-32))
		lines := strings.Split(strings.TrimSpace(f.launches()[before:]), "\n")
		require.Len(t, lines, 2)
		for i, grid := range x.grids {
			require.Contains(t, lines[i], "attn_fa2_f16_d32_causal grid "+grid+" ")
		}
	}
}

// Kernels with tensor maps run as many blocks as there is room for, and the maps
// are what the driver takes for all layouts.
func TestTensorMaps(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	c.table = testTable(t)
	c.table.files.(fstest.MapFS)["bin/m3.sm_90a.cubin"] = &fstest.MapFile{Data: []byte("\x7fELF")}
	for i := range c.table.kernels {
		if k := &c.table.kernels[i]; k.Family == "fa3" {
			k.Maps = []Map{{"q", [4]uint32{64, 128, 1, 1}, 128}, {"k", [4]uint32{64, 128, 1, 1}, 128}, {"v", [4]uint32{64, 128, 1, 1}, 128}}
		}
	}
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 128, Tier: attention.TierCUDA, Kernel: "fa3"})
	require.NoError(t, err)
	for _, shape := range []attention.Shape{{B: 1, Hq: 1, Sq: 1, Sk: 1}, {B: 2, Hq: 4, Hkv: 1, Sq: 1000, Sk: 77}} {
		a := fakeCall(t, c, shape, 128)
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		a.Q.Strides, a.O.Strides = attention.BSHD(shape.Hq, shape.Sq, 128), attention.BSHD(shape.Hq, shape.Sq, 128)
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		if shape.B == 1 { // no stride of one is ever stepped
			a.K.Strides = attention.Strides{Batch: 1 << 50, Head: 1 << 50, Seq: 0}
			require.NoError(t, op.Forward(attention.OnStream(s), a))
		}
	}
	require.NoError(t, s.Wait(background(t)))
	lines := strings.Split(strings.TrimSpace(f.launches()), "\n")
	require.Contains(t, lines[0], "fa3_false grid 1,1,1 threads 384 shared 200000 ")
	require.Contains(t, lines[3], "fa3_false grid 20,1,1 ", "10 multiprocessors with 2 blocks each; there are 64 tiles")
	require.Len(t, lines, 5)
}

// Many goroutines, each with a stream of its own, share the context and a kernel.
func TestManyGoroutines(t *testing.T) {
	_, c := withFake(t)
	reachable(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA})
	require.NoError(t, err)
	type worker struct {
		s *vk.Stream
		a attention.Args
	}
	var workers []worker
	for range 8 {
		workers = append(workers, worker{newVulkanStream(t, c), fakeCall(t, c, attention.Shape{B: 1, Hq: 1, Sq: 4, Sk: 4}, 64)})
	}
	var wg sync.WaitGroup
	for n, w := range workers {
		wg.Go(func() {
			for i := range uint32(10) {
				want := uint32(n)<<16 + i
				if !assert.NoError(t, w.s.Fill(vk.BufferRange{Buffer: w.a.Q.Buffer}, want)) ||
					!assert.NoError(t, op.Forward(attention.OnStream(w.s), w.a)) {
					return
				}
				got := make([]byte, 4)
				assert.NoError(t, w.s.Download(t.Context(), got, w.a.O.Buffer, 0))
				assert.Equal(t, want+1, uint32(got[0])|uint32(got[1])<<8|uint32(got[2])<<16|uint32(got[3])<<24)
			}
		})
	}
	wg.Wait()
}

// A wait asks some hundred times.
func TestPollAllocatesNothing(t *testing.T) {
	f, c := withFake(t)
	s, err := c.NewStream()
	require.NoError(t, err)
	f.fail("cuStreamQuery", cudaNotReady)
	defer f.fail("", 0)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if done, err := s.poll("Poll", 100*time.Microsecond); done || err != nil {
			t.Error(done, err)
		}
	}))
}

// Other goroutines may ask a stream while it is closed: the driver is not asked for one that is destroyed.
func TestQueryWhileTheStreamCloses(t *testing.T) {
	f, c := withFake(t)
	vulkan, err := c.dev.NewStream("")
	require.NoError(t, err)
	l, err := c.link(vulkan)
	require.NoError(t, err)
	own, err := c.NewStream()
	require.NoError(t, err)
	for name, x := range map[string]struct {
		query func() (bool, error)
		close func() error
	}{
		"a stream":           {own.Query, own.Close},
		"of a Vulkan stream": {func() (bool, error) { return l.Poll(0) }, func() error { l.Close(); return nil }},
	} {
		var wg sync.WaitGroup
		f.hold("cuStreamQuery")
		wg.Go(func() {
			finished, err := x.query()
			assert.NoError(t, err, name)
			assert.True(t, finished, name)
		})
		f.await()
		wg.Go(func() { assert.NoError(t, x.close()) }) // it waits for the query
		for range 1000 {
			runtime.Gosched()
		}
		f.hold("")
		wg.Wait()
		_, err = x.query()
		require.ErrorIs(t, err, vk.ErrClosed, name)
	}
	require.NoError(t, vulkan.Close())
}

// Memory may be closed while another goroutine exports it: it is freed afterwards.
func TestExportWhileTheMemoryCloses(t *testing.T) {
	f, c := withFake(t)
	m, err := c.Alloc(4096)
	require.NoError(t, err)
	live := f.live()
	f.hold("cuMemExportToShareableHandle")
	var wg sync.WaitGroup
	wg.Go(func() {
		fd, err := m.ExportFD()
		assert.NoError(t, err)
		assert.NoError(t, syscall.Close(fd))
	})
	f.await()
	require.NoError(t, m.Close())
	require.Equal(t, live, f.live(), "while it is exported")
	f.hold("")
	wg.Wait()
	require.Less(t, f.live(), live)
	_, err = m.ExportFD()
	require.ErrorIs(t, err, vk.ErrClosed)
}

// The driver's descriptor is inherited by programs; the one that ExportFD returns is not.
func TestExportedMemoryClosesOnExec(t *testing.T) {
	_, c := withFake(t)
	m, err := c.Alloc(4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	fd, err := m.ExportFD()
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Close(fd)) }()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
}

// CUDA work that never ends does not keep the device from closing, and nothing that it uses is destroyed.
func TestTheDeviceClosesWhileCUDAHangs(t *testing.T) {
	f, c := withFake(t, func(o *vk.Options) { o.Timeout = 50 * time.Millisecond })
	other, err := vk.Open(vk.Options{PipelineCache: "off"})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	gate, err := other.NewTimeline(false)
	require.NoError(t, err)
	never, err := c.ImportTimeline(gate)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.WaitFor(never, 1))
	live := f.live()
	closed := make(chan error, 1)
	go func() { closed <- c.dev.Close() }()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, vk.ErrTimeout)
	case <-time.After(10 * time.Minute):
		t.Error("Close waits for CUDA")
	}
	require.Equal(t, live, f.live())
	_, err = c.NewStream()
	require.ErrorIs(t, err, vk.ErrClosed)
	require.NoError(t, s.Close())
	require.NoError(t, gate.Signal(1))
}

// A time that the driver cannot mean is none.
func TestImpossibleEventTimesAreRefused(t *testing.T) {
	_, c := withFake(t)
	s, err := c.NewStream()
	require.NoError(t, err)
	var events [2]*Event
	for i := range events {
		events[i], err = c.NewEvent()
		require.NoError(t, err)
		require.NoError(t, s.Record(events[i]))
	}
	require.NoError(t, s.Wait(context.Background()))
	function := &c.lib.api.cuEventElapsedTime
	defer func(was uintptr) { *function = was }(*function)
	var ms float32
	*function = purego.NewCallback(func(out *float32, _, _ uintptr) uintptr { *out = ms; return 0 })
	for _, ms = range []float32{-1, float32(math.NaN()), float32(math.Inf(1)), 1e30} {
		_, err := events[1].Since(events[0])
		require.ErrorIs(t, err, vk.ErrTimestamps, ms)
	}
	ms = 1.5
	took, err := events[1].Since(events[0])
	require.NoError(t, err)
	require.Equal(t, 1500*time.Microsecond, took)
}

// A kernel may be chosen while the device closes.
func TestChooseWhileTheDeviceCloses(t *testing.T) {
	_, c := withFake(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range c.table.kernels {
			require.NotNil(t, c.kernelOf(&c.table.kernels[i]))
		}
	})
	require.NoError(t, c.dev.Close())
	wg.Wait()
}
