package bench

import "vkattn/vk"

// Defaults is the sweep of `vkattn bench` without lists and suites. On a CPU it takes
// about a minute. A discrete GPU has the usual published shapes, an integrated one a
// quarter of their batch.
func Defaults(dev *vk.Device) Sweep {
	switch {
	case dev == nil || dev.Info().Type == vk.DeviceCPU:
		return Lists("batch-size=1 nheads=4 seqlen=256,512 headdim=64,128 causal=none,top-left dtype=f16")
	case dev.Info().Type != vk.DeviceDiscrete:
		return Lists("batch-size=4 nheads=8 seqlen=1024-4096*2 headdim=64,128 causal=none,top-left dtype=f16")
	}
	return Lists("batch-size=16 nheads=8 seqlen=1024-4096*2 headdim=64,128 causal=none,top-left dtype=f16")
}
