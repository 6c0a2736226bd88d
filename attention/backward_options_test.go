package attention_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"vkattn/internal/cases"
	"vkattn/internal/problem"
)

// The table and the random draw that central differences judge have every option, so that no
// derivative can be forgotten. Tests of the CPU tier run the same table.
func TestEveryOptionHasItsGradientsTested(t *testing.T) {
	alone, drawn := map[string]bool{}, map[string]bool{}
	add := func(to map[string]bool, options []string) {
		for _, o := range options {
			to[o] = true
		}
	}
	eachBackward(t, func(_ *testing.T, c *backwardCase) {
		options := cases.GradientOptionsOf(problem.Config(c.cfg), c.Args)
		rest := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "Causal" || o == "Align" })
		if len(rest) <= 1 { // Window and ALiBi need an alignment
			add(alone, options)
		}
	})
	draw := rapid.Custom(drawBackward)
	for seed := range 100 {
		c := draw.Example(seed)
		add(drawn, cases.GradientOptionsOf(problem.Config(c.cfg), c.Args))
	}
	for _, option := range cases.GradientOptions() {
		if !alone[option] {
			t.Errorf("backwardTable has no row with %s alone", option)
		}
		if !drawn[option] && option != "Blocks" && option != "Scale" { // the table alone has these
			t.Errorf("drawBackward does not draw %s", option)
		}
	}
}
