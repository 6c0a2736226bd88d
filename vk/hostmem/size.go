package hostmem

import (
	"math"
	"math/bits"
)

// Product multiplies sizes. It returns MaxUint64, which no check accepts, if the product
// overflows, and 0 if a factor is not positive.
func Product[T int | int64 | uint64](sizes ...T) uint64 {
	p := uint64(1)
	for _, n := range sizes {
		if n <= 0 {
			return 0
		}
	}
	for _, n := range sizes {
		high, low := bits.Mul64(p, uint64(n))
		if high != 0 {
			return math.MaxUint64
		}
		p = low
	}
	return p
}

// Sum adds sizes. It returns MaxUint64 if the sum overflows.
func Sum(sizes ...uint64) uint64 {
	s := uint64(0)
	for _, n := range sizes {
		if n > math.MaxUint64-s {
			return math.MaxUint64
		}
		s += n
	}
	return s
}
