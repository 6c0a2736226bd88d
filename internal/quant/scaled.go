package quant

import "math"

// encodeInt8 rounds to nearest, ties to even.
func encodeInt8(dst []byte, src []float32) float32 {
	return encodeScaled(dst, src, 127, func(x float64) byte { return byte(int8(min(max(math.RoundToEven(x), -127), 127))) })
}

func decodeInt8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = float32(int8(b))
	}
}

func encodeFP8(dst []byte, src []float32) float32 {
	return encodeScaled(dst, src, MaxFP8, func(x float64) byte { return FP8FromFloat32(float32(x)) })
}

func decodeFP8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = fp8Values[b]
	}
}

func encodeE5M2(dst []byte, src []float32) float32 {
	return encodeScaled(dst, src, MaxE5M2, func(x float64) byte { return E5M2FromFloat32(float32(x)) })
}

func decodeE5M2(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = E5M2ToFloat32(b)
	}
}

// encodeScaled encodes numbers that share a scale, which maps the largest magnitude to most.
// It returns the scale, 0 if all numbers are 0.
func encodeScaled(dst []byte, src []float32, most float64, number func(float64) byte) (scale float32) {
	dst = dst[:len(src)]
	var magnitude, inverse float64
	for _, x := range src {
		magnitude = max(magnitude, math.Abs(float64(x)))
	}
	if scale = float32(magnitude / most); scale != 0 {
		inverse = 1 / float64(scale)
	}
	for i, x := range src {
		dst[i] = number(float64(x) * inverse)
	}
	return scale
}
