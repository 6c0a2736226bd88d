package bench

import (
	"vkattn/attention"
	"vkattn/vk"
)

// Defaults is the sweep of a plain `vkattn bench`: about a minute on a CPU, the
// usual published shapes on a GPU of its own memory, and a quarter of their
// batch on one that shares the machine's.
func Defaults(dev *vk.Device) Sweep {
	s := Sweep{
		Batch: []int{16}, Heads: []int{8}, SeqLen: []int{1024, 2048, 4096}, HeadDim: []int{64, 128},
		Causal: []attention.Causal{attention.CausalNone, attention.TopLeft}, DType: []attention.DType{attention.F16},
	}
	switch {
	case dev == nil || dev.Info().Type == vk.DeviceCPU:
		s.Batch, s.Heads, s.SeqLen = []int{1}, []int{4}, []int{256, 512}
	case dev.Info().Type != vk.DeviceDiscrete:
		s.Batch = []int{4}
	}
	return s
}

// DefaultTiers is the best tier, except on Vulkan drivers that run on the CPU:
// lavapipe compiles a matrix kernel for a minute or more, and it then takes
// twice the time of the scalar one (head dim 64, 2 cores).
func DefaultTiers(dev *vk.Device) []attention.Tier {
	if dev != nil && dev.Info().Type == vk.DeviceCPU {
		return []attention.Tier{attention.TierScalar}
	}
	return []attention.Tier{attention.TierAuto}
}
