package bench

import (
	"vkattn/attention"
	"vkattn/vk"
)

// Defaults is the sweep of `vkattn bench` without lists and suites. On a CPU it takes
// about a minute. A discrete GPU has the usual published shapes, an integrated one a
// quarter of their batch.
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

// DefaultTiers is the best tier, and tier scalar on a Vulkan driver that runs on the CPU:
// lavapipe takes a minute and more to compile a cooperative-matrix kernel, which is then
// half as fast as the scalar one (head dim 64, 2 cores).
func DefaultTiers(dev *vk.Device) []attention.Tier {
	if dev != nil && dev.Info().Type == vk.DeviceCPU {
		return []attention.Tier{attention.TierScalar}
	}
	return []attention.Tier{attention.TierAuto}
}
