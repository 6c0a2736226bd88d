package tests

import (
	"slices"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// optionTable returns the table of cases of a tier.
func optionTable(tt cases.Target) []cases.Case {
	switch {
	case full():
		return cases.AllOptions()
	case tt.Tier == attention.TierCPU:
		return cases.WideOptions()
	case slowToCompile(tt):
		return cases.CompactOptions()
	}
	return cases.BriefOptions()
}

// optionsOf returns the cases that a tier computes in a storage type: its share of the
// table, or all of it on the CPU tier, which compiles nothing.
func optionsOf(s *session, tt cases.Target) []cases.Case {
	all := optionTable(tt)
	if tt.Tier != attention.TierCPU {
		which, types := 0, 0
		for _, other := range s.available() {
			if other == tt {
				which = types
			}
			if other.Tier == tt.Tier {
				types++
			}
		}
		if full() {
			all = cases.ShareOptions(all, types)[which]
		} else {
			all = cases.DealOptions(all, types)[which]
		}
	}
	all = s.levelShareOf(tt, all)
	if tt.Tier == attention.TierCPU {
		all = slices.DeleteFunc(slices.Clone(all), func(c cases.Case) bool { return c.Flops() > 1e9 })
	}
	return all
}
