// Package quant converts rows of float32 to and from the quantized types of K and V.
//
// Formats lists the types. Int8, FP8 and FP8E5M2 store numbers without their scale, which the
// caller stores separately: element = scale * number. The encoders choose the scale so that
// the largest magnitude of the elements that share it becomes the type's largest number, 127,
// 448 or 57344.
//
// The others store rows as blocks of 32 elements, each after its scale, an f16, and in Q4_1 and
// Q5_1 a minimum, another f16. The encoders round like ggml's reference quantizers
// (quantize_row_q8_0_ref and so on), so they write the same bytes as llama.cpp, except IQ4NL:
//
//   - Q8_0: scale = max|x| / 127 in float32; numbers are x * (1/scale), rounded to
//     nearest with ties away from 0. The scale is rounded to f16 afterwards.
//   - Q4_0 and Q5_0: scale = m / -8 or m / -16, where m is the first element of the largest
//     magnitude, with its sign; codes are x * (1/scale) + 8.5 or 16.5, truncated to an integer
//     and at most 15 or 31, so m itself is stored exactly, as 0, and ties go up.
//   - Q4_1 and Q5_1: scale = (max - min) / 15 or 31; codes are (x - min) * (1/scale) + 0.5,
//     truncated and at most 15 or 31. Scale and minimum are rounded to f16 afterwards.
//   - IQ4NL: scale = m / -127; the code is that of the nearest number, of two the larger one.
//     ggml searches for a scale with a smaller error, and its bytes differ.
//
// FP8DSMLA stores a row of K of DeepSeek's latent attention in 656 bytes, as FlashMLA and vLLM
// (fp8_ds_mla) do: 512 float8 e4m3, which are V too, then four float32 scales, each of 128 of
// them, then 64 bfloat16, the part with the rotary embedding. The encoder's scale is
// max(max|x| / 448, 2^-126), as that of vLLM's concat_and_cache_ds_mla_kernel; FlashMLA's
// tests/quant.py rounds max|x| / 448, at least 1e-4, up to a power of two. Readers take any
// scale. 128 numbers below 2^-100 are stored as zeros with the scale 2^-126, and where one is
// not finite as zeros with the scale NaN.
//
// Other elements to encode must be finite. Bytes are little-endian.
package quant

import (
	"math"

	"vkattn/internal/half"
)

// Format is a storage type of quantized numbers.
type Format struct {
	Name string

	// Elements and bytes of the smallest unit that is stored: a number, a block of
	// BlockElements numbers with their scale, or a row.
	Elements, Bytes int

	// Encode encodes whole units: len(src) is a multiple of Elements. It returns the scale
	// that the numbers share if it is not in the unit, else 0. Decode decodes whole units, of
	// a row as many elements as dst has, without a scale that is not in the unit. Both panic,
	// like copy loops over slices, if dst or src is too short.
	Encode func(dst []byte, src []float32) (scale float32)
	Decode func(dst []float32, src []byte)

	number  func(x float64) byte // of a type with separate scales: the nearest number, at most largest in magnitude
	largest float64
}

// Scaled reports whether numbers have a scale that is stored elsewhere. A nil Format has none.
func (f *Format) Scaled() bool { return f != nil && f.Elements == 1 }

// Row reports whether a unit is a row of K. A nil Format has none.
func (f *Format) Row() bool { return f != nil && f.Elements > BlockElements }

// Formats lists all formats. Value n of problem.KVType and of the shaders' K_TYPE, V_TYPE and
// CACHE_TYPE is entry n - 1, as is entry n - 1 of the quantized types in internal/simd.
var Formats = []*Format{Int8, FP8, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4NL, FP8E5M2, FP8DSMLA}

// The formats.
var (
	Int8     = scaledFormat("int8", 127, int8Of, decodeInt8)
	FP8      = scaledFormat("fp8", MaxFP8, func(x float64) byte { return FP8FromFloat32(float32(x)) }, decodeFP8)
	FP8E5M2  = scaledFormat("fp8-e5m2", MaxE5M2, func(x float64) byte { return E5M2FromFloat32(float32(x)) }, decodeE5M2)
	FP8DSMLA = &Format{Name: "fp8_ds_mla", Elements: LatentElements, Bytes: latentBytes, Encode: encodeLatent, Decode: decodeLatent}
	Q8_0     = &Format{Name: "q8_0", Elements: BlockElements, Bytes: q8Bytes, Encode: encodeQ8, Decode: decodeQ8}
	Q4_0     = formatOf("q4_0", &blocks{numbers: steps(-8, 7)})
	Q4_1     = formatOf("q4_1", &blocks{numbers: steps(0, 15), hasMin: true})
	Q5_0     = formatOf("q5_0", &blocks{numbers: steps(-16, 15)})
	Q5_1     = formatOf("q5_1", &blocks{numbers: steps(0, 31), hasMin: true})
	IQ4NL    = formatOf("iq4_nl", &blocks{numbers: []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}})
)

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

// MaxFP8 is the largest float8 e4m3.
const MaxFP8 = 448

const (
	fp8NaN        = 0x7f
	fp8Mantissa   = 3
	fp8Bias       = 7
	fp8LeastPower = 1 - fp8Bias - fp8Mantissa // of the unit of subnormals, 2^-9
)

var fp8Values = func() (values [256]float32) {
	for i := range values {
		exponent, fraction := i>>fp8Mantissa&15, i&(1<<fp8Mantissa-1)
		v := math.Ldexp(float64(fraction), fp8LeastPower)
		switch {
		case i&0x7f == fp8NaN:
			v = math.NaN()
		case exponent > 0:
			v = math.Ldexp(float64(fraction+1<<fp8Mantissa), fp8LeastPower+exponent-1)
		}
		if i >= 128 {
			v = -v
		}
		values[i] = float32(v)
	}
	return values
}()

// FP8ToFloat32 widens a float8 e4m3 (OCP, finite only): 1 sign bit, 4 of exponent
// with bias 7, 3 of fraction; 0x7f and 0xff are NaN and nothing is Inf.
func FP8ToFloat32(b byte) float32 { return fp8Values[b] }

// FP8FromFloat32 rounds to the nearest float8 e4m3, ties to even. Values beyond the
// largest number, Inf included, saturate; NaN stays NaN.
func FP8FromFloat32(f float32) byte {
	sign := byte(math.Float32bits(f) >> 31 << 7)
	x := math.Abs(float64(f))
	switch {
	case x != x:
		return sign | fp8NaN
	case x >= MaxFP8:
		return sign | fp8NaN - 1
	case x == 0:
		return sign
	}
	_, exponent := math.Frexp(x) // x is in [2^(exponent-1), 2^exponent)
	power := max(exponent-1-fp8Mantissa, fp8LeastPower)
	// 8 to 16 units of 2^power, below 8 for subnormals; 16 carries into the exponent
	// by itself.
	units := int(math.RoundToEven(math.Ldexp(x, -power)))
	return sign | byte((power-fp8LeastPower)<<fp8Mantissa+units)
}

// MaxE5M2 is the largest finite float8 e5m2.
const MaxE5M2 = 57344

// E5M2ToFloat32 widens a float8 e5m2, which is the upper byte of a float16: 1 sign bit, 5 of
// exponent with bias 15, 2 of fraction; an exponent of all ones is Inf or, with a fraction, NaN.
func E5M2ToFloat32(b byte) float32 { return half.F16ToFloat32(uint16(b) << 8) }

// E5M2FromFloat32 rounds to the nearest float8 e5m2, ties to even. Finite values beyond the
// largest number saturate; Inf and NaN stay.
func E5M2FromFloat32(f float32) byte {
	sign := byte(math.Float32bits(f) >> 31 << 7)
	x := math.Abs(float64(f))
	switch {
	case x != x:
		return sign | 0x7e
	case math.IsInf(x, 0):
		return sign | 0x7c
	case x >= MaxE5M2:
		return sign | 0x7b
	case x == 0:
		return sign
	}
	_, exponent := math.Frexp(x) // x is in [2^(exponent-1), 2^exponent)
	power := max(exponent-3, -16)
	// 4 to 8 units of 2^power, below 4 for subnormals; 8 carries into the exponent by itself.
	units := int(math.RoundToEven(math.Ldexp(x, -power)))
	return sign | byte((power+16)<<2+units)
}
