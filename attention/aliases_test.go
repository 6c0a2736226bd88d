package attention_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// Users import package attention alone, so it names every exported constant of
// internal/problem but those of backends and experiments. A new tier or KV type without its alias
// would be out of their reach.
func TestEveryNameOfProblemHasAnAlias(t *testing.T) {
	aliases := make(map[string]bool)
	inspect(t, "problem.go", func(n ast.Node) {
		if s, ok := n.(*ast.SelectorExpr); ok {
			aliases[s.Sel.Name] = true
		}
	})
	files, err := filepath.Glob("../internal/problem/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || slices.Contains([]string{"cuda.go", "cubin.go", "experiment.go"}, filepath.Base(file)) {
			continue
		}
		inspect(t, file, func(n ast.Node) {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				return
			}
			for _, spec := range d.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if name.IsExported() {
						found++
						require.True(t, aliases[name.Name], "%s: attention has no alias of %s", file, name.Name)
					}
				}
			}
		})
	}
	require.Greater(t, found, 20)
}

// go doc shows the fields and methods of every type: in its declaration, or, for an alias of a type
// of internal/problem, in its comment. Methods that only print and parse need no mention.
func TestDocsOfAliasesHaveFieldsAndMethods(t *testing.T) {
	aliases := []any{attention.DType(0), attention.KVType(0), attention.Causal(0), attention.Scale{}, attention.Window{}, attention.Tier(0), attention.Access(0),
		attention.Tuning(0), attention.ShapeError{}, attention.Shape{}, attention.Tensor{}, attention.Strides{}, attention.Vector{}, attention.HostView{}, attention.Memory{}, attention.Stream{}, attention.BlockMap{}}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
			require.NoError(t, err)
			parsed = append(parsed, f)
		}
	}
	comments := map[string]string{}
	pages, err := doc.NewFromFiles(set, parsed, "vkattn/attention")
	require.NoError(t, err)
	for _, page := range pages.Types {
		for _, s := range page.Decl.Specs {
			s := s.(*ast.TypeSpec)
			if x, ok := s.Type.(*ast.SelectorExpr); ok && fmt.Sprint(x.X) == "problem" {
				comments[s.Name.Name] = s.Doc.Text() + page.Doc
			}
		}
	}
	delete(comments, "Experiment") // for measurements of this repository
	plain := strings.Fields("Error Is MarshalText Set String Type UnmarshalText Valid")
	for _, x := range aliases {
		typ := reflect.TypeOf(x)
		comment, ok := comments[typ.Name()]
		require.True(t, ok, "attention has no alias %s", typ.Name())
		delete(comments, typ.Name())
		var names []string
		if typ.Kind() == reflect.Struct {
			for _, f := range reflect.VisibleFields(typ) {
				if f.IsExported() {
					names = append(names, f.Name)
				}
			}
		}
		for i := range reflect.PointerTo(typ).NumMethod() {
			if m := reflect.PointerTo(typ).Method(i).Name; !slices.Contains(plain, m) {
				names = append(names, ") "+m+"(")
			}
		}
		for _, name := range names {
			require.Contains(t, comment, name, typ.Name())
		}
	}
	require.Empty(t, comments, "aliases that this test does not know")
}

func inspect(t *testing.T, file string, visit func(ast.Node)) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool { visit(n); return true })
}
