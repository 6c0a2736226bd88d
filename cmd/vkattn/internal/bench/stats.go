package bench

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Summary summarizes the samples of a row, in milliseconds. No sample is dropped: quote
// the median with its interval, and judge it by its distance from Min and Max.
type Summary struct {
	Min    float64 `json:"min"`
	Mean   float64 `json:"mean,omitzero"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	// Low and High bound the interval that holds the true median with a probability of at
	// least 95 %, by the binomial distribution of ranks. They are 0 for fewer than six
	// samples, which have no such interval.
	Low  float64 `json:"median_low,omitzero"`
	High float64 `json:"median_high,omitzero"`
}

// Confidence is the confidence of a median's interval.
const Confidence = 0.95

// Summarize returns the Summary of samples, zeros if there are none.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := benchmath.NewSample(slices.Clone(samples), &benchmath.DefaultThresholds)
	of := benchmath.AssumeNothing.Summary(s, Confidence)
	out := Summary{Min: s.Values[0], Median: of.Center, Max: s.Values[len(s.Values)-1]}
	for _, v := range samples {
		out.Mean += v / float64(len(samples))
	}
	if !math.IsInf(of.Lo, 0) && !math.IsInf(of.Hi, 0) {
		out.Low, out.High = of.Lo, of.Hi
	}
	return out
}

// Noise is the larger distance of the interval's ends from the median, as a share of the
// median. It is +Inf if the samples are too few for an interval.
func (s Summary) Noise() float64 {
	if s.High == 0 || s.Median <= 0 {
		return math.Inf(1)
	}
	return max(s.High-s.Median, s.Median-s.Low) / s.Median
}
