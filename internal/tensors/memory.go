package tensors

import (
	"encoding/binary"
	"math"
	"math/bits"

	"vkattn/internal/problem"
)

// TensorBegun reports whether t names memory, or has an offset or strides: missing memory is
// an error.
func TensorBegun(t *problem.Tensor) bool {
	return t.Given() || t.Offset != 0 || t.Strides != (problem.Strides{})
}

// BaseOf is the byte position of a device tensor's first element: an address, or
// an offset into its VkBuffer, which descriptors align to far more than 16.
func BaseOf(t *problem.Tensor, size int64, a problem.Access) uint64 {
	at := uint64(t.Offset * size)
	if t.Memory != nil {
		return problem.BackingOf(t.Memory).Address() + at
	}
	if a == problem.AccessAddresses {
		return t.Buffer.Address() + at
	}
	return t.Buffer.Offset() + at
}

// LargestAlignment is the largest of 1, 2, 4 and 8 that divides all of n.
func LargestAlignment(n ...uint64) uint32 {
	all := uint64(8)
	for _, x := range n {
		all |= x
	}
	return 1 << bits.TrailingZeros64(all)
}

// VectorBegun reports whether v names memory or has an offset: missing memory is an error.
func VectorBegun(v *problem.Vector) bool { return v.Given() || v.Offset != 0 }

// IntAt returns an element of an int32 vector in host memory.
func IntAt(v *problem.Vector, i int) int {
	return int(int32(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):])))
}

// FloatAt returns an element of a float32 vector in host memory.
func FloatAt(v *problem.Vector, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
}
