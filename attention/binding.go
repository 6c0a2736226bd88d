package attention

import "vkattn/vk"

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. A
// descriptor starts at a multiple of Limits.MinStorageBufferOffsetAlignment and reaches
// MaxStorageBufferRange bytes at most.

// bindAt returns a descriptor range that covers length bytes of a buffer from byte at on,
// and the position of byte at in that range. The range starts at a multiple of align.
func bindAt(b *vk.Buffer, at, length, align uint64) (rest uint64, r vk.BufferRange) {
	start := max((b.Offset()+at)/align*align, b.Offset())
	rest = b.Offset() + at - start
	offset := start - b.Offset()
	// Kernels read whole 32-bit words; a buffer may end in the middle of one.
	return rest, vk.BufferRange{Buffer: b, Offset: offset, Size: min((rest+length+3)&^3, b.Size()-offset)}
}

// descriptorSpan returns how many bytes a descriptor covers at least from any byte on. Its
// own start may be up to align bytes earlier.
func descriptorSpan(l *vk.Limits, align uint64) uint64 {
	return l.MaxStorageBufferRange - min(l.MaxStorageBufferRange, align)
}

// batchesInSpan returns how many batches a descriptor of span bytes covers, at most most.
// A batch has extent elements of size bytes and starts step elements after the previous
// one. One batch fits in span.
func batchesInSpan(most, span, size, extent, step uint64) uint64 {
	if step == 0 || most <= 1 {
		return most
	}
	return min(most, 1+(span/size-extent)/step)
}

// emptyBinding returns a few bytes of a buffer for a binding that the kernel does not use.
// Vulkan requires a buffer in each.
func emptyBinding(b *vk.Buffer) vk.BufferRange {
	return vk.BufferRange{Buffer: b, Size: min(b.Size(), 4)}
}
