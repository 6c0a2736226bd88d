package plan

import (
	"fmt"

	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// tierNeeds lists what a tier needs for a storage type, besides a shape of matrices. Tier scalar needs nothing.
func tierNeeds(tier problem.Tier, t problem.DType) []vk.Need {
	switch {
	case tier == problem.TierScalar:
		return nil
	case t == problem.F32: // of terms of bf16
		return append(tierNeeds(tier, problem.BF16), dispatch.NeedInt16, dispatch.NeedFloat16)
	}
	needs := append(dispatch.MatrixNeeds(t),
		vk.Need{Name: "subgroup vote", Have: func(c *vk.Caps) bool { return c.SubgroupOps&vk.SubgroupVote != 0 }},
		vk.Need{Name: "subgroup ballot", Have: func(c *vk.Caps) bool { return c.SubgroupOps&vk.SubgroupBallot != 0 }})
	if tier == problem.TierCoopMat2 {
		needs = append(needs,
			vk.Need{Name: "maintenance4", Have: func(c *vk.Caps) bool { return c.Maintenance4 }}, // SPIR-V 1.6 has the local size as an id
			vk.Need{Name: "cooperativeMatrixReductions (VK_NV_cooperative_matrix2)", Have: func(c *vk.Caps) bool { return c.CoopMat2.Reductions }},
			vk.Need{Name: "cooperativeMatrixConversions (VK_NV_cooperative_matrix2)", Have: func(c *vk.Caps) bool { return c.CoopMat2.Conversions }},
			vk.Need{Name: "cooperativeMatrixPerElementOperations (VK_NV_cooperative_matrix2)", Have: func(c *vk.Caps) bool { return c.CoopMat2.PerElement }})
	}
	return needs
}

// pickFragment tests a device for a cooperative-matrix tier, capability by capability and
// without a look at the vendor. It returns the fragment shape and subgroup size of the
// tier, or what the device lacks or has not enabled.
func pickFragment(caps *vk.Caps, tier problem.Tier, t problem.DType) (fragment, string) {
	if t == problem.F32 {
		return fragment{}, "f32 multiplies in float32, and there are no float32 cooperative matrices"
	}
	if why := caps.Without(tierNeeds(tier, t)...); why != "" {
		return fragment{}, why
	}
	component := vk.Float16
	if t == problem.BF16 {
		component = vk.BFloat16
	}
	// Take the largest shape with K = N: P is first an accumulator of N keys, then an
	// operand of K keys.
	usable := func(s vk.CoopMatShape) bool {
		return s.A == component && s.B == component && s.C == vk.Float32 && s.Result == vk.Float32 &&
			s.Scope == vk.ScopeSubgroup && !s.Saturating
	}
	var best fragment
	for _, s := range caps.CoopMatShapes {
		if usable(s) && s.N == s.K && s.N%8 == 0 && s.M*s.N*s.K > best.M*best.N*best.K {
			best = fragment{M: s.M, N: s.N, K: s.K, SumN: s.N, Subgroup: caps.SubgroupSize}
		}
	}
	for _, s := range caps.CoopMatShapes {
		if usable(s) && s.M == best.M && s.K == best.K && s.N%4 == 0 && s.N < best.SumN {
			best.SumN = s.N
		}
	}
	if best.M == 0 {
		return fragment{}, fmt.Sprintf("the device has no subgroup-scope %v x %v -> f32 shape with K = N", t, t)
	}
	return best, ""
}

// TierReport is attention.TierReport, which documents it.
func TierReport(dev *vk.Device) []problem.TierStatus {
	if dev == nil {
		return tierReport(nil, nil)
	}
	return tierReport(dev, dev.Info())
}

// TierReportOf is attention.TierReportOf, which documents it.
func TierReportOf(info *vk.DeviceInfo) []problem.TierStatus { return tierReport(nil, info) }

func tierReport(dev *vk.Device, info *vk.DeviceInfo) []problem.TierStatus {
	var all []problem.TierStatus
	for _, t := range []problem.DType{problem.F16, problem.BF16, problem.F32} {
		if info != nil {
			if c := RegisteredCUDA(); c != nil {
				status := problem.TierStatus{Tier: problem.TierCUDA, DType: t, Available: true, Reason: "a kernel at head dim 64"}
				if err := c.Check(info, t); err != nil {
					status.Available, status.Reason = false, err.Error()
				}
				all = append(all, status)
			}
			if c := registeredCubins(); c != nil {
				status := problem.TierStatus{Tier: problem.TierCubin, DType: t, Available: true, Reason: "a kernel at head dim 64"}
				if err := c.Check(dev, info, t); err != nil {
					status.Available, status.Reason = false, err.Error()
				}
				all = append(all, status)
			}
			caps := &info.Caps
			access := problem.AccessDescriptors
			if caps.BufferDeviceAddress {
				access = problem.AccessAddresses
			}
			for _, tier := range deviceTiers {
				v, _, reason := chooseVariant(caps, problem.Config{DType: t, HeadDim: 64}, tier,
					Request{Shape: problem.Shape{B: 1, Hq: 1, Sq: 1024, Sk: 1024}, Access: access, Align: [4]uint32{8, 8, 8, 8}})
				status := problem.TierStatus{Tier: tier, DType: t, Available: reason == "", Reason: reason}
				if status.Available {
					status.Reason = fmt.Sprintf("tile %v at head dim 64", v.Tile)
				}
				all = append(all, status)
			}
		}
		all = append(all, problem.TierStatus{Tier: problem.TierCPU, DType: t, Available: true, Reason: "runs anywhere"})
	}
	return all
}
