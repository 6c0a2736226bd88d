package problem

import (
	"math"
	"strconv"
)

// Scale is attention.Scale, whose comment documents it.
type Scale struct {
	set bool
	v   float32
}

// ScaleOf is attention.ScaleOf.
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
