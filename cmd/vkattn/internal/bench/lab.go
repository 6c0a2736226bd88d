package bench

import (
	"fmt"

	"vkattn/attention"
)

// Spec is what one row of each problem runs.
type Spec struct {
	Tier attention.Tier
	Lab  attention.Lab
}

// Specs crosses tiers with variants and ablations. None of either means the
// kernel as shipped, whole.
func Specs(tiers []attention.Tier, variants []int, ablations []attention.Ablation) []Spec {
	if len(variants) == 0 {
		variants = []int{0}
	}
	if len(ablations) == 0 {
		ablations = []attention.Ablation{attention.AblateNone}
	}
	var out []Spec
	for _, t := range tiers {
		for _, v := range variants {
			for _, a := range ablations {
				out = append(out, Spec{t, attention.Lab{Variant: v, Ablate: a}})
			}
		}
	}
	return out
}

// variantLabel is "v3", and empty for the kernel as shipped.
func variantLabel(v int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("v%d", v)
}

// ParseVariant reads "v1" to "v8", or "1" to "8".
func ParseVariant(s string) (int, error) {
	for v := 1; v <= attention.Variants; v++ {
		if s == variantLabel(v) || "v"+s == variantLabel(v) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown variant %q, want v1 to v%d, or all", s, attention.Variants)
}
