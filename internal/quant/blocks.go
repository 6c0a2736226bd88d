package quant

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
)

// Sizes of a block of Q8_0 and Q4_0: elements, and bytes with the scale.
const (
	BlockElements = 32
	Q8Bytes       = 2 + BlockElements
	Q4Bytes       = 2 + BlockElements/2
)

// EncodeQ8_0 encodes whole blocks: len(src) is a multiple of 32. It panics if dst is too
// short.
func EncodeQ8_0(dst []byte, src []float32) {
	for ; len(src) >= BlockElements; dst, src = dst[Q8Bytes:], src[BlockElements:] {
		var most float32
		for _, x := range src[:BlockElements] {
			most = max(most, abs(x))
		}
		inverse := putScale(dst, most/127)
		for i, x := range src[:BlockElements] {
			dst[2+i] = byte(int8(math.Round(float64(x * inverse))))
		}
	}
}

// DecodeQ8_0 decodes whole blocks. Every element is exact in float32. It panics if src is
// too short.
func DecodeQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= BlockElements; dst, src = dst[BlockElements:], src[Q8Bytes:] {
		scale := half.F16ToFloat32(binary.LittleEndian.Uint16(src))
		for i, b := range src[2:Q8Bytes] {
			dst[i] = scale * float32(int8(b))
		}
	}
}

// EncodeQ4_0 encodes whole blocks: len(src) is a multiple of 32. It panics if dst is too
// short.
func EncodeQ4_0(dst []byte, src []float32) {
	for ; len(src) >= BlockElements; dst, src = dst[Q4Bytes:], src[BlockElements:] {
		var most float32
		for _, x := range src[:BlockElements] {
			if abs(x) > abs(most) {
				most = x
			}
		}
		inverse := putScale(dst, most/-8)
		number := func(x float32) byte { return byte(min(15, int8(float32(x*inverse)+8.5))) }
		for i := range BlockElements / 2 {
			dst[2+i] = number(src[i]) | number(src[i+BlockElements/2])<<4
		}
	}
}

// DecodeQ4_0 decodes whole blocks. Every element is exact in float32. It panics if src is
// too short.
func DecodeQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= BlockElements; dst, src = dst[BlockElements:], src[Q4Bytes:] {
		scale := half.F16ToFloat32(binary.LittleEndian.Uint16(src))
		for i, b := range src[2:Q4Bytes] {
			dst[i] = scale * float32(int(b&15)-8)
			dst[i+BlockElements/2] = scale * float32(int(b>>4)-8)
		}
	}
}

// putScale stores a block's scale as f16 and returns the inverse of the unrounded scale;
// 0 if float32 does not hold it.
func putScale(dst []byte, scale float32) (inverse float32) {
	binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
	inverse = 1 / scale
	if math.IsInf(float64(inverse), 0) {
		return 0
	}
	return inverse
}

func abs(x float32) float32 { return float32(math.Abs(float64(x))) }
