package attention

import (
	"unsafe"

	"vkattn/vk"
	"vkattn/vk/hostmem"
)

// hostFloor: smaller allocations skip the query of available memory, which takes about
// 0.1 ms.
const hostFloor = 64 << 20

// checkHost refuses work that does not fit the host's memory, with an error that matches
// vk.ErrOutOfMemory. The size of the caller's tensors is no bound: with strides of 0 a few
// bytes can be a tensor of any size.
func checkHost(op string, sizes ...uint64) error {
	needed := hostmem.Sum(sizes...)
	if needed < hostFloor {
		return nil
	}
	return vk.CheckHostMemory(op, needed)
}

// listBytes is the memory of a sample of all rows of a shape.
func listBytes(s Shape) uint64 {
	return hostmem.Sum(hostmem.Product(uint64(s.B), uint64(s.Hq), uint64(unsafe.Sizeof(Rows{}))), hostmem.Product(s.Sq, 8))
}

// sequenceBytes is the memory of a list of sequences and of a number for each.
func sequenceBytes(s Shape) uint64 {
	return hostmem.Product(uint64(s.B), uint64(unsafe.Sizeof(Sequence{}))+8)
}

// rowKeys is the most keys that a row attends to.
func rowKeys(a *Args) uint64 {
	if a.SparseTokens != nil {
		return uint64(max(a.SparseTokens.Total, a.Sk))
	}
	return uint64(a.Sk)
}
