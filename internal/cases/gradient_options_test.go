package cases

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// Backward conformance has one set of tables for drivers that compile slowly and one for
// the others. Each has every option of a call with gradients.
func TestTablesOfGradientsHaveEveryOption(t *testing.T) {
	for name, table := range map[string][]Case{"compact": append(CompactOptions(), CompactGradients()...), "brief": BriefOptions()} {
		has := map[string]bool{}
		for i, dtype := range attention.DTypes() {
			for _, c := range append(table, Brief(i)...) {
				if !c.HasGradients() {
					continue
				}
				p, err := NewProblem(c, dtype)
				require.NoError(t, err)
				for _, option := range GradientOptionsOf(c.Config(Target{DType: dtype}), p.HostArgs(p.Image)) {
					has[option] = true
				}
			}
		}
		for _, option := range GradientOptions() {
			if !has[option] {
				t.Errorf("no case with gradients in the %s tables has %s", name, option)
			}
		}
	}
}

// Names that are no options are fields.
func TestFieldsThatAreNoGradientOptions(t *testing.T) {
	all := GradientOptions()
	for name := range noGradientOption {
		require.NotContains(t, all, name)
	}
	require.Contains(t, all, "Softcap")
	require.Contains(t, all, "ALiBi")
	require.Len(t, all, len(fieldsOf(attention.Config{}))+len(fieldsOf(attention.Args{}))-len(noGradientOption), "a name that is not a field")
}

func fieldsOf(x any) (names []string) {
	for i := range reflect.TypeOf(x).NumField() {
		names = append(names, reflect.TypeOf(x).Field(i).Name)
	}
	return names
}
