package attention

import "vkattn/vk"

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. See
// vk.Buffer.Window.

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
