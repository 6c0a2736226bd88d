package vk

import (
	"vkattn/internal/cloexec"
)

// Buffers and timeline semaphores as opaque file descriptors, exported and imported.

// Allocation describes the memory of a buffer for another API that imports its file
// descriptor.
type Allocation struct {
	Bytes      uint64 // of the whole VkDeviceMemory
	Offset     uint64 // of the buffer in it; 0 for exportable buffers
	MemoryType uint32
	Dedicated  bool // allocated with VkMemoryDedicatedAllocateInfo, which CUDA must know
}

// Allocation describes the memory of the buffer. It is zero for wrapped buffers.
func (b *Buffer) Allocation() Allocation {
	if b == nil || b.region.block == nil {
		return Allocation{}
	}
	return Allocation{Bytes: b.region.block.size, Offset: b.region.offset, MemoryType: b.region.block.typ, Dedicated: b.dedic}
}

// ExportFD returns a new opaque file descriptor of the memory of a buffer made with
// Exportable. The caller owns it and either closes it or passes it to an import, which
// takes ownership. The memory lives until the buffer and every import are closed. Programs
// that this process starts do not inherit the descriptor.
func (b *Buffer) ExportFD() (int, error) {
	const op = "ExportFD"
	if err := b.Device().enter(op); err != nil {
		return -1, err
	}
	defer b.d.leave()
	if b.retain() != nil { // another goroutine may close it during the call
		return -1, closed(op)
	}
	defer b.release()
	if !b.export {
		return -1, invalid(op, "the buffer was not made with Exportable")
	}
	return cloexec.Take(func() (int, error) {
		fd := int32(-1)
		err := b.d.check("vkGetMemoryFdKHR", hostExportMemory(b.d.c, b.region.block.memory, &fd))
		return int(fd), err
	})
}

// ImportOptions describe memory to import. The zero value fits a buffer of the same size
// that this package exported from the same device.
type ImportOptions struct {
	AllocationBytes uint64 // size of the exported allocation; 0: what the buffer needs
	MemoryTypes     uint32 // mask of acceptable memory types; 0: as for device-local buffers
	Dedicated       bool   // the memory was allocated for one buffer only
	Name            string
}

// ImportBufferFD returns a buffer on the memory of an opaque file descriptor, which must
// come from the same device and driver (DeviceInfo.UUID and DriverUUID). The buffer starts
// at the first byte of the memory. On success Vulkan owns fd and the caller must not close
// it; after an error the caller still owns it. A pipe, a socket, a terminal and the like are refused
// with ErrInvalid before the driver sees them: NVIDIA's (580.159) makes no exportable memory in the
// process any more once it was given a descriptor that is no memory.
func (d *Device) ImportBufferFD(fd int, size uint64, o ImportOptions) (*Buffer, error) {
	const op = "ImportBufferFD"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if !d.info.Caps.ExternalMemoryFd {
		return nil, unsupported(op, "the device cannot import memory from file descriptors")
	}
	if fd < 0 {
		return nil, invalid(op, "file descriptor %d", fd)
	}
	if what := notMemory(fd); what != "" {
		return nil, invalid(op, "file descriptor %d is no memory: %s", fd, what)
	}
	q := request{kind: DeviceLocal, mask: ^uint32(0), fd: fd}
	if o.MemoryTypes != 0 {
		q.mask = o.MemoryTypes
	}
	if o.Dedicated {
		q.dedicated = 1 // replaced by the buffer's handle
	}
	b, err := d.makeBuffer(op, size, BufferOptions{Name: o.Name}, q, o.AllocationBytes)
	if err == nil {
		_ = cloexec.Close(fd) // the memory has a copy
	}
	return b, err
}

// ExportFD returns a new opaque file descriptor of an exportable timeline. The caller owns
// it, as with Buffer.ExportFD.
func (t *Timeline) ExportFD() (int, error) {
	const op = "ExportFD"
	if err := t.use(op); err != nil {
		return -1, err
	}
	defer t.leave()
	if !t.exportable {
		return -1, invalid(op, "the timeline was not made exportable")
	}
	return cloexec.Take(func() (int, error) {
		fd := int32(-1)
		err := t.d.check("vkGetSemaphoreFdKHR", hostExportSemaphore(t.d.c, t.handle, &fd))
		return int(fd), err
	})
}

// ImportTimelineFD returns a timeline that shares its value with the exported one. On
// success Vulkan owns fd and the caller must not close it; after an error the caller still
// owns it.
func (d *Device) ImportTimelineFD(fd int) (*Timeline, error) {
	const op = "ImportTimelineFD"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if !d.info.Caps.ExternalSemaphoreFd {
		return nil, unsupported(op, "the device cannot import timeline semaphores from file descriptors")
	}
	if fd < 0 {
		return nil, invalid(op, "file descriptor %d", fd)
	}
	t, err := d.newTimeline(false)
	if err != nil {
		return nil, err
	}
	if err := d.check("vkImportSemaphoreFdKHR", hostImportSemaphore(d.c, t.handle, int32(fd))); err != nil {
		t.closed.Store(true)
		t.release()
		if e := err.(*Error); e.Result == ResultInvalidExternalHandle {
			e.Detail = "no timeline semaphore of this device and driver"
		}
		return nil, err
	}
	return t, nil
}
