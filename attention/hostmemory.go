package attention

import (
	"runtime"
	"unsafe"

	"vkattn/vk"
	"vkattn/vk/hostmem"
)

// hostFloor: less memory is taken without asking for what is available, which takes
// about 0.1 ms.
const hostFloor = 64 << 20

// checkHost refuses work that does not fit the host's memory, with an error that
// matches vk.ErrOutOfMemory. Strides of 0 let a few bytes stand for a tensor of any
// size, so the caller's memory is no bound.
func checkHost(op string, sizes ...uint64) error {
	needed := hostmem.Sum(sizes...)
	if needed < hostFloor {
		return nil
	}
	return vk.CheckHostMemory(op, needed)
}

// workers is on how many CPUs units of work run.
func workers(units uint64) uint64 { return min(uint64(runtime.GOMAXPROCS(0)), units) }

// listBytes is the memory of the rows of a shape as a sample.
func (s Shape) listBytes() uint64 {
	return hostmem.Sum(hostmem.Product(uint64(s.B), uint64(s.Hq), uint64(unsafe.Sizeof(Rows{}))), hostmem.Product(s.Sq, 8))
}

// sequenceBytes is the memory of a list of sequences, and of a number for each.
func (s Shape) sequenceBytes() uint64 {
	return hostmem.Product(uint64(s.B), uint64(unsafe.Sizeof(Sequence{}))+8)
}

// rowKeys is how many keys a row attends to at most.
func (a *Args) rowKeys() uint64 {
	if a.SparseTokens != nil {
		return uint64(max(a.SparseTokens.Total, a.Sk))
	}
	return uint64(a.Sk)
}
