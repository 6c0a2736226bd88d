package dispatch

import (
	"unsafe"

	"vkattn/vk"
)

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. See
// vk.Buffer.Window.

// BatchesInSpan returns how many batches a descriptor of span bytes covers, at most most.
// A batch has extent elements of size bytes and starts step elements after the previous
// one. One batch fits in span.
func BatchesInSpan(most, span, size, extent, step uint64) uint64 {
	if step == 0 || most <= 1 {
		return most
	}
	return min(most, 1+(span/size-extent)/step)
}

// EmptyBinding returns a few bytes of a buffer for a binding that the kernel does not use.
// Vulkan requires a buffer in each.
func EmptyBinding(b *vk.Buffer) vk.BufferRange {
	return vk.BufferRange{Buffer: b, Size: min(b.Size(), 4)}
}

// ParamBytes returns the first n bytes of a block. The module declares n bytes; Go rounds
// the size of the struct up to a multiple of 8. T has no pointers, and n is at most its size.
func ParamBytes[T any](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n)
}
