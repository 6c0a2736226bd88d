package attention

import "math"

// expf is e^x for x <= 0, accurate to 2 units in the last place. Results below
// the normal range are 0; NaN gives NaN. It is several times faster than
// math.Exp, which the softmax of short heads notices.
//
// x = n ln 2 + r with |r| <= ln(2)/2, and e^r is a Taylor polynomial whose
// first omitted term, r^8/8!, is below 2^-27.
func expf(x float32) float32 {
	const (
		log2e = 1.44269504
		// ln 2 in two parts; the first has so few bits that n*ln2Hi is exact.
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
		least = -87.33 // ln of the smallest normal float32
	)
	if x < least {
		return 0
	}
	n := int32(x*log2e - 0.5) // truncation rounds to nearest, as x <= 0
	t := float32(n)
	r := x - t*ln2Hi
	r -= t * ln2Lo
	e := float32(1.0 / 5040)
	e = e*r + 1.0/720
	e = e*r + 1.0/120
	e = e*r + 1.0/24
	e = e*r + 1.0/6
	e = e*r + 1.0/2
	e = e*r + 1
	e = e*r + 1
	// A NaN leaves n undefined but survives this product.
	return e * math.Float32frombits(uint32(n+127)<<23)
}
