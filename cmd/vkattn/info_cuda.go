package main

import (
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cudapath"
	"vkattn/vk"
)

// cudaReport says what CUDA offers on a Vulkan device.
type cudaReport struct {
	Device  string         `json:"device,omitempty"`  // the CUDA device that is the same GPU
	Missing string         `json:"missing,omitempty"` // why there is none
	Kernels []kernelReport `json:"kernels,omitempty"`
}

// kernelReport says whether a kernel family runs a storage type.
type kernelReport struct {
	Family    string          `json:"family"`
	DType     attention.DType `json:"dtype"`
	Available bool            `json:"available"`
	Reason    string          `json:"reason,omitempty"`
}

// inspectCUDA finds the CUDA device of a Vulkan device. It opens neither.
func inspectCUDA(d *vk.DeviceInfo) (r cudaReport) {
	match, err := cudapath.Match(d)
	if err != nil {
		r.Missing = flagtext.OneLine(err.Error())
		return r
	}
	r.Device = match.String()
	for _, t := range typeOrder {
		for _, family := range attention.CUDAKernels() {
			why := flagtext.OneLine(cudapath.Missing(d, family, t))
			r.Kernels = append(r.Kernels, kernelReport{family, t, why == "", why})
		}
	}
	return r
}

// typeOrder is the order of storage types in the table of tiers.
var typeOrder = []attention.DType{attention.F16, attention.BF16, attention.F32}

func (p *errWriter) cuda(r *cudaReport) {
	if r.Device != "" {
		p.printf("   CUDA: %s\n", r.Device)
	} else {
		p.printf("   no CUDA: %s\n", r.Missing)
	}
}

// instead replaces tier cuda in the table of tiers by its kernel families. Without CUDA
// it drops the tier: the line above the table gives the reason.
func (r *cudaReport) instead(tiers []attention.TierStatus) (rows []tierRow) {
	for _, k := range r.Kernels {
		if k.Available {
			k.Reason = "at head dim 64"
		}
		rows = append(rows, tierRow{"cuda " + k.Family, k.DType, k.Available, k.Reason})
	}
	for _, s := range tiers {
		if s.Tier != attention.TierCUDA {
			rows = append(rows, tierRow{s.Tier.String(), s.DType, s.Available, flagtext.OneLine(s.Reason)})
		}
	}
	slices.SortStableFunc(rows, func(a, b tierRow) int {
		return slices.Index(typeOrder, a.dtype) - slices.Index(typeOrder, b.dtype)
	})
	return rows
}
