package hostmem

import (
	"fmt"
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

// Bytes prints a size with its binary unit. For a saturated size it prints the largest there is.
func Bytes(n uint64) string {
	const units = "KMGTPE"
	switch {
	case n == math.MaxUint64:
		return "over 16 EiB"
	case n < 1024:
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	at := -1
	for v >= 1024 && at < len(units)-1 {
		v /= 1024
		at++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[at])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[at])
}

// Shortage says that more memory of a kind is needed than is available. Two sizes that print alike are told
// by their difference.
func Shortage(kind string, needed, available uint64) string {
	need, have := Bytes(needed), Bytes(available)
	if need == have && needed > available {
		return fmt.Sprintf("needs %s of %s, %s more than are available", need, kind, Bytes(needed-available))
	}
	return fmt.Sprintf("needs %s of %s, %s are available", need, kind, have)
}
