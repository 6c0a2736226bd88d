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

// store is what a product does with its sums: they are multiplied by scale and stored, or added to what is there.
type store struct {
	c     []float32
	row   int
	scale float32
	add   bool
}

func set(c []float32, row int, scale float32) store { return store{c, row, scale, false} }
func add(c []float32, row int) store                { return store{c, row, 1, true} }

// product computes sums over k < depth of a[j][k] b[k][lane], for j < n, lane < lanes. The sums are fused
// multiply-adds in the order of k. lanes is Vector or Lanes.
func product(lanes, n, depth int, skip skipping, a matrix, b []float32, bRow int, to store) {
	if n <= 0 {
		return
	}
	if depth > 0 {
		_ = b[(depth-1)*bRow+lanes-1]
	}
	_ = to.c[(n-1)*to.row+lanes-1]
	for j := fastProduct(lanes, n, depth, skip, a, b, bRow, to); j < n; j++ {
		productRow(lanes, depth, skip, a.from(j, 0), b, bRow, to.c[j*to.row:][:lanes], to)
	}
}

// productRow computes a row on any CPU.
func productRow(lanes, depth int, skip skipping, a matrix, b []float32, bRow int, c []float32, to store) {
	var sums [Lanes]float32
	sum := sums[:lanes]
	for k := range depth {
		y, row := *(*float32)(a.from(0, k).x), b[k*bRow:][:lanes]
		for i, x := range row {
			if !skip.on || math.Float32bits(x) != skip.bits {
				sum[i] = fma(y, x, sum[i])
			}
		}
	}
	for i, x := range sum {
		if to.add {
			c[i] += x
		} else {
			c[i] = float32(x * to.scale)
		}
	}
}
