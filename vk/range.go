package vk

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
