//go:build !linux

package hostmem

import "math"

func rlimits() (addressSpace, data uint64) { return math.MaxUint64, math.MaxUint64 }
