package plan

import (
	"math"

	"vkattn/internal/errs"
	"vkattn/internal/problem"
)

// factors are the numbers that kernels take from a Config. Scale turns products of Q and K
// into scores; UnitHigh + UnitLow turns scores into natural exponents. Softcap is in the unit
// of scores; 0: off. All are normal numbers or 0, since a device may flush subnormals.
type factors struct{ Scale, UnitHigh, UnitLow, Softcap float32 }

// ScoreFactors holds the factors for each unit of scores.
type ScoreFactors struct {
	Products factors // scores are scaled products, as exponents of two
	Natural  factors // scores are natural exponents: those with a bias or ALiBi, and all of backward
}

func FactorsOf(c problem.Config) ScoreFactors {
	var f ScoreFactors
	high, low := logUnit(c)
	f.Products = factors{scaleLog2(c), high, low, softcapIn(c, math.Log2E)}
	f.Natural = factors{c.ScaleValue(), 1, 0, softcapIn(c, 1)}
	if math.Abs(float64(f.Natural.Scale)) < leastNormal {
		f.Natural.Scale = 0
	}
	return f
}

// leastNormal is the smallest normal float32.
const leastNormal = 0x1p-126

// leastScaleLog2 is the smallest |scaleLog2|. Its inverse times the rescale threshold of
// shaders/softmax.glsl, 7.5, is a float32.
const leastScaleLog2 = 0x1p-124

// scaleLog2 returns the scale in log2 units. Kernels multiply masked scores, which are
// -Inf, by it. A scale of 0 becomes a number too small to matter, so that -Inf stays -Inf.
func scaleLog2(c problem.Config) float32 {
	s := float64(c.ScaleValue()) * math.Log2E
	if math.Abs(s) < leastScaleLog2 {
		return float32(math.Copysign(leastScaleLog2, s))
	}
	return float32(s)
}

// CheckScale refuses a scale whose scaleLog2 is not a float32.
func CheckScale(c *problem.Config) error {
	if !math.IsInf(float64(scaleLog2(*c)), 0) {
		return nil
	}
	return errs.Refuse(&problem.ShapeError{Field: "Scale", Got: c.Scale,
		Want: "a magnitude of at most 2.358e38 on a device, whose kernels take the scale times log2(e) in float32"})
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

// mostSoftcap is the largest softcap of a kernel, which computes cap * tanh(score / cap). A
// larger cap makes the quotients of small scores subnormal: they become 0, and a score is off
// by up to cap * 2^-126. With 2^104 that is 2^-22, and scores of up to 2^90 are not capped.
const mostSoftcap = 0x1p104

// softcapIn returns the softcap in a unit of scores: unit is the number of them in a natural
// exponent. A softcap below the smallest normal number becomes that: scores are next to 0.
func softcapIn(c problem.Config, unit float64) float32 {
	if c.Softcap == 0 {
		return 0
	}
	return float32(min(max(float64(c.Softcap)*unit, leastNormal), mostSoftcap))
}
