package vk

import (
	"sync/atomic"
	"unsafe"

	"vkattn/internal/hostmem"
)

// BufferOptions are the options of NewBuffer. The zero value is device-local memory.
type BufferOptions struct {
	Memory     MemoryKind
	Exportable bool   // allow ExportFD; needs Caps.ExternalMemoryFd
	Name       string // for debugging tools
}

// Buffer is a VkBuffer for storage and copies, with a device address if the device has
// buffer addresses. Its methods are safe for concurrent use; the caller synchronizes
// access to the contents.
type Buffer struct {
	refs
	d        *Device
	handle   uint64
	offset   uint64 // in the VkBuffer; 0 unless wrapped
	size     uint64 // requested
	capacity uint64 // bytes from offset to the end of the VkBuffer
	address  uint64
	region   region // none when wrapped
	kind     MemoryKind
	wrapped  bool
	export   bool
	dedic    bool
	lent     bool // of Scratch or Params: its owner closes it
	closed   atomic.Bool
	gone     bool // destroyed; under allocator.mu
	attached attachments
}

// padding is the unit that sizes of buffers are rounded up to, so that kernels may read
// 16-bit elements as 32-bit words up to the last one.
const padding = 16

// NewBuffer allocates a buffer of size bytes. Its memory is uninitialized and padded to a
// multiple of 16 bytes. It may be larger than 4 GiB and than Limits.MaxStorageBufferRange;
// Dispatch checks the ranges of descriptors. The caller closes the buffer. The error
// matches ErrOutOfMemory if the device, a limit or the budget has no room.
func (d *Device) NewBuffer(size uint64, o BufferOptions) (*Buffer, error) {
	const op = "NewBuffer"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	return d.newBuffer(op, size, o)
}

func (d *Device) newBuffer(op string, size uint64, o BufferOptions) (*Buffer, error) {
	if o.Exportable && !d.info.Caps.ExternalMemoryFd {
		return nil, unsupported(op, "the device cannot export memory as file descriptors")
	}
	if o.Memory > Readback {
		return nil, invalid(op, "%v", o.Memory)
	}
	return d.makeBuffer(op, size, o, request{kind: o.Memory, mask: ^uint32(0), export: o.Exportable, fd: -1}, 0)
}

// makeBuffer creates a VkBuffer and binds memory to it. allocation, if not 0, is the
// exact size of the memory to allocate.
func (d *Device) makeBuffer(op string, size uint64, o BufferOptions, q request, allocation uint64) (*Buffer, error) {
	l := &d.info.Caps.Limits
	if size == 0 {
		return nil, invalid(op, "a buffer of 0 bytes")
	}
	if size > ^uint64(0)-padding || l.MaxBufferBytes > 0 && alignUp(size, padding) > l.MaxBufferBytes {
		return nil, outOfMemory(op, "%s: the device allows buffers of %s", hostmem.Bytes(size), hostmem.Bytes(l.MaxBufferBytes))
	}
	b := &Buffer{d: d, size: size, capacity: alignUp(size, padding), kind: o.Memory, export: q.export}
	shared := q.export || q.fd >= 0
	var flags uint32
	if shared {
		flags = bufferExternal
	}
	var types uint32
	r := hostCreateBuffer(d.c, b.capacity, flags, &b.handle, &q.size, &q.align, &types)
	if err := d.check("vkCreateBuffer", r); err != nil {
		return nil, err
	}
	q.mask &= types
	if allocation != 0 {
		if allocation < q.size {
			d.c.destroy(d.c.DestroyBuffer, b.handle)
			return nil, invalid(op, "the buffer needs %d bytes of memory, there are %d", q.size, allocation)
		}
		q.size = allocation
	}
	if shared && d.info.Caps.ExternalMemoryDedicated || q.dedicated != 0 {
		q.dedicated, b.dedic = b.handle, true
	}
	var err error
	if b.region, err = d.mem.alloc(q); err != nil {
		d.c.destroy(d.c.DestroyBuffer, b.handle)
		return nil, err
	}
	r = hostBindBuffer(d.c, b.handle, b.region.block.memory, b.region.offset, &b.address)
	if err := d.check("vkBindBufferMemory", r); err != nil {
		d.c.destroy(d.c.DestroyBuffer, b.handle)
		d.mem.mu.Lock()
		d.mem.free(b.region)
		d.mem.mu.Unlock()
		return nil, err
	}
	d.setName(objectBuffer, b.handle, o.Name)
	d.register(b)
	return b, nil
}

func (d *Device) register(b *Buffer) {
	b.n.Store(1)
	d.mem.mu.Lock()
	d.mem.buffers[b] = struct{}{}
	d.mem.mu.Unlock()
}

// ExternalBuffer is a range of the caller's VkBuffer of the same device, with storage,
// transfer source and transfer destination usage.
type ExternalBuffer struct {
	Handle  uint64 // VkBuffer
	Offset  uint64 // of the range; a multiple of Limits.MinStorageBufferOffsetAlignment
	Size    uint64
	Address uint64 // device address of the first byte of the range; 0: none
}

// WrapBuffer returns a Buffer of the caller's VkBuffer, which must live until the Buffer
// is closed and the work that uses it has finished. Close does not destroy the VkBuffer.
// The error matches ErrInvalid without a Handle or a Size and for a misaligned Offset, and
// ErrUnsupported for an Address if the device has no buffer addresses.
func (d *Device) WrapBuffer(e ExternalBuffer) (*Buffer, error) {
	const op = "WrapBuffer"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	align := d.info.Caps.Limits.MinStorageBufferOffsetAlignment
	switch {
	case e.Handle == 0 || e.Size == 0:
		return nil, invalid(op, "Handle and Size are needed")
	case e.Offset%align != 0:
		return nil, invalid(op, "Offset %d is no multiple of %d", e.Offset, align)
	case e.Offset+e.Size < e.Offset:
		return nil, invalid(op, "Offset %d + Size %d overflow", e.Offset, e.Size)
	case e.Address != 0 && !d.info.Caps.BufferDeviceAddress:
		return nil, unsupported(op, "an address, and the device has no buffer addresses")
	}
	b := &Buffer{d: d, handle: e.Handle, offset: e.Offset, size: e.Size, capacity: e.Size, address: e.Address, wrapped: true}
	d.register(b)
	return b, nil
}

// Size is the requested number of bytes.
func (b *Buffer) Size() uint64 {
	if b == nil {
		return 0
	}
	return b.size
}

// Address is the device address of the first byte. It is a multiple of 256, except for
// wrapped buffers, and 0 if the device has no buffer addresses.
func (b *Buffer) Address() uint64 {
	if b == nil {
		return 0
	}
	return b.address
}

// Handle is the VkBuffer. It is destroyed after Close, when no work uses it.
func (b *Buffer) Handle() uint64 {
	if b == nil {
		return 0
	}
	return b.handle
}

// Offset is the offset of the first byte in the VkBuffer, 0 except for wrapped buffers.
func (b *Buffer) Offset() uint64 {
	if b == nil {
		return 0
	}
	return b.offset
}

// Memory is the requested kind of memory.
func (b *Buffer) Memory() MemoryKind {
	if b == nil {
		return DeviceLocal
	}
	return b.kind
}

// Exportable reports whether the buffer was made with Exportable.
func (b *Buffer) Exportable() bool { return b != nil && b.export }

// Device is the device of the buffer.
func (b *Buffer) Device() *Device {
	if b == nil {
		return nil
	}
	return b.d
}

// Closed reports whether Close was called.
func (b *Buffer) Closed() bool { return b != nil && b.closed.Load() }

// Bytes is the mapped memory of Upload and Readback buffers, coherent with the device. It
// is nil for other and for closed buffers. Do not use the slice after the buffer or its
// device is closed. Writes of the device are visible after Stream.Wait; writes of the host
// are visible to work submitted afterwards.
func (b *Buffer) Bytes() []byte {
	if b == nil || b.d == nil || b.closed.Load() || b.d.closing.Load() {
		return nil
	}
	return b.bytes()
}

func (b *Buffer) bytes() []byte {
	if b.kind == DeviceLocal || b.region.block == nil || b.region.block.mapped == nil {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(b.region.block.mapped, b.region.offset)), b.size)
}

// Close closes the buffer. Work in flight holds it until it has finished. It does nothing for
// a buffer of Scratch or Params.
func (b *Buffer) Close() error {
	if b == nil || b.lent || b.closed.Swap(true) || !b.d.stay() {
		return nil
	}
	defer b.d.life.RUnlock()
	b.release()
	return nil
}

func (b *Buffer) retain() error {
	if b.closed.Load() || !b.acquire() {
		return closed("use of a buffer")
	}
	return nil
}

func (b *Buffer) release() {
	if b.drop() {
		b.attached.detach()
		b.d.mem.mu.Lock()
		b.d.mem.destroyBuffer(b)
		b.d.mem.mu.Unlock()
	}
}

// destroyBuffer destroys what the buffer owns. The caller holds mu.
func (a *allocator) destroyBuffer(b *Buffer) {
	if b.gone {
		return
	}
	b.gone = true
	b.attached.detach() // if the device is closed before the buffer
	delete(a.buffers, b)
	if b.wrapped {
		return
	}
	a.d.c.destroy(a.d.c.DestroyBuffer, b.handle)
	a.free(b.region)
}

// BufferRange is a range of a buffer in bytes. Size 0 means up to the end.
type BufferRange struct {
	Buffer *Buffer
	Offset uint64
	Size   uint64
}

// resolve returns the offset and size of a range, and false if it exceeds its buffer.
func (r *BufferRange) resolve() (offset, size uint64, ok bool) {
	n := r.Buffer.size
	if r.Offset >= n {
		return 0, 0, false
	}
	if r.Size == 0 {
		return r.Offset, n - r.Offset, true
	}
	return r.Offset, r.Size, r.Size <= n-r.Offset
}

func (d *Device) checkRange(op string, r BufferRange) (offset, size uint64, err error) {
	if r.Buffer == nil || r.Buffer.d != d {
		return 0, 0, invalid(op, "no buffer of this device")
	}
	if r.Buffer.closed.Load() {
		return 0, 0, closed(op + ": buffer")
	}
	offset, size, ok := r.resolve()
	if !ok {
		return 0, 0, invalid(op, "bytes %d to %d of a buffer of %d", r.Offset, r.Offset+r.Size, r.Buffer.size)
	}
	return offset, size, nil
}

// Window returns the range to bind for kernels that access size bytes from byte offset on.
// The range of a descriptor must begin at a multiple of
// Limits.MinStorageBufferOffsetAlignment, so it may begin before offset: first is the number
// of bytes from its start to offset, which the kernel adds to its indices. For kernels that
// read 32-bit words the start is a multiple of 4 in the VkBuffer, unless a wrapped buffer
// begins elsewhere. The range ends with the access; Dispatch rounds it up to a whole word.
//
// The error matches ErrClosed for a closed buffer, ErrInvalid if the access is empty or
// exceeds the buffer, and ErrUnsupported if no descriptor can hold the range. A size up to
// Limits.MaxWindow fits at any offset.
func (b *Buffer) Window(offset, size uint64) (r BufferRange, first uint64, err error) {
	const op = "Window"
	if !made(b) {
		return BufferRange{}, 0, unmade(op)
	}
	if b.closed.Load() {
		return BufferRange{}, 0, closed(op + ": buffer")
	}
	if size == 0 || offset >= b.size || size > b.size-offset {
		return BufferRange{}, 0, invalid(op, "%d bytes at offset %d of a buffer of %d", size, offset, b.size)
	}
	l := &b.d.info.Caps.Limits
	first = min((b.offset+offset)%l.windowAlign(), offset)
	if longest := l.MaxStorageBufferRange &^ 3; size > longest-min(longest, first) {
		return BufferRange{}, 0, unsupported(op, "%d bytes of a buffer, a descriptor holds %d; device addresses have no such limit", first+size, longest)
	}
	return BufferRange{Buffer: b, Offset: offset - first, Size: first + size}, first, nil
}

// MaxWindow is the largest size that Buffer.Window accepts at every offset, in bytes.
func (l *Limits) MaxWindow() uint64 {
	if l == nil {
		return 0
	}
	longest := l.MaxStorageBufferRange &^ 3
	return longest - min(longest, l.windowAlign())
}

// windowAlign is the alignment of a window's start, a power of two.
func (l *Limits) windowAlign() uint64 { return max(4, l.MinStorageBufferOffsetAlignment) }
