package attention

import "vkattn/vk"

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. See
// vk.Buffer.Window.

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
