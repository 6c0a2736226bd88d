package tests

import (
	"math"

	"vkattn/attention"
	"vkattn/attention/half"
	"vkattn/attention/inputs"
)

// dataKind is a way to choose the numbers of a problem.
type dataKind uint8

const (
	normal  dataKind = iota // mean 0, variance 1
	uniform                 // [-1, 1)
	large                   // normal, with scores to about +-1e4
	rising                  // each score about 10 above the one before, up to 1e4: the maximum moves at every key
	falling                 // the reverse: the first key decides
	equal                   // all keys the same: O is the mean of V
	dataKinds
)

func (k dataKind) String() string {
	return [...]string{"normal", "uniform", "large", "rising", "falling", "equal"}[k]
}

// tensorData is a packed [B, H, S, D] tensor before it is put into memory.
func tensorData(n int64, d inputs.Distribution, seed uint64) []float32 {
	v := make([]float32, n)
	half.DecodeF32(v, inputs.New(n, attention.F32, d, seed))
	return v
}

// makeData makes Q, K and V of a case.
func makeData(c testCase) (q, k, v []float32) {
	s := c.shape
	kv := int64(s.B) * int64(s.KVHeads()) * int64(s.Sk)
	d := inputs.Normal
	if c.data == uniform {
		d = inputs.Uniform
	}
	seed := c.seedValue()
	q = tensorData(s.Rows()*int64(c.d), d, seed)
	k = tensorData(kv*int64(c.d), d, seed+1)
	v = tensorData(kv*int64(c.dv), d, seed+2)
	scale := math.Abs(float64(c.config(tierType{}).ScaleValue()))
	if scale == 0 {
		scale = 1 // the scores vanish, whatever they are
	}
	switch c.data {
	case large:
		// A score has standard deviation scale*a*a*sqrt(d); four of them are 1e4.
		a := float32(min(math.Sqrt(2500/(scale*math.Sqrt(float64(c.d)))), 1000))
		multiply(q, a)
		multiply(k, a)
	case rising, falling:
		ramp(q, k, c, scale)
	case equal:
		for i := range k {
			k[i] = k[i%c.d]
		}
	}
	return q, k, v
}

// ramp makes the first element of Q and K carry a score of 10 times the key's
// number, from the first or the last key on. The other elements make a little
// noise of it.
func ramp(q, k []float32, c testCase, scale float64) {
	step := min(10, 1e4/float64(c.shape.Sk))
	const gain = 16 // keeps K within the range of f16
	for i := range q {
		if i%c.d == 0 {
			q[i] = gain
		}
	}
	for i := range k {
		if i%c.d != 0 {
			continue
		}
		key := i / c.d % c.shape.Sk
		if c.data == falling {
			key = -key
		}
		k[i] = float32(float64(key) * step / (scale * gain))
	}
}

func multiply(v []float32, a float32) {
	for i := range v {
		v[i] *= a
	}
}
