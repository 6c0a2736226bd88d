package quant

import (
	"math"

	"vkattn/internal/half"
)

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
