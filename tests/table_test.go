package tests

import (
	"slices"
	"testing"

	"vkattn/attention"
	"vkattn/attention/cases"
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
