package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// Golden problems: inputs and outputs in files, compared with every tier.

const (
	goldenDir      = "golden"
	goldenManifest = "golden/manifest.json"
)

// goldenEntry describes a golden problem. The files <name>.{q,k,v,o,lse}.npy hold its
// tensors packed, [B, H, S, D] and [B, H, S]. bf16 inputs are stored as float32.
type goldenEntry struct {
	Name     string           `json:"name"`
	DType    attention.DType  `json:"dtype"`
	HeadDim  int              `json:"head_dim"`
	HeadDimV int              `json:"head_dim_v"`
	Causal   attention.Causal `json:"causal"`
	Scale    *float32         `json:"scale"` // null: 1/sqrt(head_dim)
	B        int              `json:"b"`
	Hq       int              `json:"hq"`
	Hkv      int              `json:"hkv"`
	Sq       int              `json:"sq"`
	Sk       int              `json:"sk"`
	Data     string           `json:"data"` // kind of numbers, see package cases
	Seed     uint64           `json:"seed"`
}

// goldenCases are the problems that -update writes.
var goldenCases = []struct {
	name  string
	dtype attention.DType
	cases.Case
}{
	{"f16-d64", attention.F16, cases.Case{D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Sq: 33, Sk: 70}}},
	{"f16-d128-causal", attention.F16, cases.Case{D: 128, Dv: 128, Causal: attention.TopLeft, Shape: attention.Shape{B: 1, Hq: 1, Sq: 67, Sk: 67}}},
	{"f16-d32-grouped", attention.F16, cases.Case{D: 32, Dv: 32, Causal: attention.BottomRight, Shape: attention.Shape{B: 2, Hq: 6, Hkv: 2, Sq: 7, Sk: 45}}},
	{"f16-d40-empty-rows", attention.F16, cases.Case{D: 40, Dv: 40, Causal: attention.BottomRight, Shape: attention.Shape{B: 1, Hq: 2, Sq: 50, Sk: 19}}},
	{"f16-d72-negative-scale", attention.F16, cases.Case{D: 72, Dv: 72, Scale: attention.ScaleOf(-0.25), Shape: attention.Shape{B: 1, Hq: 1, Sq: 20, Sk: 40}}},
	{"f16-d64-large", attention.F16, cases.Case{D: 64, Dv: 64, Data: cases.Large, Shape: attention.Shape{B: 1, Hq: 1, Sq: 34, Sk: 66}}},
	{"f16-d16-rising", attention.F16, cases.Case{D: 16, Dv: 16, Data: cases.Rising, Causal: attention.TopLeft, Shape: attention.Shape{B: 1, Hq: 1, Sq: 40, Sk: 140}}},
	{"f16-d192v128", attention.F16, cases.Case{D: 192, Dv: 128, Shape: attention.Shape{B: 1, Hq: 4, Hkv: 1, Sq: 3, Sk: 40}}},
	{"bf16-d64-causal", attention.BF16, cases.Case{D: 64, Dv: 64, Causal: attention.BottomRight, Shape: attention.Shape{B: 1, Hq: 2, Sq: 31, Sk: 50}}},
	{"bf16-d111", attention.BF16, cases.Case{D: 111, Dv: 111, Shape: attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 37}}},
	{"f32-d59", attention.F32, cases.Case{D: 59, Dv: 59, Shape: attention.Shape{B: 1, Hq: 2, Sq: 21, Sk: 43}}},
	{"f32-d8-scale-zero", attention.F32, cases.Case{D: 8, Dv: 8, Scale: attention.ScaleOf(0), Causal: attention.TopLeft, Shape: attention.Shape{B: 1, Hq: 1, Sq: 65, Sk: 65}}},
	{"f32-d1", attention.F32, cases.Case{D: 1, Dv: 1, Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}}},
	{"f32-d64v16-large", attention.F32, cases.Case{D: 64, Dv: 16, Data: cases.Large, Causal: attention.BottomRight, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 17, Sk: 80}}},
}

// goldenCase returns the case that an entry describes.
func (g goldenEntry) testCase() (cases.Case, error) {
	c := cases.Case{
		D: g.HeadDim, Dv: g.HeadDimV, Causal: g.Causal, LSE: true, Layout: cases.Tight, Seed: g.Seed,
		Shape: attention.Shape{B: g.B, Hq: g.Hq, Hkv: g.Hkv, Sq: g.Sq, Sk: g.Sk},
	}
	if g.Scale != nil {
		c.Scale = attention.ScaleOf(*g.Scale)
	}
	for ; c.Data < cases.DataKinds; c.Data++ {
		if c.Data.String() == g.Data {
			return c, nil
		}
	}
	return c, fmt.Errorf("%s: data %q", g.Name, g.Data)
}

func goldenFile(name, tensor string) string {
	return filepath.Join(goldenDir, name+"."+tensor+".npy")
}

var goldenTensors = [cases.Tensors]string{"q", "k", "v", "o", "lse"}

func goldenShape(p *cases.Problem, i int) []int {
	heads, seq, dim := p.Sizes(i)
	if i == cases.TensorLSE {
		return []int{p.Shape.B, heads, seq}
	}
	return []int{p.Shape.B, heads, seq, dim}
}

// writeGolden makes the golden files anew.
func writeGolden(t *testing.T) {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(goldenDir, "*.npy"))
	require.NoError(t, err)
	for _, f := range old {
		require.NoError(t, os.Remove(f))
	}
	var manifest []goldenEntry
	for i, g := range goldenCases {
		entry := goldenEntry{
			Name: g.name, DType: g.dtype, HeadDim: g.D, HeadDimV: g.Dv, Causal: g.Causal,
			B: g.Shape.B, Hq: g.Shape.Hq, Hkv: g.Shape.KVHeads(), Sq: g.Shape.Sq, Sk: g.Shape.Sk,
			Data: g.Data.String(), Seed: uint64(1000 + i),
		}
		if !g.Scale.IsDefault() {
			v := g.Scale.Value(g.D)
			entry.Scale = &v
		}
		c, err := entry.testCase()
		require.NoError(t, err)
		p, err := cases.NewProblem(c, g.dtype)
		require.NoError(t, err)
		kind := "f4"
		if g.dtype == attention.F16 {
			kind = "f2"
		}
		for j := range cases.TensorO {
			x, err := p.Read(p.Image, j)
			require.NoError(t, err)
			require.NoError(t, writeNpy(goldenFile(g.name, goldenTensors[j]), kind, goldenShape(p, j), widen(x)))
		}
		o, lse, err := attention.Reference(attention.Config(p.Config(cases.Target{DType: p.DType})), p.HostArgs(p.Image))
		require.NoError(t, err)
		require.NoError(t, writeNpy(goldenFile(g.name, "o"), "f8", goldenShape(p, cases.TensorO), o))
		require.NoError(t, writeNpy(goldenFile(g.name, "lse"), "f8", goldenShape(p, cases.TensorLSE), lse))
		manifest = append(manifest, entry)
	}
	b, err := json.MarshalIndent(manifest, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(goldenManifest, append(b, '\n'), 0o644))
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// goldenProblem reads a problem and its expected result.
func goldenProblem(t *testing.T, g goldenEntry) *checkedCase {
	t.Helper()
	c, err := g.testCase()
	require.NoError(t, err)
	p, err := cases.NewProblem(c, g.DType)
	require.NoError(t, err)
	x := &checkedCase{Case: c, dtype: g.DType, problem: p}
	for i, name := range goldenTensors {
		shape, data, err := readNpy(goldenFile(g.Name, name))
		require.NoError(t, err)
		require.Equal(t, goldenShape(p, i), shape, "%s of %s", name, g.Name)
		switch i {
		case cases.TensorO:
			x.Ref = data
		case cases.TensorLSE:
			x.RefLSE = data
		default:
			made, err := p.Read(p.Image, i)
			require.NoError(t, err)
			require.Equal(t, data, widen(made), "%s of %s is not what its seed makes", name, g.Name)
		}
	}
	return x
}

func readManifest(t *testing.T) (manifest []goldenEntry) {
	t.Helper()
	b, err := os.ReadFile(goldenManifest)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &manifest))
	require.Len(t, manifest, len(goldenCases))
	return manifest
}

// TestGolden compares every tier with outputs that were computed once and checked by
// another program (golden/check.py), so that a change to the reference is noticed.
func TestGolden(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	s := open(t)
	var cases []*checkedCase
	manifest := readManifest(t)
	for _, g := range manifest {
		x := goldenProblem(t, g)
		o, lse := x.Ref, x.RefLSE
		x.Ref, x.RefLSE = nil, nil // to be computed
		require.NoError(t, x.Expect(x.problem))
		closeTo(t, o, x.Ref, "O of "+g.Name)
		closeTo(t, lse, x.RefLSE, "LSE of "+g.Name)
		x.Ref, x.RefLSE = o, lse
		cases = append(cases, x)
	}
	if s.compileOnly {
		return
	}
	for _, tt := range s.available() {
		t.Run(tt.String(), func(t *testing.T) {
			var of []*checkedCase
			var names []string
			which, tiers := 0, 1
			if onMatrices(tt) && !full() {
				which, tiers = s.matrixTier(tt)
			}
			for i, g := range manifest {
				if g.DType == tt.DType && i%tiers == which && testlevel.Share(i%3 == s.turn) {
					of = append(of, cases[i])
					names = append(names, g.Name)
				}
			}
			for i, err := range conform(t, s, tt, of, attention.Experiment{}) {
				t.Run(names[i], func(t *testing.T) {
					require.NoError(t, err)
				})
			}
		})
	}
}

// closeTo allows the error of another order of sums.
func closeTo(t *testing.T, want, got []float64, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if g := got[i]; g != w && !(math.Abs(g-w) <= 1e-12*(1+math.Abs(w))) {
			t.Fatalf("%s: element %d is %v, the file has %v", what, i, g, w)
		}
	}
}
