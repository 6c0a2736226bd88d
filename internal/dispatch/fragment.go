package dispatch

import (
	"fmt"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// LargestFragment returns the device's largest subgroup-scope fragment of f16 or bf16 with
// float32 sums, up to 16x16x16. The error matches problem.ErrUnsupported if it has none.
func LargestFragment(caps *vk.Caps, dtype problem.DType) (frag vk.CoopMatShape, err error) {
	component := vk.Float16
	switch {
	case dtype == problem.F32:
		return frag, fmt.Errorf("%w: there are no float32 cooperative matrices", problem.ErrUnsupported)
	case dtype == problem.BF16:
		component = vk.BFloat16
	}
	if why := caps.Without(append(MatrixNeeds(dtype), NeedFloat16)...); why != "" {
		return frag, fmt.Errorf("%w: %s", problem.ErrUnsupported, why)
	}
	for _, f := range caps.CoopMatShapes {
		if f.A == component && f.B == component && f.C == vk.Float32 && f.Result == vk.Float32 && f.Scope == vk.ScopeSubgroup &&
			!f.Saturating && f.M%8 == 0 && f.N%8 == 0 && f.K%8 == 0 && max(f.M, f.N, f.K) <= 16 && f.M*f.N*f.K > frag.M*frag.N*frag.K {
			frag = f
		}
	}
	if frag.M == 0 {
		return frag, fmt.Errorf("%w: the device has no subgroup-scope fragment of %v with float32 sums", problem.ErrUnsupported, dtype)
	}
	return frag, nil
}
