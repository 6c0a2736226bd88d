package half

import (
	"encoding/binary"
	"math"
)

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
