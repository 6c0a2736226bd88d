package cases

import (
	"math"

	"vkattn/internal/enum"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
)

// DataKind is a distribution of the numbers of a problem.
type DataKind uint8

const (
	Normal  DataKind = iota // mean 0, variance 1
	Uniform                 // [-1, 1)
	Large                   // normal, with scores to about +-1e4
	Rising                  // each score about 10 above the one before, up to 1e4: the maximum moves at every key
	Falling                 // the reverse: the first key decides
	Equal                   // all keys the same: O is the mean of V
	DataKinds
)

var dataNames = []string{"normal", "uniform", "large", "rising", "falling", "equal"}

func (k DataKind) String() string { return dataNames[k] }

// Set sets the kind by its name.
func (k *DataKind) Set(s string) error {
	return enum.Set(k, s, func(s string) (DataKind, error) { return enum.Parse[DataKind]("data", dataNames, s) })
}

// randomFloats are n random numbers.
func randomFloats(n int64, d inputs.Distribution, seed uint64) []float32 {
	x := make([]float32, n)
	half.DecodeF32(x, inputs.New(n, problem.F32, d, seed))
	return x
}

// makeData makes Q, K and V of a case.
func makeData(c Case) (q, k, v []float32) {
	s := c.Shape
	kv := int64(s.B) * int64(s.KVHeads()) * int64(s.Sk)
	d := inputs.Normal
	if c.Data == Uniform {
		d = inputs.Uniform
	}
	seed := c.SeedValue()
	q = randomFloats(s.Rows()*int64(c.D), d, seed)
	k = randomFloats(kv*int64(c.D), d, seed+1)
	v = randomFloats(kv*int64(c.Dv), d, seed+2)
	scale := math.Abs(float64(c.Config(Target{}).ScaleValue()))
	if scale == 0 {
		scale = 1 // all scores are 0 anyway
	}
	switch c.Data {
	case Large:
		// A score has standard deviation scale*a*a*sqrt(d); four of them are 1e4.
		a := float32(min(math.Sqrt(2500/(scale*math.Sqrt(float64(c.D)))), 1000))
		multiply(q, a)
		multiply(k, a)
	case Rising, Falling:
		ramp(q, k, c, scale)
	case Equal:
		for i := range k {
			k[i] = k[i%c.D]
		}
	}
	return q, k, v
}

// ramp makes the first elements of Q and K produce a score of 10 times the key's index,
// counted from the first or the last key. The other elements add a little noise.
func ramp(q, k []float32, c Case, scale float64) {
	step := min(10, 1e4/float64(c.Shape.Sk))
	const gain = 16 // keeps K within the range of f16
	for i := range q {
		if i%c.D == 0 {
			q[i] = gain
		}
	}
	for i := range k {
		if i%c.D != 0 {
			continue
		}
		key := i / c.D % c.Shape.Sk
		if c.Data == Falling {
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
