//go:build !windows

package vk

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// someCubin is a cubin of package cudapath and a kernel in it.
func someCubin(t testing.TB) (cubin []byte, name string) {
	t.Helper()
	f, err := os.Open("../cudapath/kernels/bin/fa3_f16_d128.sm_90a.cubin.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	cubin, err = io.ReadAll(z)
	require.NoError(t, err)
	return cubin, "attn_fa3_f16_d128_full"
}

// cuobjdump says the same about this cubin: 128 registers, 1024 bytes of shared memory,
// parameters of 3 x 128 and 184 bytes, 512 threads.
func TestCubinDescribesItsKernels(t *testing.T) {
	cubin, name := someCubin(t)
	kernels, err := parseCubin(cubin)
	require.NoError(t, err)
	require.Len(t, kernels, 5, "tiles of three sizes without a mask, of two under one")
	k := kernels[name]
	require.NotNil(t, k)
	assert.Equal(t, cubinKernel{params: []uint32{128, 128, 128, 184}, offsets: []uint32{0, 128, 256, 384}, paramBytes: 568,
		shared: 1024, registers: 128, maxThreads: 512}, *k)
	assert.EqualValues(t, 168, kernels["attn_fa3_f16_d128_causal"].registers)
	assert.EqualValues(t, 384, kernels["attn_fa3_f16_d128_causal"].maxThreads)
	spills := bytes.Clone(cubin)
	frame := []byte{infoWithPayload, infoFrame, 8, 0}
	for at, next := 0, bytes.Index(spills, frame); next >= 0; next = bytes.Index(spills[at:], frame) {
		at += next + len(frame) + 4
		spills[at] = 24
	}
	kernels, err = parseCubin(spills)
	require.NoError(t, err)
	assert.EqualValues(t, 24, kernels[name].local)
}

func TestBytesThatAreNoCubinAreRefused(t *testing.T) {
	cubin, _ := someCubin(t)
	own := readFile(t, os.Args[0])
	for _, b := range [][]byte{nil, []byte("text"), cubin[:1000], cubin[:len(cubin)-2000], own} {
		_, err := parseCubin(b)
		assert.Error(t, err)
	}
}

// A damaged cubin gives an error or a description, and no panic.
func FuzzCubin(f *testing.F) {
	cubin, _ := someCubin(f)
	f.Add(uint32(0), byte(0))
	f.Add(uint32(0xae8), byte(200))
	f.Fuzz(func(t *testing.T, at uint32, value byte) {
		b := bytes.Clone(cubin)
		b[int(at)%len(b)] = value
		_, _ = parseCubin(b)
	})
}

func TestDevicesWithoutBinaryImportRefuseCubins(t *testing.T) {
	d := openTest(t)
	if d.Caps().BinaryImport {
		t.Skip("the device launches cubins")
	}
	cubin, _ := someCubin(t)
	_, err := d.NewCubin("some", cubin)
	require.ErrorIs(t, err, ErrNoBinaryImport)
	require.ErrorIs(t, err, ErrUnsupported)
}

// newFakeImport puts a loader that adds VK_NVX_binary_import in front of the driver under
// test, until the test ends.
func newFakeImport(t *testing.T) *importRecord {
	t.Helper()
	needDriver(t)
	lib := newFrontLoader(t, "fake_binary_import.c")
	var record func() *importRecord
	var sizes func() *[64]uint32
	purego.RegisterLibFunc(&record, lib, "fake_record")
	purego.RegisterLibFunc(&sizes, lib, "fake_sizes")
	copy(sizes()[:], []uint32{128, 128, 128, 184}) // of someCubin's kernel
	return record()
}

// importRecord mirrors struct record of testdata/fake_binary_import.c.
type importRecord struct {
	enabled, modules, functions, launches, wideBeforeLaunch, orderErrors int64
	grid, block                                                          [3]uint32
	shared, count                                                        uint32
	function                                                             uint64
	params                                                               [4096]byte
	fail, _, wide                                                        int64
}

// An observer sees launches as it sees dispatches.
func TestObserveTimesEveryLaunch(t *testing.T) {
	needExecution(t)
	newFakeImport(t)
	d := openTest(t)
	cubin, name := someCubin(t)
	m, err := d.NewCubin("some", cubin)
	require.NoError(t, err)
	defer m.Close()
	f, err := m.Function(name)
	require.NoError(t, err)
	defer f.Close()
	params, good := make([]byte, f.ParamBytes()), CubinLaunch{Grid: [3]uint32{132, 2, 3}, Block: [3]uint32{512, 1, 1}, SharedBytes: 4096}
	if d.Caps().Limits.TimestampValidBits == 0 {
		t.Skip("the queue has no timestamps")
	}
	o := newStream(t, d)
	var seen []Dispatched
	require.NoError(t, o.Observe(func(d Dispatched) { seen = append(seen, d) }))
	require.NoError(t, o.Launch(f, good, params))
	require.ErrorIs(t, o.Launch(f, good, nil), ErrInvalid, "a refused launch is not seen")
	require.ErrorIs(t, o.Launch(nil, good, params), ErrInvalid)
	require.NoError(t, o.Observe(nil))
	require.NoError(t, o.Launch(f, good, params))
	require.NoError(t, o.Wait(context.Background()))
	require.Len(t, seen, 1)
	one := seen[0]
	require.Nil(t, one.Pipeline)
	require.Same(t, f, one.Function)
	require.Equal(t, name, one.Name)
	require.Equal(t, good.Grid, one.Groups)
	require.Equal(t, good.Block, one.LocalSize)
	require.Equal(t, good.SharedBytes, one.SharedBytes)
	_, err = o.Elapsed(one.Begin, one.End)
	require.NoError(t, err)
	require.EqualValues(t, 128, f.Registers())
	require.EqualValues(t, 1024, f.StaticSharedBytes())
	require.Zero(t, f.LocalBytes())
}

// Modules, functions and launches while the garbage collector runs all the time: the driver
// sees the bytes of each launch.
func TestStressLaunchesUnderGarbageCollection(t *testing.T) {
	needExecution(t)
	r := newFakeImport(t)
	d := openTest(t)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var stop atomic.Bool
	var collector sync.WaitGroup
	collector.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	defer collector.Wait()
	defer stop.Store(true)
	random := rand.New(rand.NewPCG(testlevel.Seed(t), 1))
	s := newStream(t, d)
	cubin, name := someCubin(t)
	for range 30 {
		m, err := d.NewCubin("some", slices.Clone(cubin))
		require.NoError(t, err)
		f, err := m.Function(strings.Clone(name))
		require.NoError(t, err)
		for range 10 {
			buffer, err := d.NewBuffer(64, BufferOptions{})
			require.NoError(t, err)
			params := make([]byte, f.ParamBytes())
			for i := range params {
				params[i] = byte(random.Uint32())
			}
			l := CubinLaunch{Grid: [3]uint32{1 + random.Uint32N(1000), 1 + random.Uint32N(9), 1}, Block: [3]uint32{512, 1, 1}, SharedBytes: random.Uint32N(4096)}
			require.NoError(t, s.Launch(f, l, params, buffer))
			require.Equal(t, params, r.params[:len(params)])
			require.Equal(t, l, CubinLaunch{r.grid, r.block, r.shared})
			require.NoError(t, buffer.Close())
		}
		require.NoError(t, f.Close())
		require.NoError(t, m.Close())
		submit(t, s)
	}
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, s.Barrier()) // reclaims the finished batches
	require.Zero(t, r.functions)
	require.Zero(t, r.modules)
}

// The calls of VK_NVX_binary_import reach a driver as the specification says.
func TestLaunchesReachTheDriver(t *testing.T) {
	needExecution(t)
	r := newFakeImport(t)
	d := openTest(t)
	require.True(t, d.Caps().BinaryImport)
	require.EqualValues(t, 1, r.enabled, "Open enables the extension")
	s := newStream(t, d)
	cubin, name := someCubin(t)
	m, err := d.NewCubin("some", cubin)
	require.NoError(t, err)
	f, err := m.Function(name)
	require.NoError(t, err)
	require.Equal(t, 568, f.ParamBytes())
	require.Equal(t, name, f.Name())
	params := make([]byte, 568)
	for i := range params {
		params[i] = byte(i * 7)
	}
	good := CubinLaunch{Grid: [3]uint32{132, 2, 3}, Block: [3]uint32{512, 1, 1}, SharedBytes: 4096}

	t.Run("limits", func(t *testing.T) {
		bad := func(change func(*CubinLaunch)) {
			t.Helper()
			l := good
			change(&l)
			require.ErrorIs(t, s.Launch(f, l, params), ErrInvalid)
		}
		bad(func(l *CubinLaunch) { l.Grid[0] = 1 << 31 })
		bad(func(l *CubinLaunch) { l.Grid[1] = 65536 })
		bad(func(l *CubinLaunch) { l.Grid[2] = 65536 })
		bad(func(l *CubinLaunch) { l.Block[0] = 0 })
		bad(func(l *CubinLaunch) { l.Block[0] = 513 }) // the kernel's own limit
		bad(func(l *CubinLaunch) { l.Block = [3]uint32{1, 1, 65} })
		bad(func(l *CubinLaunch) { l.SharedBytes = d.Caps().Limits.MaxSharedBytes - 1023 }) // and 1024 static bytes
		bad(func(l *CubinLaunch) { l.SharedBytes = ^uint32(0) })
		require.ErrorIs(t, s.Launch(f, good, params[1:]), ErrInvalid)
		require.ErrorIs(t, s.Launch(f, good, nil), ErrInvalid)
		require.ErrorIs(t, s.Launch(nil, good, params), ErrInvalid)
		require.ErrorIs(t, s.Launch(&CubinFunction{}, good, params), ErrInvalid)
		require.Zero(t, r.launches)
		k := *f.kernel
		k.registers = 129
		require.ErrorIs(t, d.checkLaunch("Launch", &CubinFunction{cubin: m, kernel: &k}, &good, params), ErrInvalid, "registers")
		k.registers = 128
		require.NoError(t, d.checkLaunch("Launch", &CubinFunction{cubin: m, kernel: &k}, &good, params))
		none := good
		none.Grid[1] = 0
		require.NoError(t, s.Launch(f, none, params))
		require.Zero(t, r.launches, "an empty grid")
	})

	t.Run("launch", func(t *testing.T) {
		buffer, err := d.NewBuffer(64, BufferOptions{})
		require.NoError(t, err)
		require.Zero(t, r.wide)
		l := good
		l.SharedBytes = d.Caps().Limits.MaxSharedBytes - 1024
		begin, err := s.Timestamp()
		require.NoError(t, err)
		require.NoError(t, s.Launch(f, l, params, buffer))
		end, err := s.Timestamp()
		require.NoError(t, err)
		require.EqualValues(t, 1, r.launches)
		require.EqualValues(t, 1, r.wideBeforeLaunch, "the first launch follows a barrier of all commands")
		require.Equal(t, l.Grid, r.grid)
		require.Equal(t, l.Block, r.block)
		require.Equal(t, l.SharedBytes, r.shared)
		require.EqualValues(t, 4, r.count)
		require.Equal(t, f.handle, r.function)
		require.Equal(t, params, r.params[:568])
		wide := r.wide
		require.NoError(t, s.Barrier())
		require.Equal(t, wide+1, r.wide, "barriers after a launch cover all commands")

		// Recorded work holds function, module and buffer after Close.
		require.NoError(t, f.Close())
		require.NoError(t, m.Close())
		require.NoError(t, buffer.Close())
		require.EqualValues(t, 1, r.functions)
		require.EqualValues(t, 1, r.modules)
		require.ErrorIs(t, s.Launch(f, good, params), ErrClosed)
		_, err = m.Function(name)
		require.ErrorIs(t, err, ErrClosed)
		submit(t, s)
		require.NoError(t, s.Wait(context.Background()))
		_, _ = begin, end
		require.NoError(t, s.Barrier()) // begins a batch, which reclaims the finished one
		require.Zero(t, r.functions)
		require.Zero(t, r.modules)
		require.Zero(t, r.orderErrors, "a module is destroyed after its functions")
	})

	t.Run("failures", func(t *testing.T) {
		r.fail = int64(ResultOutOfHostMemory)
		_, err := d.NewCubin("some", cubin)
		require.ErrorIs(t, err, ErrOutOfMemory)
		m, err := d.NewCubin("some", cubin)
		require.NoError(t, err)
		r.fail = int64(ResultInitializationFailed)
		_, err = m.Function(name)
		require.ErrorContains(t, err, "VK_ERROR_INITIALIZATION_FAILED")
		_, err = m.Function("other")
		require.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, m.Close())
		require.Zero(t, r.modules)
		_, err = d.NewCubin("text", []byte("text"))
		require.ErrorIs(t, err, ErrInvalid)
	})

	// A wrapped device has the extension if its owner enabled it; closing it destroys what
	// is open.
	t.Run("wrapped", func(t *testing.T) {
		queue, family := d.VulkanQueue()
		e := External{Instance: d.VulkanInstance(), PhysicalDevice: d.VulkanPhysicalDevice(), Device: d.VulkanDevice(),
			Queue: queue, QueueFamily: family, APIVersion: 1<<22 | 2<<12, Enabled: *d.Caps(), PipelineCache: "off"}
		w, err := Wrap(e)
		require.NoError(t, err)
		m, err := w.NewCubin("some", cubin)
		require.NoError(t, err)
		_, err = m.Function(name)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Zero(t, r.functions)
		require.Zero(t, r.modules)
		require.Zero(t, r.orderErrors)
		require.NoError(t, m.Close())

		e.Enabled.BinaryImport = false
		w, err = Wrap(e)
		require.NoError(t, err)
		_, err = w.NewCubin("some", cubin)
		require.ErrorIs(t, err, ErrNoBinaryImport)
		require.NoError(t, w.Close())
	})

	t.Run("allocations", func(t *testing.T) {
		m, err := d.NewCubin("some", cubin)
		require.NoError(t, err)
		defer m.Close()
		f, err := m.Function(name)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, s.Launch(f, good, params))
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if err := s.Launch(f, good, params); err != nil {
				panic(err)
			}
		}))
	})
}
