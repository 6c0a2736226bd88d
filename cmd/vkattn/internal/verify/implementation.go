package verify

import (
	"slices"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/vk"
)

// Implementation is something that computes attention.
type Implementation struct {
	Tier   attention.Tier
	Kernel string // family of kernels, of tier cuda
}

// String is such as "coopmat" or "cuda fa2".
func (i Implementation) String() string {
	if i.Kernel != "" {
		return i.Tier.String() + " " + i.Kernel
	}
	return i.Tier.String()
}

// config is what computes a case. The conformance table has a say in how tensors
// are reached and what tiles are taken; a plain problem runs as it would for anybody.
func (i Implementation) config(c cases.Case, dtype attention.DType, conformance bool) attention.Config {
	cfg := c.Config(cases.On(i.Tier, dtype))
	if !conformance {
		cfg.Tuning = attention.TuningAuto
	}
	if i.Tier == attention.TierCUDA {
		cfg.Access = attention.AccessAuto // a choice of Vulkan's
		cfg.Kernel = i.Kernel
	}
	return cfg
}

// Validation is the reference where tier cuda is there.
var Validation = Implementation{Tier: attention.TierCUDA, Kernel: "ref"}

// Implementations are the tiers, with tier cuda once for each family of kernels:
// those given, or all.
func Implementations(tiers []attention.Tier, kernels []string) []Implementation {
	if len(kernels) == 0 {
		kernels = attention.CUDAKernels()
	}
	var list []Implementation
	for _, t := range tiers {
		if t != attention.TierCUDA {
			list = append(list, Implementation{Tier: t})
			continue
		}
		for _, k := range kernels {
			list = append(list, Implementation{Tier: t, Kernel: k})
		}
	}
	return list
}

// HasCUDA reports whether tier cuda runs on a device.
func HasCUDA(dev *vk.Device) bool {
	if dev == nil {
		return false
	}
	return slices.ContainsFunc(attention.TierReport(dev), func(s attention.TierStatus) bool {
		return s.Tier == attention.TierCUDA && s.Available
	})
}
