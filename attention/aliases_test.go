package attention_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

func inspect(t *testing.T, file string, visit func(ast.Node)) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool { visit(n); return true })
}
