package attention_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// layers are the layers of this package, lowest first, and the files of each. A file uses
// declarations of its own layer and of lower ones; host and plan do not use each other.
var layers = []struct{ name, files string }{
	// How it is computed on a device: tier, kernel, tile, splits, and the tiles that tuning knows.
	{"plan", `cuda decode_part fixed_split fragment_order kernel ladder options plan splits tiers tile tile_coopmat
		tile_decode score_factors tile_scalar tune_cache tune_class tune_estimate tune_prune tune_store tune_table variant`},
	// Operations: pipelines, recording, tuning runs, merge, append.
	{"operation", `append append_check append_cpu append_encode append_launch binding combine doc launch launch_cuda
		launch_options launch_splits merge merge_check merge_cpu merge_launch op params pipelines problem reference request rotary tune
		tune_compile tune_memory tune_race tune_report`},
}

// noImports gives every import an empty package: only names of this package are looked up.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

// A file uses only what its layer may use, and a method is in the layer of its type.
func TestLayersAreUsedDownwards(t *testing.T) {
	attention.OnceOnly(t)
	layerOf := map[string]int{}
	for i, l := range layers {
		for _, f := range strings.Fields(l.files) {
			layerOf[f+".go"] = i
		}
	}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	fset, files := token.NewFileSet(), []*ast.File(nil)
	for _, e := range entries {
		name := e.Name()
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		require.Contains(t, layerOf, name, "this file has no layer")
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	require.Len(t, layerOf, len(files), "a layer names a file that does not exist")

	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	// Names of other packages do not resolve here; their errors are ignored.
	config := types.Config{Importer: noImports{}, Error: func(error) {}, FakeImportC: true}
	pkg, _ := config.Check("vkattn/attention", fset, files, info)
	fileOf := func(p token.Pos) string { return filepath.Base(fset.Position(p).Filename) }
	checked := 0
	for id, o := range info.Uses {
		if o.Pkg() != pkg || !o.Pos().IsValid() {
			continue
		}
		from, to := fileOf(id.Pos()), fileOf(o.Pos())
		a, b := layerOf[from], layerOf[to]
		checked++
		if a < b || layers[a].name == "plan" && layers[b].name == "host" {
			t.Errorf("%s: %s (layer %s) uses %s of %s (layer %s)", fset.Position(id.Pos()), from, layers[a].name, o.Name(), to, layers[b].name)
		}
	}
	require.Greater(t, checked, 2000)
	for _, o := range info.Defs {
		f, ok := o.(*types.Func)
		if !ok || f.Signature().Recv() == nil {
			continue
		}
		r := f.Signature().Recv().Type()
		if p, ok := r.(*types.Pointer); ok {
			r = p.Elem()
		}
		if n, ok := r.(*types.Named); ok {
			from, to := fileOf(f.Pos()), fileOf(n.Obj().Pos())
			require.Equal(t, layers[layerOf[to]].name, layers[layerOf[from]].name, "method %s.%s", n.Obj().Name(), f.Name())
		}
	}
}
