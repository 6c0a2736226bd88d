//go:build !amd64 && !arm64

package gokernels

// This CPU has no assembly here: the functions below are never called.
var hasFast, fastSoftmax = false, false

func fastProduct(int, int, int, skipping, matrix, []float32, int, store) int { return 0 }

func weightRows([]float32, int, *[Lanes]float32, []float32, *[Lanes]float32) {}
func weightRowsSum([]float32, int, *[Lanes]float32, []float32, *[Lanes]float32, []float32, []float32) {
}
func largestRows([]float32, int, *[Lanes]float32) {}
