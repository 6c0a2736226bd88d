package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The committed modules are what was compiled from the committed sources. Needs no
// nvcc; make cuda-check also compiles again where it can.
func TestCommittedModulesAreCurrent(t *testing.T) {
	modules := catalog()
	m, err := readManifest("..")
	require.NoError(t, err)
	require.NoError(t, checkFiles("..", modules, m), "run make cuda")
}

func TestCheckFindsWhatIsStale(t *testing.T) {
	other, err := pack([]byte("something else"))
	require.NoError(t, err)
	line := func(text []byte) []byte { return append(text, '\n') }
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("..")))
	modules := catalog()
	m, err := readManifest(dir)
	require.NoError(t, err)
	require.NoError(t, checkFiles(dir, modules, m))
	for says, x := range map[string]struct {
		file   string
		change func(text []byte) []byte // nil: the file is removed
	}{
		"the sources have changed":                 {"ptx.h", line},
		"is not the file in the manifest":          {"bin/fa2_f16_d64.ptx.gz", func([]byte) []byte { return other }},
		"fa2.json is not what the catalogue gives": {"fa2.json", line},
		"bin/stray belongs to no module":           {"bin/stray", line},
		"no such file":                             {"bin/ref_f32.ptx.gz", nil},
	} {
		path := filepath.Join(dir, x.file)
		before, missing := os.ReadFile(path)
		if x.change == nil {
			require.NoError(t, os.Remove(path))
		} else {
			require.NoError(t, os.WriteFile(path, x.change(slices.Clone(before)), 0o644))
		}
		assert.ErrorContains(t, checkFiles(dir, modules, m), says)
		if missing != nil {
			require.NoError(t, os.Remove(path))
		} else {
			require.NoError(t, os.WriteFile(path, before, 0o644))
		}
	}
}

// Every head dim up to 256, and 192 with 128, has a kernel of each kind that fits an
// A100; those for any alignment fit the smallest GPUs the family is for.
func TestEveryProblemHasAKernel(t *testing.T) {
	type kind struct {
		dtype                       string
		causal, any, general, slots bool
	}
	largest := map[kind]int{}
	pairs := map[kind]bool{}
	for _, m := range fa2Modules() {
		for _, e := range m.entries {
			k := kind{e.DType, e.Causal, e.Any, e.General, e.Slots}
			largest[k] = max(largest[k], min(e.D, e.DV))
			pairs[k] = pairs[k] || e.D == 192 && e.DV == 128
			assert.LessOrEqual(t, e.Shared, 163<<10, "%s: what a block of sm_80 has", e.Entry)
			if e.Any {
				assert.LessOrEqual(t, e.Shared, 99<<10, "%s: what a block of sm_86 and sm_89 has", e.Entry)
			}
		}
	}
	assert.Len(t, largest, 12)
	for k, d := range largest {
		assert.Equal(t, 256, d, "%v", k)
		assert.True(t, pairs[k], "%v", k)
	}
}

func TestPackedFilesAreReproducible(t *testing.T) {
	a, err := pack([]byte("the same"))
	require.NoError(t, err)
	b, err := pack([]byte("the same"))
	require.NoError(t, err)
	assert.Equal(t, a, b)
	path := filepath.Join(t.TempDir(), "x.gz")
	require.NoError(t, os.WriteFile(path, a, 0o644))
	content, err := unpack(path)
	require.NoError(t, err)
	assert.Equal(t, "the same", string(content))
	_, err = unpack("check_test.go")
	assert.ErrorContains(t, err, "check_test.go")
}
