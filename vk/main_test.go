package vk

import (
	"context"
	"embed"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/*.spv
var kernels embed.FS

func kernel(t testing.TB, name string) []byte {
	t.Helper()
	code, err := kernels.ReadFile("testdata/" + name + ".spv")
	require.NoError(t, err)
	return code
}

// needDriver skips without any Vulkan device, unless VKATTN_DRIVER says that there
// has to be one.
func needDriver(t testing.TB) {
	t.Helper()
	if _, err := Devices(); err != nil {
		if driver := os.Getenv("VKATTN_DRIVER"); driver != "" && driver != "none" {
			t.Fatalf("VKATTN_DRIVER=%s, and: %v", driver, err)
		}
		t.Skipf("no Vulkan device: %v", err)
	}
}

// needExecution skips on drivers that compile pipelines and run nothing.
func needExecution(t testing.TB) {
	t.Helper()
	needDriver(t)
	if nullDevice() {
		t.Skip("a null device: it compiles pipelines, and has neither memory nor execution")
	}
}

func nullDevice() bool { return os.Getenv("VKATTN_NULL_DEVICE") != "" }

// openTest opens a device with validation where the layer is there, fails the test
// for any message, and closes it.
func openTest(t testing.TB, change ...func(*Options)) *Device {
	t.Helper()
	needDriver(t)
	o := Options{Validation: true, Timeout: 10 * time.Minute, OnMessage: func(m Message) { t.Errorf("validation: %v", m) },
		PipelineCache: filepath.Join(t.TempDir(), "pipelines")}
	for _, f := range change {
		f(&o)
	}
	d, err := Open(o)
	if err != nil && strings.Contains(err.Error(), "VK_LAYER_KHRONOS_validation") {
		if os.Getenv("VKATTN_VALIDATION") == "1" {
			t.Fatal(err)
		}
		o.Validation, o.SyncValidation = false, false
		d, err = Open(o)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func openExecuting(t testing.TB, change ...func(*Options)) *Device {
	t.Helper()
	needExecution(t)
	return openTest(t, change...)
}

func newStream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream(t.Name())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newBuffer(t testing.TB, d *Device, size uint64, kind MemoryKind) *Buffer {
	t.Helper()
	b, err := d.NewBuffer(size, BufferOptions{Memory: kind, Name: t.Name()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func newTimeline(t testing.TB, d *Device) *Timeline {
	t.Helper()
	timeline, err := d.NewTimeline(false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, timeline.Close()) })
	return timeline
}

func submit(t testing.TB, s *Stream) uint64 {
	t.Helper()
	value, err := s.Submit()
	require.NoError(t, err)
	return value
}

func replay(t testing.TB, s *Stream, r *Recording) uint64 {
	t.Helper()
	value, err := s.Replay(r)
	require.NoError(t, err)
	return value
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

const testLocal = 64

// saxpy describes y = a*x + add.
func saxpy(t testing.TB, add uint32) *PipelineDesc {
	return &PipelineDesc{Name: "saxpy", Code: kernel(t, "saxpy"), PushBytes: 8, StorageBuffers: 2,
		LocalSize: [3]uint32{testLocal, 1, 1}, Constants: []SpecConstant{{0, testLocal}, {1, add}}}
}

func saxpyAddress(t testing.TB, add uint32) *PipelineDesc {
	d := saxpy(t, add)
	d.Name, d.Code, d.PushBytes, d.StorageBuffers = "saxpy by address", kernel(t, "saxpy_address"), 24, 0
	return d
}

func newPipeline(t testing.TB, d *Device, desc *PipelineDesc) *Pipeline {
	t.Helper()
	p, err := d.Pipeline(desc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// push packs 32-bit numbers.
func push(v ...uint32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func words(v []byte) []uint32 {
	w := make([]uint32, len(v)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(v[4*i:])
	}
	return w
}

func groups(n uint32) [3]uint32 { return [3]uint32{(n + testLocal - 1) / testLocal, 1, 1} }

// patience is longer than any wait that ends.
const patience = 10 * time.Minute

func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// polled is a context that a wait asks again and again. It tells when the wait has asked it twice, so that it
// is under way, and may be over after some more.
type polled struct {
	context.Context
	over  bool
	waits chan struct{}
	asked atomic.Int32
}

func newPolled(over bool) *polled {
	return &polled{Context: context.Background(), over: over, waits: make(chan struct{})}
}

func (c *polled) Err() error {
	n := c.asked.Add(1)
	if n == 2 {
		close(c.waits)
	}
	if c.over && n > 5 {
		return context.DeadlineExceeded
	}
	return nil
}

// late does f, but not soon: others that are ready come first.
func late(f func()) func() {
	return func() {
		for range 1000 {
			runtime.Gosched()
		}
		f()
	}
}
