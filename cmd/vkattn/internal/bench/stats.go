package bench

import "slices"

// Summary is what a row says of its samples. No sample is dropped: the median
// is the number to quote, and the distance of Min and Max from it says how
// much to trust it.
type Summary struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Summarize orders a copy of the samples. No samples give zeros.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return Summary{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}
