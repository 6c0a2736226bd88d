package gokernels

func productBlock(sums *[blockRows * Lanes]float32, lanes, n, depth int, skip skipping, a matrix, b []float32, bRow int) {
	productInGo(sums, lanes, n, depth, skip, a, b, bRow)
}
