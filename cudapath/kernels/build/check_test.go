package main

import (
	"os"
	"path/filepath"
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
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"the sources have changed": func(t *testing.T, dir string) { appendTo(t, dir, "ptx.h") },
		"is not the file in the manifest": func(t *testing.T, dir string) {
			packed, err := pack([]byte("something else"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", "fa2_f16_d64.ptx.gz"), packed, 0o644))
		},
		"fa2.json is not what the catalogue gives": func(t *testing.T, dir string) { appendTo(t, dir, "fa2.json") },
		"bin/stray belongs to no module":           func(t *testing.T, dir string) { appendTo(t, dir, "bin/stray") },
		"no such file": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "bin", "ref_f32.ptx.gz")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS("..")))
			modules := catalog()
			m, err := readManifest(dir)
			require.NoError(t, err)
			require.NoError(t, checkFiles(dir, modules, m))
			spoil(t, dir)
			assert.ErrorContains(t, checkFiles(dir, modules, m), name)
		})
	}
}

func appendTo(t *testing.T, dir, name string) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	require.NoError(t, err)
	_, err = f.WriteString("\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
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
