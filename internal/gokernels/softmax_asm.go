//go:build amd64 || arm64

package gokernels

import "unsafe"

// fastSoftmax reports whether the functions below may be called.
var fastSoftmax = hasFast

// weightRows turns the scores of n keys into weights, of len(fraction) lanes.
func weightRows(s []float32, n int, least *[Lanes]float32, fraction []float32, m *[Lanes]float32) {
	for i := 0; i < len(fraction); i += vectorOf {
		weightsOf(unsafe.Pointer(&s[i]), n, unsafe.Pointer(&least[i]), unsafe.Pointer(&fraction[i]), unsafe.Pointer(&m[i]))
	}
}

// weightRowsSum is weightRows that adds the weights to sums.
func weightRowsSum(s []float32, n int, least *[Lanes]float32, fraction []float32, m *[Lanes]float32, sum, carry []float32) {
	for i := 0; i < len(fraction); i += vectorOf {
		weightsSumOf(unsafe.Pointer(&s[i]), n, unsafe.Pointer(&least[i]), unsafe.Pointer(&fraction[i]), unsafe.Pointer(&m[i]),
			unsafe.Pointer(&sum[i]), unsafe.Pointer(&carry[i]))
	}
}

// largestRows sets the largest scores of n keys.
func largestRows(s []float32, n int, largest *[Lanes]float32) {
	for i := 0; i < Lanes; i += vectorOf {
		largestOf(unsafe.Pointer(&s[i]), n, unsafe.Pointer(&largest[i]))
	}
}
