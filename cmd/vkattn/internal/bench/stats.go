package bench

import "slices"

// Summary summarizes the samples of a row, in milliseconds. No sample is dropped: quote
// the median, and judge it by its distance from Min and Max.
type Summary struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Summarize returns the Summary of samples, zeros if there are none.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return Summary{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}
