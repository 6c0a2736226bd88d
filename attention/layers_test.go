package attention_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layers are the packages of the library, lowest first, and the packages of the library that
// each may import. Package attention may import all of them.
var layers = []struct{ name, imports string }{
	{"half", ""},
	{"quant", "half"},
	{"internal/arith", ""},
	{"internal/errs", ""},
	{"internal/par", ""},
	{"internal/dropout", ""},
	{"internal/simd", "half quant"},
	{"internal/enum", "internal/errs"},
	{"problem", "half quant internal/arith internal/enum internal/errs"},
	{"internal/tensors", "problem half quant internal/arith internal/errs internal/par"},
	{"internal/host", "problem internal/tensors half quant internal/arith internal/dropout internal/par internal/simd"},
	{"internal/dispatch", "problem internal/errs"},
	{"internal/plan", "problem internal/tensors internal/dispatch internal/arith internal/enum internal/errs"},
	{"merge", "problem internal/tensors internal/dispatch half internal/arith internal/errs internal/par"},
	{"kvcache", "problem internal/tensors internal/dispatch half quant internal/arith internal/enum internal/errs internal/par"},
	{"plain", "problem internal/dispatch internal/arith"},
	{"ceiling", "problem internal/dispatch"},
	{"internal/paramtest", ""}, // for tests
}

// A package imports lower ones; host and plan do not import each other.
func TestLayersAreUsedDownwards(t *testing.T) {
	const root = "vkattn/attention"
	for _, l := range layers {
		files, err := filepath.Glob(filepath.Join(l.name, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, l.name)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, i := range f.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				require.NotEqual(t, root, path, "%s imports a higher package", name)
				if lower, ok := strings.CutPrefix(path, root+"/"); ok && !slices.Contains(strings.Fields(l.imports), lower) {
					t.Errorf("%s imports %s, which layer %s does not use", name, lower, l.name)
				}
			}
		}
	}
	all, err := filepath.Glob("internal/*")
	require.NoError(t, err)
	for _, folder := range all {
		require.True(t, slices.ContainsFunc(layers, func(l struct{ name, imports string }) bool { return l.name == filepath.ToSlash(folder) }),
			"%s has no layer", folder)
	}
}
