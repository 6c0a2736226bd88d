package half

import "math"

// BF16ToFloat32 widens a bfloat16, the upper half of a float32.
func BF16ToFloat32(h uint16) float32 {
	b := uint32(h) << 16
	if b&0x7fffffff > f32Inf {
		b |= f32Quiet
	}
	return math.Float32frombits(b)
}

// BF16FromFloat32 narrows to a bfloat16.
func BF16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > f32Inf {
		// Rounding could carry a NaN's payload away; cut it off instead.
		return uint16((b | f32Quiet) >> 16)
	}
	return uint16((b + (b>>16)&1 + 0x7fff) >> 16)
}
