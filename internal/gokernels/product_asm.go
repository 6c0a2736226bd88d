//go:build amd64 || arm64

package gokernels

import "unsafe"

// fastProduct computes the first rows of a product and returns their number.
func fastProduct(lanes, n, depth int, skip skipping, a matrix, b []float32, bRow int, to store) int {
	if !hasFast || depth == 0 {
		return 0
	}
	from, adds := unsafe.Pointer(&b[0]), 0
	if to.add {
		adds = 1
	}
	for j := 0; j < n; {
		c, x := unsafe.Pointer(&to.c[j*to.row]), a.from(j, 0).x
		four := n-j >= 4
		switch {
		case four && lanes == Lanes && !skip.on:
			product4x16(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds)
		case four && lanes == Lanes:
			product4x16Skip(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds, skip.bits)
		case four && !skip.on:
			product4x8(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds)
		case four:
			product4x8Skip(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds, skip.bits)
		case lanes == Lanes && !skip.on:
			product1x16(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds)
		case lanes == Lanes:
			product1x16Skip(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds, skip.bits)
		case !skip.on:
			product1x8(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds)
		default:
			product1x8Skip(c, to.row, x, a.row, a.column, from, bRow, depth, to.scale, adds, skip.bits)
		}
		if j++; four {
			j += 3
		}
	}
	return n
}

//go:noescape
func product4x16(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int)

//go:noescape
func product4x16Skip(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int, bits uint32)

//go:noescape
func product4x8(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int)

//go:noescape
func product4x8Skip(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int, bits uint32)

//go:noescape
func product1x16(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int)

//go:noescape
func product1x16Skip(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int, bits uint32)

//go:noescape
func product1x8(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int)

//go:noescape
func product1x8Skip(c unsafe.Pointer, cRow int, a unsafe.Pointer, aRow, aColumn int, b unsafe.Pointer, bRow, depth int, scale float32, add int, bits uint32)
