package quant

import "math"

// scaledFormat is a type with separate scales.
func scaledFormat(name string, largest float64, number func(x float64) byte, decode func([]float32, []byte)) *Format {
	f := &Format{Name: name, Elements: 1, Bytes: 1, Decode: decode, number: number, largest: largest}
	f.Encode = func(dst []byte, src []float32) float32 {
		scale := f.ScaleOf(src)
		f.encode(dst, src, scale)
		return scale
	}
	return f
}

// ScaleOf returns the scale that maps the largest magnitude to the largest number of a Scaled format, 0 if all numbers are 0
// or the format is no such one.
func (f *Format) ScaleOf(src []float32) float32 {
	if f == nil || f.number == nil {
		return 0
	}
	var magnitude float64
	for _, x := range src {
		magnitude = max(magnitude, math.Abs(float64(x)))
	}
	return float32(magnitude / f.largest)
}

// LeastScale is the least magnitude of a scale that EncodeWith divides by.
const LeastScale = 0x1p-100

// EncodeWith encodes numbers of a Scaled format with a given scale, as many as both slices have. What is beyond the largest number becomes the largest
// number, and Inf too. NaN is stored as NaN, in int8 as 0. With a scale that is not finite, or below LeastScale in magnitude,
// all numbers are 0.
func (f *Format) EncodeWith(dst []byte, src []float32, scale float32) {
	if f == nil || f.number == nil {
		return
	}
	if s := math.Abs(float64(scale)); !(s >= LeastScale && s <= math.MaxFloat32) {
		scale = 0
	}
	n := min(len(dst), len(src))
	f.encode(dst[:n], src[:n], scale)
}

func (f *Format) encode(dst []byte, src []float32, scale float32) {
	dst = dst[:len(src)]
	if scale == 0 {
		clear(dst)
		return
	}
	inverse := 1 / float64(scale)
	for i, x := range src {
		dst[i] = f.number(min(max(float64(x)*inverse, -f.largest), f.largest)) // NaN stays
	}
}

// int8Of rounds to nearest, ties to even.
func int8Of(x float64) byte {
	if math.IsNaN(x) {
		return 0
	}
	return byte(int8(math.RoundToEven(x)))
}

func decodeInt8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = float32(int8(b))
	}
}

func decodeFP8(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = fp8Values[b]
	}
}

func decodeE5M2(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = E5M2ToFloat32(b)
	}
}
