// Package half converts between float32 and the two 16-bit floating-point
// types: IEEE 754 binary16 (f16) and bfloat16 (bf16).
//
// Narrowing rounds to nearest, ties to even, gives subnormals and overflows to
// Inf. Widening is exact. A NaN stays a NaN of the same sign, made quiet, with
// as much of its payload as fits. Bytes are little-endian.
package half

import (
	"encoding/binary"
	"math"
)

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

// The bulk functions convert len(dst) elements when widening and len(src)
// elements when narrowing. They panic, as copy loops over slices do, when the
// other slice is too short.

// DecodeF16 widens little-endian binary16 from src.
// It panics where src is too short.
func DecodeF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = F16ToFloat32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// EncodeF16 narrows src to little-endian binary16 in dst.
// It panics where dst is too short.
func EncodeF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F16FromFloat32(f))
	}
}

// DecodeBF16 widens little-endian bfloat16 from src.
// It panics where src is too short.
func DecodeBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = BF16ToFloat32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// EncodeBF16 narrows src to little-endian bfloat16 in dst.
// It panics where dst is too short.
func EncodeBF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], BF16FromFloat32(f))
	}
}

// DecodeF32 reads little-endian float32 from src and changes no bit.
// It panics where src is too short.
func DecodeF32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// EncodeF32 writes src to dst as little-endian float32 and changes no bit.
// It panics where dst is too short.
func EncodeF32(dst []byte, src []float32) {
	dst = dst[:4*len(src)]
	for i, f := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}
