package bench

import (
	"vkattn/attention"
	"vkattn/vk"
)

// Rotation is how many bytes of tensors successive runs go through, so that
// none finds its inputs in the last-level cache: 50 MB on an H200, 256 MB of
// Infinity Cache on the largest AMD cards.
const (
	deviceRotation = 288 << 20
	hostRotation   = 64 << 20
)

// rotation is that of where a benchmark runs: a device, or the CPU.
func rotation(dev *vk.Device) uint64 {
	if dev == nil || dev.Info().Type == vk.DeviceCPU {
		return hostRotation
	}
	return deviceRotation
}

// sets is where the copies of a problem's tensors lie: set i of a tensor begins
// i*stride bytes into its memory.
type sets struct {
	count  int
	size   [4]uint64 // of Q, K, V, O in bytes
	stride [4]uint64
}

// setAlign keeps every set as aligned as the first.
const setAlign = 4096

// newSets makes as many sets as it takes to fill rotation bytes.
func newSets(p Problem, rotation uint64) sets {
	var s sets
	q, k, v, o := p.tensors()
	var total uint64
	for i, n := range []uint64{q, k, v, o} {
		s.size[i] = n * uint64(p.Config.DType.Size())
		s.stride[i] = (s.size[i] + setAlign - 1) / setAlign * setAlign
		total += s.stride[i]
	}
	s.count = int(max(1, (rotation+total-1)/total))
	return s
}

// bytes is the memory of tensor i over all sets.
func (s *sets) bytes(i int) uint64 { return s.stride[i]*uint64(s.count-1) + s.size[i] }

// args are those of one set; fill puts the memory of tensor i into t.
func (s *sets) args(p Problem, set int, fill func(i int, t *attention.Tensor)) attention.Args {
	a := attention.Args{Shape: p.Shape}
	for i, t := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O} {
		t.Offset = int64(s.stride[i] * uint64(set) / uint64(p.Config.DType.Size()))
		fill(i, t)
	}
	return a
}
