package tests

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// Golden gradients: inputs and gradients that golden/backward/make.py writes, <name>.npz for each case, compared
// with the reference and with every tier that computes gradients.

const goldenBackwardDir = "golden/backward"

func readGoldenBackward(t *testing.T) (manifest []*goldenCall) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenBackwardDir, "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &manifest))
	for _, g := range manifest {
		g.arrays, err = readNpz(filepath.Join(goldenBackwardDir, g.Name+".npz"))
		require.NoError(t, err)
	}
	files, err := filepath.Glob(filepath.Join(goldenBackwardDir, "*.npz"))
	require.NoError(t, err)
	require.Len(t, files, len(manifest))
	return manifest
}

// golden returns the gradients of the files, by name.
func (g *goldenCall) golden(t *testing.T) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, name := range []string{"dq", "dk", "dv", "dbias", "dsinks"} {
		if x, ok := g.arrays[name]; ok {
			all[name] = g.padded(t, name, x.data)
		}
	}
	return all
}

func TestReferenceBackwardIsGolden(t *testing.T) {
	for _, g := range readGoldenBackward(t) {
		t.Run(g.Name, func(t *testing.T) {
			got, err := attention.ReferenceBackward(g.config(), g.args(t, hostOnly))
			require.NoError(t, err)
			gradients := map[string][]float64{"dq": got.DQ, "dk": got.DK, "dv": got.DV, "dbias": got.DBias, "dsinks": got.DSinks}
			maps.DeleteFunc(gradients, func(_ string, x []float64) bool { return x == nil })
			want := g.golden(t)
			require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(gradients)))
			for name, x := range want {
				closeTo(t, x, gradients[name], name)
			}
		})
	}
}

// TestTiersComputeGoldenGradients judges every tier by the rules for gradients, with the
// files as the truth. Rows that attend to nothing and keys and elements of the bias that no
// row attends to must have gradients of exactly 0.
func TestTiersComputeGoldenGradients(t *testing.T) {
	s := openTiers(t)
	manifest := readGoldenBackward(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			for i, g := range manifest {
				// A device compiles pipelines for every case: three drivers on the CPU take turns,
				// and those that compile longest have theirs in make test-full.
				turn := e.dev == nil || (s.open || i%3 == s.turn) && testlevel.Share(i/3%4 == 0 && s.name != "swiftshader" && s.name != "lavapipe")
				if g.DType != tt.DType || !turn || !hasBackwardKernels(cases.Case{D: g.HeadDim, Dv: g.HeadDimV}, tt) {
					continue
				}
				t.Run(g.Name, func(t *testing.T) {
					cfg := g.config()
					cfg.Tier, cfg.Tuning = tt.Tier, attention.TuningOff
					got := e.golden(t, g, cfg, true)
					low, err := oracle.LowBackward(problem.Config(cfg), g.args(t, hostOnly))
					require.NoError(t, err)
					for name, want := range g.golden(t) {
						g.judge(t, name, got[name], want, low)
						g.requireZeros(t, name, got[name])
					}
				})
			}
		})
	}
}

// requireZeros checks the gradient of what takes no part in attention.
func (g *goldenCall) requireZeros(t *testing.T, name string, got []float64) {
	t.Helper()
	of, ok := map[string]string{"dq": "q", "dk": "k", "dv": "k", "dbias": "bias"}[name]
	if !ok {
		return
	}
	attended := g.padded(t, "attended_"+of, g.arrays["attended_"+of].data)
	dim := len(got) / len(attended)
	for i, x := range attended {
		if x == 0 {
			require.Equal(t, make([]float64, dim), got[i*dim:][:dim], "%s: row %d", name, i)
		}
	}
}
