package hostmem

import (
	"math"
	"syscall"
)

// rlimits are the soft limits on address space and data.
func rlimits() (addressSpace, data uint64) {
	of := func(resource int) uint64 {
		var l syscall.Rlimit
		if err := syscall.Getrlimit(resource, &l); err != nil {
			return math.MaxUint64
		}
		return l.Cur
	}
	return of(syscall.RLIMIT_AS), of(syscall.RLIMIT_DATA)
}
