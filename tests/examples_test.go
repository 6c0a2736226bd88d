package tests

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The documentation of a package names each of its examples, since go doc shows none.
func TestPackageDocsNameTheExamples(t *testing.T) {
	for folder, programs := range map[string]string{"../attention": "../attention/examples", "../vk": "", "../cudapath": ""} {
		text := packageDoc(t, folder)
		tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		var names []string
		for _, name := range tests {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			require.NoError(t, err)
			for _, e := range doc.Examples(f) {
				names = append(names, "Example"+e.Name)
			}
		}
		require.NotEmpty(t, names, folder)
		if programs != "" {
			entries, err := os.ReadDir(programs)
			require.NoError(t, err)
			for _, e := range entries {
				names = append(names, "attention/examples/"+e.Name())
			}
		}
		for _, name := range names {
			require.Regexp(t, `\b`+name+`\b`, text, "%s: the package's documentation does not name %s", folder, name)
		}
	}
}

func packageDoc(t *testing.T, folder string) (text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		text += (&ast.CommentGroup{List: comments(f)}).Text()
	}
	return text
}

func comments(f *ast.File) []*ast.Comment {
	if f.Doc == nil {
		return nil
	}
	return f.Doc.List
}
