package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layers are the packages that others import, lowest first.
var layers = strings.Fields(`
	internal/arith internal/atomicfile internal/cachefile internal/ccall internal/cloexec internal/compiled internal/driverlib internal/dropout internal/grid
	internal/half internal/hostmem internal/par internal/pause internal/quant internal/gokernels attention/score internal/randscore internal/simd internal/turns internal/apiwalk internal/testlevel internal/testfifo
	shaders internal/paramtest
	vk vk/goki internal/faultydriver internal/testdevice
	internal/errs internal/enum internal/problem internal/tensors internal/hostcall internal/dispatch internal/host internal/oracle internal/plan internal/backend internal/plain internal/ceiling
	internal/inputs internal/operands internal/accuracy internal/cases
	attention attention/merge attention/kvcache internal/testdevices
	cudapath internal/nccl
	attention/parallel internal/ranktest internal/control attention/parallel/processes`)

// A package imports lower ones. The command, the bindings and the examples may import all; host and plan do not
// import each other.
func TestLayersAreUsedDownwards(t *testing.T) {
	const root = ".."
	seen := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case e.IsDir() && (name == "build" || name == "cmd" || name == "bindings" || name == "attention/examples" || name != "." && strings.HasPrefix(e.Name(), ".")):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		folder := filepath.ToSlash(filepath.Dir(name))
		if folder == "tests" || strings.HasSuffix(folder, "/build") {
			return nil
		}
		layer := slices.Index(layers, folder)
		require.GreaterOrEqual(t, layer, 0, "%s has no layer", folder)
		seen[folder] = true
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range f.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			lower, ok := strings.CutPrefix(imported, "vkattn/")
			if !ok {
				continue
			}
			at := slices.Index(layers, lower)
			if at < 0 || at >= layer || folder == "internal/plan" && lower == "internal/host" {
				t.Errorf("%s imports %s, which is not below it", name, lower)
			}
		}
		return nil
	}))
	for _, name := range layers {
		require.True(t, seen[name], "%s has no files", name)
	}
}
