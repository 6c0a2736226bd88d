package gokernels

import "math"

const (
	log2e    = 0x1.715476p+0
	log2eLow = 0x1.4ae0cp-26
	ln2      = 0x1.62e42fefa39efp-1
	far      = 0x1p18
	rounding = 0x1.8p23 // adding and subtracting it rounds to an integer

	negativeZero = 0x80000000 // bits of the weight of a masked slot
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// fma is x*y+z, rounded once. The product is exact in float64. The sum is rounded to float64 and then to
// float32, which differs from one rounding only next to the middle of two float32, and below the normal ones.
func fma(x, y, z float32) float32 {
	p := float64(x) * float64(y)
	s := p + float64(z)
	if b := math.Float64bits(s); b&0x1fffffff == 0x10000000 || b&(0x7ff<<52) < 897<<52 {
		return roundOnce(p, float64(z), s)
	}
	return float32(s)
}

// roundOnce is p + z, whose sum in float64 is s, in float32. What s lacks goes into its last bit (rounding to
// odd), so that the second rounding sees it.
func roundOnce(p, z, s float64) float32 {
	big := s - p
	lost := (p - (s - big)) + (z - big)
	if b := math.Float64bits(s); lost != 0 && b&1 == 0 {
		if (lost > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}

// larger is a > b ? a : b, so b if one is NaN.
func larger(a, b float32) float32 {
	if a > b {
		return a
	}
	return b
}

func magnitude(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// exp2Poly is 2^r for |r| up to 0.51, within 2^-27; 1 for 0.
func exp2Poly(r float32) float32 {
	p := float32(0x1.441e52p-13)
	p = fma(p, r, 0x1.5f1822p-10)
	p = fma(p, r, 0x1.3b2a4ap-7)
	p = fma(p, r, 0x1.c6af56p-5)
	p = fma(p, r, 0x1.ebfbep-3)
	p = fma(p, r, 0x1.62e43p-1)
	return fma(p, r, 1)
}

// power is 2^k for integers k up to 0, 0 below the normal range.
func power(k float32) float32 {
	k = larger(-127, k) // keeps a NaN
	return math.Float32frombits(math.Float32bits(k+(127+rounding)) << 23)
}

// fractionOf is x log2(e) less the integer n next to it, for |x| up to far.
func fractionOf(x, n float32) float32 { return fma(x, log2eLow, fma(x, log2e, -n)) }

func round(x float32) float32 {
	x += rounding
	return x - rounding
}

// exponent is the integer next to x log2(e) - fraction.
func exponent(x, fraction float32) float32 { return round(fma(x, log2e, -fraction)) }

// ceiling is exponent, rounded up, so that no weight is above 1.
func ceiling(x, fraction float32) float32 { return round(fma(x, log2e, 0.5-fraction)) }

// weight is 2^(x log2(e) - fraction - m); NaN for NaN.
func weight(x, fraction, m float32) float32 {
	n := exponent(x, fraction)
	return float32(exp2Poly(fractionOf(x, n)-fraction) * power(n-m))
}

// tanhOf is within 2 units in the last place.
func tanhOf(x float32) float32 {
	a := magnitude(x)
	z := float32(a * a)
	p := float32(0x1.335ad6p-9)
	p = fma(p, z, -0x1.12e222p-7)
	p = fma(p, z, 0x1.64e15ep-6)
	p = fma(p, z, -0x1.ba0c1ep-5)
	p = fma(p, z, 0x1.1110f2p-3)
	p = fma(p, z, -0x1.555556p-2)
	t := fma(a*z, p, a)
	if !(a < 0.6) {
		e := weight(larger(-40, a*-2), 0, 0)
		t = (1 - e) / (1 + e)
	}
	return math.Float32frombits(math.Float32bits(t) | math.Float32bits(x)&(1<<31))
}

// Exp replaces elements, which are at most 0, by their exponential.
func Exp(x []float32) { exps(x) }

var (
	zeros [Lanes]float32
	lows  = [Lanes]float32{-150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150, -150}
)

// exps is Exp of whole vectors.
func exps(x []float32) {
	if n := len(x) / Lanes; fastSoftmax && n > 0 {
		weightRows(x, n, &lows, zeros[:], &zeros)
		x = x[n*Lanes:]
	}
	for i, v := range x {
		x[i] = weight(larger(-150, v), 0, 0)
	}
}

// Tanh replaces elements by their hyperbolic tangent.
func Tanh(x []float32) {
	for i, v := range x {
		x[i] = tanhOf(v)
	}
}
