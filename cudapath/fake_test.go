//go:build !windows

package cudapath

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// fake is testdata/fakecuda.c, loaded.
type fake struct {
	path     string
	device   func(uuid *byte, compute, driver int32)
	timeline func(callback uintptr)
	forward  func(callback uintptr) // runs forward kernels
	backward func(callback uintptr) // runs backward kernels
	fail     func(name string, code int32)
	die      func(code int32)
	live     func() int32
	hold     func(name string)
	await    func()
	launches func() string
}

var compileFake = sync.OnceValues(func() (code []byte, err error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fakecuda")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "fake.so")
	if text, err := exec.Command(compiler, "-shared", "-fPIC", "-pthread", "-o", file, "testdata/fakecuda.c", "-lm").CombinedOutput(); err != nil {
		return nil, &Error{Op: "compile testdata/fakecuda.c", Detail: string(text), Err: err}
	}
	return os.ReadFile(file)
})

// newFake loads a driver of the test's own: a library of another name is another one.
func newFake(t testing.TB) *fake {
	t.Helper()
	code, err := compileFake()
	if _, missing := exec.LookPath("cc"); missing != nil {
		t.Skipf("no compiler for the fake driver: %v", err)
	}
	require.NoError(t, err)
	f := &fake{path: filepath.Join(t.TempDir(), "libfakecuda.so")}
	require.NoError(t, os.WriteFile(f.path, code, 0o755))
	lib, err := purego.Dlopen(f.path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	for name, function := range map[string]any{"fake_device": &f.device, "fake_timeline": &f.timeline, "fake_forward": &f.forward, "fake_backward": &f.backward, "fake_fail": &f.fail,
		"fake_die": &f.die, "fake_live": &f.live, "fake_hold": &f.hold, "fake_await": &f.await, "fake_launches": &f.launches} {
		purego.RegisterLibFunc(function, lib, name)
	}
	t.Setenv(LibraryEnv, f.path)
	return f
}

// timelines are those that the fake has imported, by the file descriptor's number.
var timelines struct {
	sync.Mutex
	byFD map[uintptr]*vk.Timeline
}

// fakeTimeline is called by the fake's threads.
var fakeTimeline = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(signal, fd, value uintptr) uintptr {
		timelines.Lock()
		t := timelines.byFD[fd]
		timelines.Unlock()
		if signal&1 != 0 {
			_ = t.Signal(uint64(value)) // a device that is closed has none
		} else {
			_ = t.Wait(context.Background(), uint64(value))
		}
		return 0
	})
})

// withFake opens a Vulkan device that the fake is the CUDA of.
func withFake(t testing.TB, change ...func(*vk.Options)) (*fake, *Context) {
	t.Helper()
	f := newFake(t)
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device executes nothing")
	}
	t.Setenv("VKATTN_VALIDATION", "")
	o := vk.Options{PipelineCache: "off"}
	for _, f := range change {
		f(&o)
	}
	dev, err := vk.Open(o)
	if err != nil && (driver == "" || driver == "none") {
		t.Skipf("no Vulkan device: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	if !dev.Caps().ExternalMemoryFd {
		t.Skip("the device shares no memory")
	}
	uuid := dev.Info().UUID
	f.device(&uuid[0], 90, 13000)
	shares, export := sharesTimelines, exportTimeline
	t.Cleanup(func() { sharesTimelines, exportTimeline = shares, export })
	sharesTimelines = func(*vk.Caps) bool { return true }
	exportTimeline = func(t *vk.Timeline) (int, error) {
		fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		timelines.Lock()
		defer timelines.Unlock()
		if timelines.byFD == nil {
			timelines.byFD = map[uintptr]*vk.Timeline{}
		}
		timelines.byFD[uintptr(fd)] = t
		return fd, err
	}
	f.timeline(fakeTimeline())
	c, err := Open(dev)
	require.NoError(t, err)
	again, err := Open(dev)
	require.NoError(t, err)
	require.Same(t, c, again)
	return f, c
}
