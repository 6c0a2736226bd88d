// Package arith is integer arithmetic on sizes: products and sums that report overflow,
// rounding up, the greatest common divisor.
package arith

import (
	"math"
	"math/bits"
)

// Product multiplies non-negative sizes; ok is false past the range of int64.
func Product[T int | int64](sizes ...T) (p int64, ok bool) {
	p = 1
	for _, n := range sizes {
		if p, ok = Mul(p, int64(n)); !ok {
			return 0, false
		}
	}
	return p, true
}

// Mul is a*b for non-negative a and b; ok is false past the range of int64.
func Mul(a, b int64) (int64, bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int64(low), high == 0 && low <= math.MaxInt64
}

// Add is a+b for non-negative a and b; ok is false past the range of int64.
func Add(a, b int64) (int64, bool) {
	if b > math.MaxInt64-a {
		return 0, false
	}
	return a + b, true
}

func GCD(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// CeilDiv is n/d rounded up, for n and d of at least 1.
func CeilDiv(n, d int) int { return (n-1)/d + 1 }

// CeilDiv32 is a/b rounded up.
func CeilDiv32(a, b uint32) uint32 { return (a + b - 1) / b }

// CeilDiv64 is a/b rounded up.
func CeilDiv64(a, b uint64) uint64 { return (a + b - 1) / b }
