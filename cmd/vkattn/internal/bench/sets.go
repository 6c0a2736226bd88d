package bench

import (
	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// Rotation is the number of bytes of tensors that successive runs cycle through, so that
// no run finds its inputs in the last-level cache: 50 MB on an H200, 256 MB of Infinity
// Cache on the largest AMD cards.
const (
	deviceRotation = 288 << 20
	hostRotation   = 64 << 20
)

// rotation is the rotation of a device, or of the CPU for nil.
func rotation(dev *vk.Device) uint64 {
	if dev == nil || dev.Info().Type == vk.DeviceCPU {
		return hostRotation
	}
	return deviceRotation
}

// rotation is the number of bytes that the input sets fill on a device, or on the CPU for
// nil. It is 0 if rows want warm caches.
func (b *Bench) rotation(dev *vk.Device) uint64 {
	if b.WarmCache {
		return 0
	}
	return rotation(dev)
}

// sets is the layout of the copies of a problem's operands: input set i of an operand
// begins i*stride bytes into its memory. Tables and lists have stride 0: all sets share
// them.
type sets struct {
	count  int
	size   []uint64 // bytes of each operand
	stride []uint64
}

// setAlign is the alignment of every set, so that all sets are aligned like the first.
const setAlign = 4096

// newSets lays out as many sets as fill rotation bytes.
func newSets(list []operands.Operand, rotation uint64) sets {
	var s sets
	var total uint64
	for i, o := range list {
		size, stride := uint64(len(o.Host())), uint64(0)
		switch {
		case o.Of < i:
			stride = s.stride[o.Of]
		case o.Streamed:
			align := lcm(setAlign, uint64(o.UnitBytes()))
			stride = max(1, (size+align-1)/align) * align
			total += stride
		}
		s.size, s.stride = append(s.size, size), append(s.stride, stride)
	}
	s.count = int(max(1, (rotation+total-1)/total))
	return s
}

func lcm(a, b uint64) uint64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// bytes is the memory of operand i in all sets.
func (s *sets) bytes(i int) uint64 { return s.stride[i]*uint64(s.count-1) + s.size[i] }

// args returns the arguments of a set, given the arguments of set 0.
func (s *sets) args(cfg attention.Config, first attention.BackwardArgs, set int) attention.BackwardArgs {
	a := operands.CloneBackward(first)
	for i, o := range operands.ListBackward(cfg, &a) {
		o.Skip(int64(s.stride[i] * uint64(set)))
	}
	return a
}

// countSets is the number of sets of a problem without options, for peers.
func countSets(p Problem, rotation uint64) int {
	q, k, v, o := p.tensors()
	var total uint64
	list := []uint64{q, k, v, o}
	if p.Pass != PassForward {
		list = append(list, q, k, v, o)
	}
	for _, n := range list {
		total = hostmem.Sum(total, hostmem.Product(hostmem.Sum(hostmem.Product(n, uint64(p.Config.DType.Size())), setAlign-1)/setAlign, setAlign))
	}
	if total >= rotation {
		return 1
	}
	return int((rotation + total - 1) / total)
}
