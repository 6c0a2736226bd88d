package problem

import (
	"math"
	"strconv"
)

// Scale multiplies Q Kᵀ before the softmax. The zero value is the usual
// 1/sqrt(HeadDim); [ScaleOf] fixes any other finite number, 0 and negative
// ones included.
type Scale struct {
	set bool
	v   float32
}

// ScaleOf is a Scale of exactly v. Config.Validate refuses NaN and Inf.
func ScaleOf(v float32) Scale { return Scale{set: true, v: v} }

// IsDefault reports whether s is the zero value, 1/sqrt(HeadDim).
func (s Scale) IsDefault() bool { return !s.set }

// Value is the factor for a head dimension of Q and K.
func (s Scale) Value(headDim int) float32 {
	if s.set {
		return s.v
	}
	return float32(1 / math.Sqrt(float64(headDim)))
}

// String is "default" or the number.
func (s Scale) String() string {
	if !s.set {
		return "default"
	}
	return strconv.FormatFloat(float64(s.v), 'g', -1, 32)
}

func (s Scale) finite() bool {
	return !math.IsNaN(float64(s.v)) && !math.IsInf(float64(s.v), 0)
}
