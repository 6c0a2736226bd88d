package bench

import (
	"fmt"

	"vkattn/attention"
)

// Spec says what one row of each problem runs.
type Spec struct {
	Tier       attention.Tier
	Kernel     string // family of tier cuda; "": its own choice
	Experiment attention.Experiment
	Baseline   Baseline // what the others are compared with; "": one of these
}

// Specs is the cross product of tiers, variants and ablations, for tier cuda of kernel families, and of named
// tiles of the forward kernel and of the backward kernels, see attention.Experiment. Without variants and
// ablations it is the kernel as shipped, without families the best family for each problem. An empty tile
// stands for that which calls take.
func Specs(tiers []attention.Tier, kernels []string, variants []int, ablations []attention.Ablation, tile,
	tiles []string) (out []Spec) {
	for _, t := range tiers {
		families := []string{""}
		if t == attention.TierCUDA && len(kernels) > 0 {
			families = kernels
		}
		for _, k := range families {
			out = append(out, Spec{Tier: t, Kernel: k})
		}
	}
	out = withEach(out, variants, func(s *Spec, v int) { s.Experiment.Variant = v })
	out = withEach(out, ablations, func(s *Spec, a attention.Ablation) { s.Experiment.Ablate = a })
	out = withEach(out, tile, func(s *Spec, tile string) { s.Experiment.Tile = tile })
	return withEach(out, tiles, func(s *Spec, tiles string) { s.Experiment.BackwardTiles = tiles })
}

// withEach is every Spec once with each value, or as it is if there are none.
func withEach[T any](specs []Spec, values []T, set func(s *Spec, value T)) []Spec {
	if len(values) == 0 {
		return specs
	}
	var out []Spec
	for _, s := range specs {
		for _, v := range values {
			set(&s, v)
			out = append(out, s)
		}
	}
	return out
}

// ladderSpecs are all steps of the kernel's development on each tier that has them, unless
// a Spec names some. Tiers without SPIR-V run the kernel as shipped.
func ladderSpecs(specs []Spec) (out []Spec) {
	for _, s := range specs {
		if s.Experiment.Variant > 0 || s.Tier.WithoutSPIRV() {
			out = append(out, s)
			continue
		}
		for v := 1; v <= attention.Variants; v++ {
			s.Experiment.Variant = v
			out = append(out, s)
		}
	}
	return out
}

// cudaBaselines lists the names of the rows of tier cuda, with which other rows are
// compared.
func cudaBaselines(specs []Spec) (names []string) {
	for _, s := range specs {
		if s.Tier == attention.TierCUDA && s.Experiment == (attention.Experiment{}) {
			names = append(names, kernelName(s.Tier.String(), s.Kernel))
		}
	}
	return names
}

// kernelName is the name of a tier with its kernel family, such as "coopmat" or "cuda fa2".
func kernelName(tier, family string) string {
	if family == "" {
		return tier
	}
	return tier + " " + family
}

// variantLabel is the name of a variant, such as "v3", and empty for the kernel as shipped.
func variantLabel(v int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("v%d", v)
}

// ParseVariant parses "v1" to "v8", or "1" to "8".
func ParseVariant(s string) (int, error) {
	for v := 1; v <= attention.Variants; v++ {
		if s == variantLabel(v) || "v"+s == variantLabel(v) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown variant %q, want v1 to v%d, or all", s, attention.Variants)
}
