package half

import "math"

const (
	f32Inf   = 0x7f800000
	f32Quiet = 0x00400000

	f16Inf   = 0x7c00
	f16Quiet = 0x0200
	// Moving a binary16's exponent and fraction up 13 bits leaves the exponent
	// short by the difference of the biases, 127 - 15.
	f16Rebias = (127 - 15) << 23
	// Halves are normal from 2^-14 on, and overflow at 2^16 whatever the
	// rounding (65520 to 65536 reach Inf by a carry out of the fraction).
	f16MinNormal = (127 - 14) << 23
	f16Overflow  = (127 + 16) << 23
)

// F16ToFloat32 widens a binary16.
func F16ToFloat32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	mag := uint32(h & 0x7fff)
	switch {
	case mag >= f16Inf:
		b := sign | f32Inf | (mag&0x3ff)<<13
		if mag > f16Inf {
			b |= f32Quiet
		}
		return math.Float32frombits(b)
	case mag >= 0x400:
		return math.Float32frombits(sign | (mag<<13 + f16Rebias))
	}
	// Subnormal or zero: mag units of 2^-24, exact in float32.
	return math.Float32frombits(sign | math.Float32bits(float32(mag)*0x1p-24))
}

// F16FromFloat32 narrows to a binary16.
func F16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b >= f16Overflow:
		if b > f32Inf {
			return sign | f16Inf | f16Quiet | uint16(b>>13)&0x3ff
		}
		return sign | f16Inf
	case b >= f16MinNormal:
		// Half a unit less one, plus one if odd: ties go to even. The carry
		// may run into the exponent, which is what rounding up means.
		b += (b>>13)&1 + 0xfff
		return sign | uint16((b-f16Rebias)>>13)
	}
	// Adding 0.5 puts the unit of the float32 sum at 2^-24, the unit of
	// subnormal halves, so the addition itself rounds.
	sum := math.Float32frombits(b) + 0.5
	return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
}
