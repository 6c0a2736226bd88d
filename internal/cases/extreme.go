package cases

import (
	"math"
	"math/rand/v2"

	"vkattn/internal/problem"
)

// Extremes are numbers at the ends of their ranges. The zero value keeps the ordinary
// numbers of a case.
type Extremes struct {
	// Sinks and Slopes of the query heads, repeated if there are more heads; nil: ordinary
	// ones.
	Sinks, Slopes []float32

	// Bias values. A quarter of the rows have one of them at every key, a quarter have one
	// drawn for each key, a quarter have them at one key in eight, and a quarter have
	// ordinary numbers.
	Bias []float32

	// KScales and VScales are scales of keys, of Scaled types. Every key has one of them; NaN
	// stands for an ordinary scale, and ScaleNaN for NaN.
	KScales, VScales []float32

	Q, K, V float32 // factors on the numbers of Q, K and V; 0: 1

	// NonFinite makes up to three numbers of Q, K and V of a sequence Inf or NaN; those of
	// float8 e4m3 NaN, and none of int8 and of blocks.
	NonFinite bool
	// FiniteScores leaves Inf out of Q and K: a score of -Inf has weight 0, and whether 0 times
	// that Inf reaches a gradient is not defined.
	FiniteScores bool
}

// ScaleNaN is a NaN among the scales of an Extremes.
var ScaleNaN = math.Float32frombits(scaleNaNBits)

const scaleNaNBits = 0x7fc00bad

// plantNonFinite makes some numbers of a sequence Inf or NaN.
func (c *Case) plantNonFinite(id int, q, k, v []float32) {
	if !c.Extremes.NonFinite {
		return
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	r := rand.New(rand.NewPCG(c.mix(mixNonFinite, id), 0))
	for i, x := range [][]float32{q, k, v} {
		of := []float32{nan, inf, -inf}
		switch {
		case i == 1 && c.KeyType == problem.KVFP8, i == 2 && c.valueType() == problem.KVFP8, i < 2 && c.Extremes.FiniteScores:
			of = of[:1]
		case i == 1 && (c.KeyType == problem.KVInt8 || c.KeyType.Blocked()), i == 2 && (c.valueType() == problem.KVInt8 || c.valueType().Blocked()):
			continue
		}
		for n := r.IntN(4); n > 0 && len(x) > 0; n-- {
			x[r.IntN(len(x))] = of[r.IntN(len(of))]
		}
	}
}

// multiply applies the factors to the numbers of Q, K and V.
func (e *Extremes) multiply(q, k, v []float32) {
	for _, f := range []struct {
		x      []float32
		factor float32
	}{{q, e.Q}, {k, e.K}, {v, e.V}} {
		if f.factor != 0 {
			multiply(f.x, f.factor)
		}
	}
}

// extremeBias is the bias of a slot; ok is false if the slot has an ordinary one.
func (c *Case) extremeBias(id, h, row, t int) (x float32, ok bool) {
	list := c.Extremes.Bias
	if list == nil {
		return 0, false
	}
	kind := c.mix(mixExtremeBias, id, h, row)
	which := kind >> 8
	each := c.mix(mixExtremeBias, id, h, row, t)
	switch kind % 4 {
	case 0:
		return 0, false
	case 1:
	case 2:
		which = each
	case 3:
		if each%8 > 0 {
			return 0, false
		}
		which = each >> 8
	}
	return storable(list[which%uint64(len(list))], c.Bias.DType), true
}

// storable is x rounded to a storage type, with finite numbers clamped to its range.
func storable(x float32, dtype problem.DType) float32 {
	most := map[problem.DType]float32{problem.F16: 65504, problem.BF16: 0x1.fep127, problem.F32: math.MaxFloat32}[dtype]
	if !math.IsInf(float64(x), 0) {
		x = max(-most, min(most, x))
	}
	return decodeFloats(encodeFloats([]float32{x}, dtype), dtype)[0]
}

// extremeScale is the scale of a key; ok is false if the key has an ordinary one.
func (c *Case) extremeScale(stream, id, kv, t int) (x float32, ok bool) {
	list := c.Extremes.KScales
	if stream == mixVScale {
		list = c.Extremes.VScales
	}
	if list == nil {
		return 0, false
	}
	x = list[c.mix(mixExtremeScale, stream, id, kv, t)%uint64(len(list))]
	return x, x == x || math.Float32bits(x) == scaleNaNBits
}
