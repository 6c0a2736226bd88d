package attention

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// tensorBegun reports whether t names memory, or has an offset or strides: missing memory is
// an error.
func tensorBegun(t *Tensor) bool { return t.Given() || t.Offset != 0 || t.Strides != (Strides{}) }

// baseOf is the byte position of a device tensor's first element: an address, or
// an offset into its VkBuffer, which descriptors align to far more than 16.
func baseOf(t *Tensor, size int64, a Access) uint64 {
	at := uint64(t.Offset * size)
	if a == AccessAddresses {
		return t.Buffer.Address() + at
	}
	return t.Buffer.Offset() + at
}

// largestAlignment is the largest of 1, 2, 4 and 8 that divides all of n.
func largestAlignment(n ...uint64) uint32 {
	all := uint64(8)
	for _, x := range n {
		all |= x
	}
	return 1 << bits.TrailingZeros64(all)
}

// vectorBegun reports whether v names memory or has an offset: missing memory is an error.
func vectorBegun(v *Vector) bool { return v.Given() || v.Offset != 0 }

// intAt returns an element of an int32 vector in host memory.
func intAt(v *Vector, i int) int {
	return int(int32(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):])))
}

// floatAt returns an element of a float32 vector in host memory.
func floatAt(v *Vector, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
}
