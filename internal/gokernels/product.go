package gokernels

import (
	"math"
	"unsafe"
)

// matrix is a matrix of float32 in memory: element [i][j] is i * row + j * column elements from x. Steps may be
// negative.
type matrix struct {
	x           unsafe.Pointer
	row, column int
}

// matrixOf is a matrix that begins with the first element of x.
func matrixOf(x []float32, row, column int) matrix { return matrix{unsafe.Pointer(&x[0]), row, column} }

// from is the matrix without its first i rows and j columns.
func (m matrix) from(i, j int) matrix {
	m.x = unsafe.Add(m.x, 4*(i*m.row+j*m.column))
	return m
}

// skipping says which elements of the right factor a product leaves out, by their bits.
type skipping struct {
	on   bool
	bits uint32
}

var (
	skipNone   = skipping{}
	skipMasked = skipping{true, negativeZero}
	skipZero   = skipping{true, 0}
)

// blockRows are the rows of a block of products that the assembly computes at once.
const blockRows = 4

// product sets sums[j][lane] to the sum over k < depth of a[j][k] b[k][lane], for j < n, lane < lanes, and calls
// done with each row. The sums are fused multiply-adds in the order of k. lanes is Vector or Lanes.
func product(lanes, n, depth int, skip skipping, a matrix, b []float32, bRow int, done func(j int, sums []float32)) {
	var sums [blockRows * Lanes]float32
	for j := 0; j < n; j += blockRows {
		rows := min(blockRows, n-j)
		productBlock(&sums, lanes, rows, depth, skip, a.from(j, 0), b, bRow)
		for i := range rows {
			done(j+i, sums[i*Lanes:][:lanes])
		}
	}
}

// productInGo is productBlock for any CPU.
func productInGo(sums *[blockRows * Lanes]float32, lanes, n, depth int, skip skipping, a matrix, b []float32, bRow int) {
	for j := range n {
		sum := sums[j*Lanes:][:lanes]
		clear(sum)
		for k := range depth {
			y, row := *(*float32)(a.from(j, k).x), b[k*bRow:][:lanes]
			for i, x := range row {
				if !skip.on || math.Float32bits(x) != skip.bits {
					sum[i] = fma(y, x, sum[i])
				}
			}
		}
	}
}

// set returns what a product does with a row of sums: row j of c becomes scale times the sums.
func set(c []float32, cRow int, scale float32) func(int, []float32) {
	return func(j int, sums []float32) {
		to := c[j*cRow:][:len(sums)]
		for i, x := range sums {
			to[i] = float32(x * scale)
		}
	}
}

// add returns what a product does with a row of sums: row j of c gets them added.
func add(c []float32, cRow int) func(int, []float32) {
	return func(j int, sums []float32) {
		to := c[j*cRow:][:len(sums)]
		for i, x := range sums {
			to[i] += x
		}
	}
}
