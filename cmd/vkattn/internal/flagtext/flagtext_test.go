package flagtext_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	_ "vkattn/cmd/vkattn/internal/bench" // names the fields of its axes
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/internal/problem"
)

func TestShapeErrorsNameFlags(t *testing.T) {
	for _, c := range []struct {
		names flagtext.Names
		err   *attention.ShapeError
		want  string
	}{
		{flagtext.Run, &attention.ShapeError{Field: "HeadDim/HeadDimV", Got: "300/8", Want: "each at most 256"}, "head dims of --q and --v is 300/8, want each at most 256"},
		{flagtext.Run, &attention.ShapeError{Field: "Align", Got: attention.CausalNone, Want: problem.Phrase("top-left or bottom-right for a ${Window} without a causal mask")},
			"--align is none, want top-left or bottom-right for a --window without a causal mask"},
		{flagtext.Run, &attention.ShapeError{Field: "Pages.Count*PageSize", Got: "3*4", Want: "less"}, "keys of all pages of --k is 3*4, want less"},
		{flagtext.Sweep, &attention.ShapeError{Field: "Hkv", Got: 3, Want: problem.Phrase("a divisor of ${Hq} (8)")}, "--nheads-kv is 3, want a divisor of --nheads (8)"},
		{flagtext.Sweep, &attention.ShapeError{Field: "B*Hq*Sq", Got: "1*2*3", Want: "a product below 2^63"}, "--batch-size*--nheads*--seqlen is 1*2*3, want a product below 2^63"},
		{flagtext.Run, &attention.ShapeError{Field: "Varlen.CuK[2]", Got: 3, Want: 4}, "--cu-seqlens-k[2] is 3, want 4"},
		{flagtext.Run, &attention.ShapeError{Field: "Bias.Offset", Got: problem.Phrase("in ${Buffer}"), Want: 0}, "--bias.start is in device buffer, want 0"},
		{flagtext.Run, &attention.ShapeError{Field: "B", Got: 1, Want: "2 where the KV cache has Pages"}, "batch of --q is 1, want 2 where the KV cache has Pages"},
		{flagtext.Sweep, &attention.ShapeError{Field: "Unheard", Got: 1, Want: 2}, "Unheard is 1, want 2"},
	} {
		err := c.names.Error(fmt.Errorf("before: %w; after", c.err))
		require.EqualError(t, err, "before: "+c.want+"; after")
		var shape *attention.ShapeError
		require.ErrorAs(t, err, &shape)
	}
	plain := errors.New("Align is no field here")
	require.EqualError(t, flagtext.Run.Error(plain), plain.Error())
	require.NoError(t, flagtext.Run.Error(nil))
}

// A field that the library comes to name has to have a name here too.
func TestEveryFieldOfAShapeErrorHasAFlag(t *testing.T) {
	var files []string
	for _, folder := range []string{"attention", "internal/problem", "internal/tensors", "internal/plan"} {
		in, err := filepath.Glob(filepath.Join("../../../..", folder, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, in)
		files = append(files, in...)
	}
	// elsewhere reports whether a file belongs to calls that the commands do not make, or
	// that name their own sizes.
	elsewhere := func(name string) bool {
		base := filepath.Base(name)
		for _, p := range []string{"append", "backward", "merge", "rotary", "kvencode", "reference", "sample", "device", "made", "cache", "step"} {
			if strings.HasPrefix(base, p) {
				return true
			}
		}
		return strings.HasSuffix(base, "_test.go")
	}
	found := 0
	for _, name := range files {
		if elsewhere(name) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) == 0 || nameOf(lit.Type) != "ShapeError" {
				return true
			}
			at := filepath.Base(name)
			for i, value := range lit.Elts {
				if pair, ok := value.(*ast.KeyValueExpr); ok {
					value = pair.Value
				}
				text, ok := value.(*ast.BasicLit)
				switch {
				case i > 0:
					found += checkPhrases(t, at, value)
				case ok: // else it is made of a tensor's name
					found++
					hasFlags(t, at, unquote(t, text))
				}
			}
			return true
		})
	}
	require.Greater(t, found, 45)
}

// nameOf is the last name of an expression: "Phrase" of problem.Phrase.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func unquote(t *testing.T, lit *ast.BasicLit) string {
	t.Helper()
	s, err := strconv.Unquote(lit.Value)
	require.NoError(t, err)
	return s
}

// hasFlags checks that the command has words for all of a field.
func hasFlags(t *testing.T, at, field string) {
	t.Helper()
	for _, part := range strings.Split(field, "*") {
		names := func(n flagtext.Names) bool {
			text := n.Text(&attention.ShapeError{Field: part})
			return !slices.ContainsFunc(strings.Split(part, "."), func(word string) bool { return strings.Contains(text, word) })
		}
		if !names(flagtext.Sweep) || !names(flagtext.Run) && part != "Variant" && part != "Ablate" {
			t.Errorf("%s: field %s has no flag: %q", at, field, part)
		}
	}
}

var marked = regexp.MustCompile(`\$\{([\w.]+)\}`)

// checkPhrases checks the texts of Got and Want: fields are named in a Phrase, where they
// are marked. It returns the number of marked fields.
func checkPhrases(t *testing.T, at string, value ast.Expr) (found int) {
	t.Helper()
	phrase := false
	ast.Inspect(value, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			phrase = phrase || nameOf(call.Fun) == "Phrase"
		}
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text := unquote(t, lit)
		if phrase {
			for _, m := range marked.FindAllStringSubmatch(text, -1) {
				hasFlags(t, at, m[1])
				found++
			}
			return true
		}
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) }) {
			if _, ok := flagtext.Run[word]; ok {
				t.Errorf("%s: %q names the field %s, want ${%s} in a Phrase", at, text, word, word)
			}
		}
		return true
	})
	return found
}

func TestCount(t *testing.T) {
	require.Equal(t, "0 rows", flagtext.Count(0, "row"))
	require.Equal(t, "1 row", flagtext.Count(1, "row"))
	require.Equal(t, "2 rows", flagtext.Count(int64(2), "row"))
}
