//go:build !windows

package vk

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func openFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

func TestMemoryTravelsByFileDescriptor(t *testing.T) {
	d := openExecuting(t)
	if !d.Caps().ExternalMemoryFd {
		_, err := d.NewBuffer(4096, BufferOptions{Exportable: true})
		assert.ErrorIs(t, err, ErrUnsupported)
		_, err = d.ImportBufferFD(0, 4096, ImportOptions{})
		assert.ErrorIs(t, err, ErrUnsupported)
		t.Skip("the device does not share memory by file descriptor")
	}
	s := newStream(t, d)
	plain := newBuffer(t, d, 64, DeviceLocal)
	_, err := plain.ExportFD()
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = d.ImportBufferFD(-1, 64, ImportOptions{})
	assert.ErrorIs(t, err, ErrInvalid)
	before := 0
	for i, size := range []uint64{1, 1, 4096, 100_001, 1, 4096} {
		if i == 1 {
			before = openFDs(t) // the first time, drivers open files of their own
		}
		// After an error the descriptor is still the caller's, and open. The driver never sees it.
		for _, name := range []string{os.DevNull, "."} {
			file, err := os.Open(name)
			require.NoError(t, err)
			_, err = d.ImportBufferFD(int(file.Fd()), 64, ImportOptions{})
			assert.ErrorIs(t, err, ErrInvalid)
			require.NoError(t, file.Close())
		}
		read, write, err := os.Pipe()
		require.NoError(t, err)
		_, err = d.ImportBufferFD(int(read.Fd()), 64, ImportOptions{})
		assert.ErrorContains(t, err, "is no memory: a pipe")
		require.NoError(t, errors.Join(read.Close(), write.Close()))
		out, err := d.NewBuffer(size, BufferOptions{Exportable: true, Name: "exported"})
		require.NoError(t, err, "round %d, %d bytes", i, size)
		a := out.Allocation()
		assert.Zero(t, a.Offset)
		fd, err := out.ExportFD()
		require.NoError(t, err)
		_, err = d.ImportBufferFD(fd, size, ImportOptions{AllocationBytes: 1})
		assert.ErrorIs(t, err, ErrInvalid, "less memory than the buffer needs")
		o := ImportOptions{AllocationBytes: a.Bytes, MemoryTypes: 1 << a.MemoryType, Dedicated: a.Dedicated}
		restore := failing(t, &d.c.BindBufferMemory)
		_, err = d.ImportBufferFD(fd, size, o)
		restore()
		assert.ErrorIs(t, err, ErrOutOfMemory, "after the driver has imported the memory")
		in, err := d.ImportBufferFD(fd, size, o)
		require.NoError(t, err)
		want := []byte{42}
		require.NoError(t, s.Upload(out, size-1, want))
		got := make([]byte, 1)
		require.NoError(t, s.Download(background(t), got, in, size-1))
		assert.Equal(t, want, got)
		// The memory lives as long as either end.
		require.NoError(t, out.Close())
		require.NoError(t, s.Download(background(t), got, in, size-1))
		assert.Equal(t, want, got)
		require.NoError(t, in.Close())
		_, err = out.ExportFD()
		assert.ErrorIs(t, err, ErrClosed)
	}
	assert.Equal(t, before, openFDs(t), "file descriptors leak")
}

func TestTimelinesTravelByFileDescriptor(t *testing.T) {
	d := openExecuting(t)
	if !d.Caps().ExternalSemaphoreFd {
		_, err := d.NewTimeline(true)
		assert.ErrorIs(t, err, ErrUnsupported)
		_, err = d.ImportTimelineFD(0)
		assert.ErrorIs(t, err, ErrUnsupported)
		t.Skip("the device does not share timeline semaphores by file descriptor")
	}
	before := 0
	for i := range 6 {
		if i == 1 {
			before = openFDs(t) // the first time, drivers open files of their own
		}
		shareTimeline(t, d)
	}
	assert.Equal(t, before, openFDs(t), "file descriptors leak")
}

func shareTimeline(t *testing.T, d *Device) {
	t.Helper()
	out, err := d.NewTimeline(true)
	require.NoError(t, err)
	fd, err := out.ExportFD()
	require.NoError(t, err)
	in, err := d.ImportTimelineFD(fd)
	require.NoError(t, err)
	require.NoError(t, out.Signal(5))
	require.NoError(t, in.Wait(background(t), 5))
	s, err := d.NewStream("shared timeline")
	require.NoError(t, err)
	require.NoError(t, s.SignalTo(in, 9))
	submit(t, s)
	require.NoError(t, out.Wait(background(t), 9))
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, s.Close())
}

// A buffer may be closed while another goroutine exports it: the memory is freed afterwards.
func TestExportDuringClose(t *testing.T) {
	d := openExecuting(t)
	if !d.Caps().ExternalMemoryFd {
		t.Skip("the device does not share memory by file descriptor")
	}
	for range 3000 {
		b, err := d.NewBuffer(4096, BufferOptions{Exportable: true})
		require.NoError(t, err)
		var wg sync.WaitGroup
		start := make(chan struct{})
		wg.Go(func() {
			<-start
			fd, err := b.ExportFD()
			if err == nil {
				err = syscall.Close(fd)
			} else if errors.Is(err, ErrClosed) {
				err = nil
			}
			assert.NoError(t, err)
		})
		close(start)
		require.NoError(t, b.Close())
		wg.Wait()
	}
}

// closesOnExec reports whether a program that this process starts does not inherit a descriptor.
func closesOnExec(t *testing.T, fd int) bool {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	return flags&unix.FD_CLOEXEC != 0
}

// Programs started later inherit no exported descriptor, whatever the driver's flags of it are.
func TestExportedDescriptorsCloseOnExec(t *testing.T) {
	d := openExecuting(t)
	leaky := purego.NewCallback(func(_, _ uintptr, fd *int32) uintptr {
		n, err := syscall.Dup(0) // without close-on-exec
		if err != nil {
			return ^uintptr(0)
		}
		*fd = int32(n)
		return 0
	})
	exports := func(place unsafe.Pointer, export func() (int, error)) {
		t.Helper()
		function := (*uintptr)(place)
		defer func(was uintptr) { *function = was }(*function)
		*function = leaky
		fd, err := export()
		require.NoError(t, err)
		defer func() { _ = syscall.Close(fd) }()
		require.True(t, closesOnExec(t, fd))
	}
	timeline := newTimeline(t, d)
	timeline.exportable = true
	exports(unsafe.Pointer(&d.c.GetSemaphoreFdKHR), timeline.ExportFD)
	buffer := newBuffer(t, d, 64, DeviceLocal)
	buffer.export = true
	exports(unsafe.Pointer(&d.c.GetMemoryFdKHR), buffer.ExportFD)
}
