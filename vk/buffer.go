package vk

// #include "host.h"
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// BufferOptions for NewBuffer. The zero value is device-local memory.
type BufferOptions struct {
	Memory     MemoryKind
	Exportable bool   // ExportFD works; needs Caps.ExternalMemoryFd
	Name       string // for tools
}

// Buffer is a VkBuffer usable as storage, copy source and copy destination, and
// by address where the device has buffer addresses. It may be used by many
// goroutines; the contents are theirs to order.
type Buffer struct {
	refs
	d        *Device
	handle   uint64
	offset   uint64 // in the VkBuffer; 0 unless wrapped
	size     uint64 // as asked for
	capacity uint64 // bytes there are from offset on
	address  uint64
	region   region // none when wrapped
	kind     MemoryKind
	wrapped  bool
	export   bool
	dedic    bool
	closed   atomic.Bool
	gone     bool // destroyed; under allocator.mu
	attached attachments
}

// padding: buffers are this much larger than asked for, up to a multiple of it, so
// that kernels may read 16-bit elements as 32-bit words up to the last one.
const padding = 16

// NewBuffer makes a buffer of size bytes, uninitialized. The memory behind it is
// padded to a multiple of 16 bytes. Sizes over 4 GiB, and over
// Limits.MaxStorageBufferRange, are fine as far as the device allows: descriptor
// ranges are checked by Dispatch. The buffer is the caller's to Close; ErrOutOfMemory
// when the device, a limit or the budget has no room.
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

// makeBuffer creates and binds. allocation, when not 0, is the exact size of the
// memory to allocate.
func (d *Device) makeBuffer(op string, size uint64, o BufferOptions, q request, allocation uint64) (*Buffer, error) {
	l := &d.info.Caps.Limits
	if size == 0 {
		return nil, invalid(op, "a buffer of 0 bytes")
	}
	if size > ^uint64(0)-padding || l.MaxBufferBytes > 0 && alignUp(size, padding) > l.MaxBufferBytes {
		return nil, outOfMemory(op, "%d bytes: the device allows buffers of %d", size, l.MaxBufferBytes)
	}
	b := &Buffer{d: d, size: size, capacity: alignUp(size, padding), kind: o.Memory, export: q.export}
	shared := q.export || q.fd >= 0
	var flags C.uint32_t
	if shared {
		flags = C.VKA_BUFFER_EXTERNAL
	}
	var types uint32
	r := C.vka_create_buffer(d.c, C.uint64_t(b.capacity), flags, u64(&b.handle), u64(&q.size), u64(&q.align), u32(&types))
	if err := d.check("vkCreateBuffer", r); err != nil {
		return nil, err
	}
	q.mask &= types
	if allocation != 0 {
		if allocation < q.size {
			C.vka_destroy_buffer(d.c, C.uint64_t(b.handle))
			return nil, invalid(op, "the buffer needs %d bytes of memory, there are %d", q.size, allocation)
		}
		q.size = allocation
	}
	if shared && d.info.Caps.ExternalMemoryDedicated || q.dedicated != 0 {
		q.dedicated, b.dedic = b.handle, true
	}
	var err error
	if b.region, err = d.mem.alloc(q); err != nil {
		C.vka_destroy_buffer(d.c, C.uint64_t(b.handle))
		return nil, err
	}
	r = C.vka_bind_buffer(d.c, C.uint64_t(b.handle), C.uint64_t(b.region.block.memory), C.uint64_t(b.region.offset), u64(&b.address))
	if err := d.check("vkBindBufferMemory", r); err != nil {
		C.vka_destroy_buffer(d.c, C.uint64_t(b.handle))
		d.mem.mu.Lock()
		d.mem.free(b.region)
		d.mem.mu.Unlock()
		return nil, err
	}
	d.setName(C.VK_OBJECT_TYPE_BUFFER, b.handle, o.Name)
	d.register(b)
	return b, nil
}

func (d *Device) register(b *Buffer) {
	b.n.Store(1)
	d.mem.mu.Lock()
	d.mem.buffers[b] = struct{}{}
	d.mem.mu.Unlock()
}

// ExternalBuffer is a range of a VkBuffer that somebody else made on the device,
// with storage, transfer source and transfer destination usage.
type ExternalBuffer struct {
	Handle  uint64 // VkBuffer
	Offset  uint64 // of the range; a multiple of Limits.MinStorageBufferOffsetAlignment
	Size    uint64
	Address uint64 // device address of the range's start; 0: none
}

// WrapBuffer makes a Buffer of the caller's VkBuffer, which has to live until the
// Buffer is closed and the work using it has finished. Close destroys nothing. Sizes and
// offsets are in bytes. ErrInvalid without a Handle or a Size, and for an Offset that is
// not aligned; ErrUnsupported for an Address where the device has none.
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

// Size is the number of bytes asked for.
func (b *Buffer) Size() uint64 {
	if b == nil {
		return 0
	}
	return b.size
}

// Address is the device address of the first byte, a multiple of 256 except for
// wrapped buffers; 0 where the device has no buffer addresses.
func (b *Buffer) Address() uint64 {
	if b == nil {
		return 0
	}
	return b.address
}

// Handle is the VkBuffer. It is destroyed some time after Close.
func (b *Buffer) Handle() uint64 {
	if b == nil {
		return 0
	}
	return b.handle
}

// Offset is where the first byte lies in the VkBuffer: 0 but for wrapped buffers.
func (b *Buffer) Offset() uint64 {
	if b == nil {
		return 0
	}
	return b.offset
}

// Memory is the kind of memory asked for.
func (b *Buffer) Memory() MemoryKind {
	if b == nil {
		return DeviceLocal
	}
	return b.kind
}

// Exportable reports whether the buffer was made with Exportable.
func (b *Buffer) Exportable() bool { return b != nil && b.export }

// Device is what the buffer belongs to.
func (b *Buffer) Device() *Device {
	if b == nil {
		return nil
	}
	return b.d
}

// Bytes is the mapped memory of Upload and Readback buffers, coherent with the
// device; nil for others and once closed. The slice must not be used after the
// buffer or its device is closed. Device writes are there after Stream.Wait; host
// writes are seen by work submitted afterwards.
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

// Close gives the buffer back. Work in flight keeps it until it has finished.
func (b *Buffer) Close() error {
	if b == nil || b.closed.Swap(true) || !b.d.stay() {
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
	b.attached.detach() // where the device goes before the buffer
	delete(a.buffers, b)
	if b.wrapped {
		return
	}
	C.vka_destroy_buffer(a.d.c, C.uint64_t(b.handle))
	a.free(b.region)
}
