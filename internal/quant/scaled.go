package quant

import "math"

// EncodeInt8 rounds src to signed bytes that share a scale, to nearest, ties to even. It
// returns the scale, max|src| / 127. It panics if dst is too short.
func EncodeInt8(dst []byte, src []float32) (scale float32) {
	dst = dst[:len(src)]
	scale, inverse := scaleOf(src, 127)
	for i, x := range src {
		dst[i] = byte(int8(min(max(math.RoundToEven(float64(x)*inverse), -127), 127)))
	}
	return scale
}

// DecodeInt8 reads numbers without applying their scale. It panics if src is too short.
func DecodeInt8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = float32(int8(b))
	}
}

// EncodeFP8 rounds src to float8 e4m3 that share a scale. It returns the scale,
// max|src| / 448. It panics if dst is too short.
func EncodeFP8(dst []byte, src []float32) (scale float32) {
	dst = dst[:len(src)]
	scale, inverse := scaleOf(src, MaxFP8)
	for i, x := range src {
		dst[i] = FP8FromFloat32(float32(float64(x) * inverse))
	}
	return scale
}

// DecodeFP8 reads numbers without applying their scale. It panics if src is too short.
func DecodeFP8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = fp8Values[b]
	}
}

// scaleOf returns the scale that maps the largest magnitude of src to most, and its
// inverse. Both are 0 if src is all zeros.
func scaleOf(src []float32, most float64) (scale float32, inverse float64) {
	var largest float64
	for _, x := range src {
		largest = max(largest, math.Abs(float64(x)))
	}
	scale = float32(largest / most)
	if scale == 0 {
		return 0, 0
	}
	return scale, 1 / float64(scale)
}
