package cudapath

import (
	"sync/atomic"
	"unsafe"

	"vkattn/internal/cloexec"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// Memory is device memory of CUDA that can be shared as a file descriptor and as a Vulkan
// buffer. Its methods are safe for concurrent use; the caller synchronizes access to the
// contents.
type Memory struct {
	c       *Context
	size    uint64 // requested
	rounded uint64 // allocated
	handle  uint64
	address uint64
	holders atomic.Int64 // the owner, and each Buffer
	closed  atomic.Bool
}

// Alloc allocates size bytes of uninitialized memory, which the driver rounds up to 2 MiB.
// The caller closes it. The error matches vk.ErrOutOfMemory if there is no room.
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
		return nil, refuse(op, vk.ErrOutOfMemory, "%s, the device has %s", hostmem.Bytes(bytes), hostmem.Bytes(c.info.Memory))
	case !c.info.Shares:
		return nil, unsupported(op, "%s exports no memory as file descriptors", c.info.Name)
	}
	m := &Memory{c: c, size: bytes}
	name, r := c.lib.api.alloc(c.handle, int32(c.info.device), bytes, &m.rounded, &m.handle, &m.address)
	if err := c.check(name, r); err != nil {
		return nil, err
	}
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

// Size is the requested number of bytes.
func (m *Memory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// Context is the context of the memory.
func (m *Memory) Context() *Context {
	if m == nil {
		return nil
	}
	return m.c
}

// hold keeps open memory until release, which must follow a nil error: Close may come meanwhile.
func (m *Memory) hold(op string) error {
	switch {
	case m == nil || m.c == nil:
		return unmade(op)
	case m.closed.Load() || !m.retain():
		return closed(op)
	}
	return nil
}

// ExportFD returns a new file descriptor of the memory, whose allocation has
// AllocationBytes. The caller owns it and either closes it or passes it to an import, which
// takes ownership. The memory lives until it and every import are closed. Programs that this
// process starts do not inherit the descriptor.
func (m *Memory) ExportFD() (int, error) {
	const op = "ExportFD"
	if err := m.hold(op); err != nil {
		return -1, err
	}
	defer m.release()
	if err := m.c.enter(op); err != nil {
		return -1, err
	}
	defer m.c.leave()
	return cloexec.Take(func() (int, error) {
		fd := int32(-1)
		err := m.c.call("cuMemExportToShareableHandle", m.c.lib.api.cuMemExportToShareableHandle,
			uintptr(unsafe.Pointer(&fd)), uintptr(m.handle), posixFD, 0)
		return int(fd), err
	})
}

// AllocationBytes is the size of the whole allocation, which an import needs.
func (m *Memory) AllocationBytes() uint64 {
	if m == nil {
		return 0
	}
	return m.rounded
}

// Buffer returns a buffer of a Vulkan device, which must be the same GPU, on the memory.
// The caller closes the buffer; memory and buffer may be closed in either order. Tier cuda
// can use it like an exportable buffer.
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
		closeFD(fd) // the import failed and did not take it
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
	m.c.lib.api.free(m.c.handle, m.handle, m.address, m.rounded)
}

// checkRange returns an error for a range that exceeds the memory.
func (m *Memory) checkRange(op string, off, n uint64) error {
	if m == nil || m.c == nil {
		return unmade(op)
	}
	if off > m.size || n > m.size-off {
		return invalid(op, "bytes %d to %d of %d", off, off+n, m.size)
	}
	return nil
}

// CopyFromHost copies src to byte offset off and waits for the copy, at most for the Timeout of
// the device. It is not ordered with the work of streams: for that see Stream.CopyFromHost.
func (m *Memory) CopyFromHost(off uint64, src []byte) error {
	const op = "CopyFromHost"
	if err := m.checkRange(op, off, uint64(len(src))); err != nil {
		return err
	}
	return m.onStream(op, func(s *Stream) error {
		if err := s.CopyFromHost(m.Address()+off, src); err != nil {
			return err
		}
		ctx, cancel := m.c.dev.Bounded()
		defer cancel()
		if err := s.Wait(ctx); err == nil || ctx.Err() == nil {
			return err
		}
		return refuse(op, vk.ErrTimeout, "the copy has not finished")
	})
}

// CopyToHost copies from byte offset off to dst and waits for the copy.
func (m *Memory) CopyToHost(dst []byte, off uint64) error {
	const op = "CopyToHost"
	if err := m.checkRange(op, off, uint64(len(dst))); err != nil {
		return err
	}
	return m.onStream(op, func(s *Stream) error { return s.CopyToHost(dst, m.Address()+off) })
}

// onStream runs f on a temporary stream while the memory is held.
func (m *Memory) onStream(op string, f func(*Stream) error) error {
	if err := m.hold(op); err != nil {
		return err
	}
	defer m.release()
	s, err := m.c.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	return f(s)
}

// Close frees the memory once all its Buffers are closed too. All CUDA work that uses it
// must have finished before; the package waits only for work of tier cuda.
func (m *Memory) Close() error {
	if m != nil && m.c != nil && !m.closed.Swap(true) {
		m.release()
	}
	return nil
}

// closeFD closes a file descriptor that no driver owns.
func closeFD(fd int) { _ = cloexec.Close(fd) }
