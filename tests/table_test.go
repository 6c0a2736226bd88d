package tests

import (
	"slices"
	"testing"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// table returns the cases for every tier of a storage type. The default is brief, since
// drivers on the CPU spend most of the time compiling.
func table(dtype attention.DType) []cases.Case {
	if !full() {
		return slices.Concat(cases.Brief(int(dtype)), cases.Notable())
	}
	return cases.All()
}

// The names of the table's cases are unique. The test logs the length of the table.
func TestTable(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		seen := map[string]bool{}
		pipelines := map[string]bool{}
		var flops int64
		all := table(dtype)
		for _, c := range all {
			if seen[c.String()] {
				t.Errorf("%v is there twice", c)
			}
			seen[c.String()] = true
			pipelines[c.Pipeline()] = true
			flops += c.Cost()
		}
		t.Logf("%v: %d cases, about %d pipelines, %.1f GFLOP", dtype, len(seen), len(pipelines), float64(flops)/1e9)
		for _, d := range cases.Dims {
			if !slices.ContainsFunc(all, func(c cases.Case) bool { return [2]int{c.D, c.Dv} == d }) {
				t.Errorf("%v: no case has head dimensions %v", dtype, d)
			}
		}
	}
}

// Every case of the dense tables takes the path of dense calls. Every case of the tables
// of options takes the path of calls with options.
func TestEveryTableTakesItsPath(t *testing.T) {
	check := func(name string, all []cases.Case, want bool) {
		if len(all) == 0 {
			t.Errorf("%s is empty", name)
		}
		for _, c := range all {
			if withOptions(c) != want {
				t.Errorf("%s: %v: with options is %v, want %v", name, c, !want, want)
			}
		}
	}
	for _, dtype := range attention.DTypes() {
		check("table", table(dtype), false)
		check("Brief", cases.Brief(int(dtype)), false)
	}
	check("All", cases.All(), false)
	check("Notable", cases.Notable(), false)
	check("BriefOptions", cases.BriefOptions(), true)
	check("CompactOptions", cases.CompactOptions(), true)
	check("WideOptions", cases.WideOptions(), true)
	check("AllOptions", cases.AllOptions(), true)
}
