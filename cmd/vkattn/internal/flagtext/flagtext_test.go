package flagtext

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestShapeErrorsNameFlags(t *testing.T) {
	for _, c := range []struct {
		names *Names
		err   *attention.ShapeError
		want  string
	}{
		{Run, &attention.ShapeError{Field: "HeadDim/HeadDimV", Got: "300/8", Want: "each at most 256"}, "head dims of --q and --v is 300/8, want each at most 256"},
		{Run, &attention.ShapeError{Field: "Align", Got: attention.CausalNone, Want: "top-left or bottom-right for a Window without a causal mask"},
			"--align is none, want top-left or bottom-right for a --window without a causal mask"},
		{Run, &attention.ShapeError{Field: "Pages.Count*PageSize", Got: "3*4", Want: "less"}, "keys of all pages of --k is 3*4, want less"},
		{Sweep, &attention.ShapeError{Field: "Hkv", Got: 3, Want: "a divisor of Hq (8)"}, "--nheads-kv is 3, want a divisor of --nheads (8)"},
		{Sweep, &attention.ShapeError{Field: "B*Hq*Sq", Got: "1*2*3", Want: "a product below 2^63"}, "--batch-size*--nheads*--seqlen is 1*2*3, want a product below 2^63"},
		{Sweep, &attention.ShapeError{Field: "Unheard", Got: 1, Want: 2}, "Unheard is 1, want 2"},
	} {
		err := c.names.Error(fmt.Errorf("before: %w; after", c.err))
		require.EqualError(t, err, "before: "+c.want+"; after")
		var shape *attention.ShapeError
		require.ErrorAs(t, err, &shape)
	}
	plain := errors.New("Align is no field here")
	require.EqualError(t, Run.Error(plain), plain.Error())
	require.NoError(t, Run.Error(nil))
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
		for _, p := range []string{"append", "backward", "merge", "rotary", "kvencode", "reference", "sample"} {
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
			if !ok || len(lit.Elts) == 0 {
				return true
			}
			switch typ := lit.Type.(type) {
			case *ast.Ident:
				if typ.Name != "ShapeError" {
					return true
				}
			case *ast.SelectorExpr:
				if typ.Sel.Name != "ShapeError" {
					return true
				}
			default:
				return true
			}
			first := lit.Elts[0]
			if pair, ok := first.(*ast.KeyValueExpr); ok {
				first = pair.Value
			}
			value, ok := first.(*ast.BasicLit)
			if !ok {
				return true // made of a tensor's name
			}
			field, err := strconv.Unquote(value.Value)
			require.NoError(t, err)
			found++
			for _, n := range []*Names{Run, Sweep} {
				if left := n.words.ReplaceAllString(field, ""); strings.Trim(left, "*/.") != "" && !(n == Run && (field == "Variant" || field == "Ablate")) {
					t.Errorf("%s: field %s has no flag: %q is left", filepath.Base(name), field, left)
				}
			}
			return true
		})
	}
	require.Greater(t, found, 30)
}
