package tensors

import (
	"unsafe"

	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// hostFloor: smaller allocations skip the query of available memory, which takes about
// 0.1 ms.
const hostFloor = 64 << 20

// CheckHost refuses work that does not fit the host's memory, with an error that matches
// vk.ErrOutOfMemory. The size of the caller's tensors is no bound: with strides of 0 a few
// bytes can be a tensor of any size.
func CheckHost(op string, sizes ...uint64) error {
	needed := hostmem.Sum(sizes...)
	if needed < hostFloor {
		return nil
	}
	return vk.CheckHostMemory(op, needed)
}

// ListBytes is the memory of a sample of all rows of a shape.
func ListBytes(s problem.Shape) uint64 {
	return hostmem.Sum(hostmem.Product(uint64(s.B), uint64(s.Hq), uint64(unsafe.Sizeof(problem.Rows{}))), hostmem.Product(s.Sq, 8))
}

// SequenceBytes is the memory of a list of sequences and of a number for each.
func SequenceBytes(s problem.Shape) uint64 {
	return hostmem.Product(uint64(s.B), uint64(unsafe.Sizeof(problem.Sequence{}))+8)
}

// RowKeys is the most keys that a row attends to.
func RowKeys(a *problem.Args) uint64 {
	if list := a.SparseTokens; list != nil {
		if list.TopK != 0 {
			return uint64(max(list.TopK, a.Sk))
		}
		return uint64(max(SparseTotal(a), a.Sk))
	}
	return uint64(a.Sk)
}
