package attention

import "vkattn/vk"

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. A
// descriptor starts at a multiple of Limits.MinStorageBufferOffsetAlignment and reaches
// MaxStorageBufferRange bytes at most.

// bindAt returns a descriptor that covers length bytes of a buffer from byte at on, and the
// byte position of the first one in it. The descriptor starts at a multiple of align.
func bindAt(b *vk.Buffer, at, length, align uint64) (rest uint64, r vk.BufferRange) {
	start := max((b.Offset()+at)/align*align, b.Offset())
	rest = b.Offset() + at - start
	offset := start - b.Offset()
	// Kernels read whole 32-bit words; a buffer may end in the middle of one.
	return rest, vk.BufferRange{Buffer: b, Offset: offset, Size: min((rest+length+3)&^3, b.Size()-offset)}
}

// descriptorSpan is how many bytes a descriptor covers from any byte on, whatever its own
// start has to be a multiple of.
func descriptorSpan(l *vk.Limits, align uint64) uint64 {
	return l.MaxStorageBufferRange - min(l.MaxStorageBufferRange, align)
}

// batchesInSpan is how many batches, at most most of them, a descriptor covers: one batch
// spans extent elements of size bytes and begins step elements after the one before. The
// extent of one fits in span.
func batchesInSpan(most, span, size, extent, step uint64) uint64 {
	if step == 0 || most <= 1 {
		return most
	}
	return min(most, 1+(span/size-extent)/step)
}

// emptyBinding names a few bytes of a buffer for a binding that the kernel does not use:
// Vulkan wants one.
func emptyBinding(b *vk.Buffer) vk.BufferRange {
	return vk.BufferRange{Buffer: b, Size: min(b.Size(), 4)}
}
