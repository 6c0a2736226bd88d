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
