package plan

import (
	"math"

	"vkattn/attention/problem"
)

// factors are the numbers that kernels take from a Config. scale turns products of Q and K
// into scores; UnitHigh + UnitLow turns scores into natural exponents.
type factors struct{ Scale, UnitHigh, UnitLow float32 }

// ScoreFactors holds the factors for each unit of scores.
type ScoreFactors struct {
	Products factors // scores are scaled products, as exponents of two
	natural  factors // scores have a bias or ALiBi and are natural exponents
}

func FactorsOf(c problem.Config) ScoreFactors {
	var f ScoreFactors
	high, low := logUnit(c)
	f.Products = factors{scaleLog2(c), high, low}
	f.natural = factors{c.ScaleValue(), 1, 0}
	return f
}

// leastScaleLog2 is the smallest |scaleLog2|.
const leastScaleLog2 = 0x1p-100

// scaleLog2 returns the scale in log2 units. Kernels multiply masked scores, which are
// -Inf, by it. A scale of 0 becomes a number too small to matter, so that -Inf stays -Inf.
func scaleLog2(c problem.Config) float32 {
	s := float64(c.ScaleValue()) * math.Log2E
	if math.Abs(s) < leastScaleLog2 {
		return float32(math.Copysign(leastScaleLog2, s))
	}
	return float32(s)
}

// logUnit returns |scale| / |scaleLog2|, almost ln 2, as the sum of two float32. A kernel's
// row max is in units of the rounded scaleLog2, LSE in units of scale. If scaleLog2 is
// leastScaleLog2 in place of a smaller scale, logUnit is ln 2: the row max may contain the
// exponents of scales of V.
func logUnit(c problem.Config) (high, low float32) {
	unit := math.Abs(float64(c.ScaleValue())) / math.Abs(float64(scaleLog2(c)))
	if math.Abs(float64(scaleLog2(c))) == leastScaleLog2 {
		unit = math.Ln2
	}
	high = float32(unit)
	return high, float32(unit - float64(high))
}
