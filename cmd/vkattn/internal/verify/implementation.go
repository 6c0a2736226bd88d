package verify

import (
	"slices"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// Implementation is a tier, or a kernel family of tier cuda.
type Implementation struct {
	Tier   attention.Tier
	Kernel string // kernel family of tier cuda
}

// String returns a name such as "coopmat" or "cuda fa2".
func (i Implementation) String() string {
	if i.Kernel != "" {
		return i.Tier.String() + " " + i.Kernel
	}
	return i.Tier.String()
}

// config is the Config that computes a case. A case of the conformance table sets access
// and tiles; any other problem has the default settings.
func (i Implementation) config(c cases.Case, dtype attention.DType, conformance bool) attention.Config {
	cfg := c.Config(cases.On(i.Tier, dtype))
	if !conformance {
		cfg.Tuning = attention.TuningAuto
	}
	if i.Tier == attention.TierCUDA || i.Tier == attention.TierCubin {
		cfg.Access = attention.AccessAuto // other values are for SPIR-V
		cfg.Kernel = i.Kernel
	}
	return cfg
}

// Validation is the CUDA validation kernel, the reference on devices with CUDA.
var Validation = Implementation{Tier: attention.TierCUDA, Kernel: "ref"}

// Implementations lists the tiers, tier cuda once for each of the given kernel families,
// or for all families if none is given.
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
