package cudapath

// #include "cua.h"
import "C"

import (
	"context"
	"sync/atomic"
	"syscall"

	"vkattn/vk"
)

// Memory is CUDA memory on the device that can be shared: as a file descriptor, and
// as a Vulkan buffer. It may be used by many goroutines; the contents are theirs to
// order.
type Memory struct {
	c       *Context
	size    uint64 // as asked for
	rounded uint64 // as allocated
	handle  C.cua_handle
	address C.uint64_t
	holders atomic.Int64 // the owner, and each Buffer
	closed  atomic.Bool
}

// Alloc allocates memory, uninitialized. The driver hands it out in pieces of 2 MiB.
// It is the caller's to Close; vk.ErrOutOfMemory when there is no room.
func (c *Context) Alloc(bytes uint64) (*Memory, error) {
	const op = "Alloc"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()
	switch {
	case bytes == 0:
		return nil, invalid(op, "0 bytes")
	case bytes > c.info.Memory:
		return nil, refuse(op, vk.ErrOutOfMemory, "%d bytes, the device has %d", bytes, c.info.Memory)
	case !c.info.Shares:
		return nil, unsupported(op, "%s exports no memory as file descriptors", c.info.Name)
	}
	m := &Memory{c: c, size: bytes}
	var rounded C.uint64_t
	var name *C.char
	r := C.cua_alloc(c.lib.api, c.handle, C.int(c.info.device), C.uint64_t(bytes), &rounded, &m.handle, &m.address, &name)
	if err := c.check(opName(name, "cuMemCreate"), r); err != nil {
		return nil, err
	}
	m.rounded = uint64(rounded)
	m.holders.Store(1)
	c.own(m)
	return m, nil
}

// Address is the CUdeviceptr of the first byte.
func (m *Memory) Address() uint64 {
	if m == nil {
		return 0
	}
	return uint64(m.address)
}

// Size is the number of bytes asked for.
func (m *Memory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// Context is what the memory belongs to.
func (m *Memory) Context() *Context {
	if m == nil {
		return nil
	}
	return m.c
}

// use starts a call on open memory; leave of the context follows.
func (m *Memory) use(op string) error {
	if err := m.Context().enter(op); err != nil {
		return err
	}
	if m.closed.Load() {
		m.c.leave()
		return closed(op)
	}
	return nil
}

// ExportFD returns a new file descriptor for the memory, whose allocation is
// AllocationBytes. The caller owns it: close it, or give it to an import, which
// takes it over. The memory lives until it and every import are closed.
func (m *Memory) ExportFD() (int, error) {
	const op = "ExportFD"
	if err := m.use(op); err != nil {
		return -1, err
	}
	defer m.c.leave()
	var fd C.int
	if err := m.c.check("cuMemExportToShareableHandle", C.cua_export(m.c.lib.api, m.c.handle, m.handle, &fd)); err != nil {
		return -1, err
	}
	return int(fd), nil
}

// AllocationBytes is the size of the whole allocation, as an import wants to know it.
func (m *Memory) AllocationBytes() uint64 {
	if m == nil {
		return 0
	}
	return m.rounded
}

// Buffer is the memory as a buffer of a Vulkan device, which has to be the same GPU.
// The buffer is the caller's to Close; memory and buffer may be closed in either
// order. Tier cuda reaches it as it does an exportable buffer.
func (m *Memory) Buffer(dev *vk.Device) (*vk.Buffer, error) {
	const op = "Buffer"
	switch {
	case m == nil || m.c == nil:
		return nil, unmade(op)
	case dev == nil:
		return nil, invalid(op, "no device")
	case dev.Info().UUID != m.c.info.UUID:
		return nil, invalid(op, "the memory is of %s, the device is %s", m.c.info.Name, dev.Info().Name)
	}
	fd, err := m.ExportFD()
	if err != nil {
		return nil, err
	}
	b, err := dev.ImportBufferFD(fd, m.size, vk.ImportOptions{AllocationBytes: m.rounded, Name: "CUDA memory"})
	if err != nil {
		closeFD(fd) // still ours
		return nil, err
	}
	_, err = b.Attach(bufferKey, func() (vk.Attached, error) {
		if !m.retain() {
			return nil, closed(op)
		}
		return &reached{address: uint64(m.address), memory: m}, nil
	})
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

func (m *Memory) retain() bool {
	for {
		n := m.holders.Load()
		if n == 0 {
			return false
		}
		if m.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *Memory) release() {
	if m.holders.Add(-1) == 0 {
		m.c.drop(m)
	}
}

func (m *Memory) destroy() {
	C.cua_free(m.c.lib.api, m.c.handle, m.handle, m.address, C.uint64_t(m.rounded))
}

// checkRange refuses bytes that do not lie in the memory.
func (m *Memory) checkRange(op string, off, n uint64) error {
	if m == nil || m.c == nil {
		return unmade(op)
	}
	if off > m.size || n > m.size-off {
		return invalid(op, "bytes %d to %d of %d", off, off+n, m.size)
	}
	return nil
}

// CopyFromHost copies src to byte offset off, and waits until it is there. Work of
// other streams is the caller's to order: see Stream.CopyFromHost.
func (m *Memory) CopyFromHost(off uint64, src []byte) error {
	const op = "CopyFromHost"
	if err := m.checkRange(op, off, uint64(len(src))); err != nil {
		return err
	}
	return m.onStream(op, func(s *Stream) error {
		if err := s.CopyFromHost(m.Address()+off, src); err != nil {
			return err
		}
		return s.Wait(context.Background())
	})
}

// CopyToHost copies from byte offset off to dst.
func (m *Memory) CopyToHost(dst []byte, off uint64) error {
	const op = "CopyToHost"
	if err := m.checkRange(op, off, uint64(len(dst))); err != nil {
		return err
	}
	return m.onStream(op, func(s *Stream) error { return s.CopyToHost(dst, m.Address()+off) })
}

// onStream runs f on a stream of its own while the memory is held.
func (m *Memory) onStream(op string, f func(*Stream) error) error {
	if m.closed.Load() || !m.retain() {
		return closed(op)
	}
	defer m.release()
	s, err := m.c.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	return f(s)
}

// Close frees the memory, once every Buffer made of it is gone. CUDA work that uses it has to be
// finished: the package knows of tier cuda's and of no other.
func (m *Memory) Close() error {
	if m != nil && m.c != nil && !m.closed.Swap(true) {
		m.release()
	}
	return nil
}

// closeFD closes a file descriptor that no driver took over.
func closeFD(fd int) { _ = syscall.Close(fd) }
