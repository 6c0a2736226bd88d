package testlevel_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// No test depends on how fast or how busy the machine is: it waits for an event, for minutes at least, or runs
// on the clock of testing/synctest, and it does not judge a time. Exempt are benchmarks, bubbles of synctest and
// what says that it is for them, and the files gpu_*_test.go, which measure GPUs.
func TestTestsDoNotAskTheClock(t *testing.T) {
	folders := map[string][]*ast.File{}
	files := token.NewFileSet()
	require.NoError(t, filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch name := e.Name(); {
		case err != nil:
			return err
		case e.IsDir() && (name == "build" || strings.HasPrefix(name, ".") && path != "../.."):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go"):
			f, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			folders[filepath.Dir(path)] = append(folders[filepath.Dir(path)], f)
		}
		return nil
	}))
	var found []string
	for _, list := range folders {
		c := &clockUse{values: map[string]ast.Expr{}}
		for _, f := range list {
			c.declare(f)
		}
		for _, f := range list {
			name := filepath.Base(files.Position(f.Pos()).Filename)
			if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "gpu_") {
				continue
			}
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && !strings.HasPrefix(d.Name.Name, "Benchmark") && !strings.Contains(d.Doc.Text(), "synctest") {
					for at, what := range c.of(d) {
						found = append(found, fmt.Sprintf("%v: %s", files.Position(at), what))
					}
				}
			}
		}
	}
	require.Empty(t, found)
}

// What the search finds and what it leaves alone.
func TestClockUseIsFound(t *testing.T) {
	for body, want := range map[string]int{
		"time.Sleep(time.Millisecond)": 1,
		"time.Sleep(time.Hour)":        0,
		"time.Sleep(short)":            1,
		"time.Sleep(2 * long)":         0,
		"time.Sleep(given)":            0,
		"ctx, _ := context.WithTimeout(nil, 3*time.Second); _ = ctx":                     1,
		"<-time.After(short / 4)":                                                        1,
		"time.AfterFunc(5, nil)":                                                         1,
		"require.Eventually(t, nil, long, time.Millisecond)":                             0,
		"assert.Eventually(t, nil, time.Second, time.Millisecond)":                       1,
		"conn.SetReadDeadline(time.Now().Add(short))":                                    1,
		"require.Less(t, time.Since(begin), long)":                                       1,
		"took := time.Since(begin); if took > long { t.Fatal() }":                        1,
		"t.Log(time.Since(begin))":                                                       0,
		"for time.Since(begin) < long { }":                                               1,
		"synctest.Test(t, func(t *testing.T) { time.Sleep(short) })":                     0,
		"inBubble(t, func(t *testing.T) { require.Zero(t, time.Since(begin)) })":         0,
		"b.Run(func(b *testing.B) { require.Less(b, time.Since(begin), 1) })":            0,
		"local := 3 * short; time.Sleep(local)":                                          1,
		"const local = time.Minute; context.WithTimeoutCause(nil, local, nil)":           0,
		"var none time.Duration; time.Sleep(none)":                                       0,
		"go func() { time.Sleep(short) }()":                                              1,
		"t.Run(name, func(t *testing.T) { t.Parallel(); time.Sleep(short) })":            1,
		"t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) {}) })":    0,
		"require.Never(t, nil, long, short)":                                             1,
		"context.WithDeadline(nil, time.Now().Add(time.Hour))":                           0,
		"context.WithDeadline(nil, time.Now().Add(50*time.Millisecond)); time.Sleep(10)": 2,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p\nconst short = 20*time.Millisecond\nvar long = 5 * time.Minute\nfunc f(given time.Duration) {"+body+"}", 0)
		require.NoError(t, err, body)
		c := &clockUse{values: map[string]ast.Expr{}}
		c.declare(f)
		require.Len(t, c.of(f.Decls[len(f.Decls)-1].(*ast.FuncDecl)), want, body)
	}
}

// clockUse searches the functions of a package.
type clockUse struct {
	values map[string]ast.Expr // of constants and variables, by name
}

func (c *clockUse) declare(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					c.values[name.Name] = n.Values[i]
				}
			}
		case *ast.FuncDecl:
			return false
		}
		return true
	})
}

// durations are the functions that wait, and which argument says how long.
var durations = map[string]int{
	"time.Sleep": 0, "time.After": 0, "time.AfterFunc": 0, "time.NewTimer": 0, "context.WithTimeout": 1, "context.WithTimeoutCause": 1,
	"context.WithDeadline": 1, "context.WithDeadlineCause": 1, "require.Eventually": 2, "assert.Eventually": 2, "require.EventuallyWithT": 2, "assert.EventuallyWithT": 2,
}

// of finds where a function asks the clock.
func (c *clockUse) of(d *ast.FuncDecl) map[token.Pos]string {
	found := map[token.Pos]string{}
	local := &clockUse{values: map[string]ast.Expr{}}
	for name, v := range c.values {
		local.values[name] = v
	}
	took := map[string]bool{} // variables that have a time that passed
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			local.declare(n)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE && len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					name := n.Lhs[i].(*ast.Ident).Name
					local.values[name] = n.Rhs[i]
					took[name] = took[name] || passed(n.Rhs[i], nil)
				}
			}
		}
		return true
	})
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return !ofBenchmark(n)
		case *ast.BinaryExpr:
			if n.Op.Precedence() == token.EQL.Precedence() && passed(n, took) {
				found[n.Pos()] = "compares a time that passed"
			}
		case *ast.CallExpr:
			name := called(n)
			if name == "synctest.Test" || name == "inBubble" {
				return false
			}
			at, waits := durations[name]
			if _, method, _ := strings.Cut(name, "."); strings.HasPrefix(method, "Set") && strings.HasSuffix(method, "Deadline") {
				at, waits = 0, true
			}
			switch {
			case strings.HasSuffix(name, ".Never"):
				found[n.Pos()] = name + " waits for nothing to happen"
			case waits && len(n.Args) > at && local.short(n.Args[at]):
				found[n.Pos()] = name + " waits for less than a minute"
			case (strings.HasPrefix(name, "require.") || strings.HasPrefix(name, "assert.")) && passed(n, took):
				found[n.Pos()] = name + " judges a time that passed"
			}
		}
		return true
	})
	return found
}

// called is the name of a called function of a package or variable, "x.F", or of this package, "F".
func called(n *ast.CallExpr) string {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// ofBenchmark reports whether a function takes a *testing.B.
func ofBenchmark(f *ast.FuncLit) bool {
	for _, p := range f.Type.Params.List {
		if star, ok := p.Type.(*ast.StarExpr); ok {
			if s, ok := star.X.(*ast.SelectorExpr); ok && s.Sel.Name == "B" {
				return true
			}
		}
	}
	return false
}

// passed reports whether an expression has a call of time.Since or time.Until, or one of the variables.
func passed(n ast.Node, took map[string]bool) (yes bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			name := called(n)
			yes = yes || name == "time.Since" || name == "time.Until"
		case *ast.Ident:
			yes = yes || took[n.Name]
		}
		return true
	})
	return yes
}

// short reports whether a duration, or how far a time is from now, is known and between 0 and a minute.
func (c *clockUse) short(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 {
		if add, ok := call.Fun.(*ast.SelectorExpr); ok && add.Sel.Name == "Add" { // time.Now().Add(d)
			e = call.Args[0]
		}
	}
	v := c.value(e, 0)
	if v == nil {
		return false
	}
	f, _ := constant.Float64Val(constant.ToFloat(v))
	return f > 0 && f < float64(time.Minute)
}

// value evaluates a constant, with the values that variables have at first; nil: it is none.
func (c *clockUse) value(e ast.Expr, depth int) constant.Value {
	if depth > 20 { // x := 2 * x of an outer x
		return nil
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT || e.Kind == token.FLOAT {
			return constant.MakeFromLiteral(e.Value, e.Kind, 0)
		}
	case *ast.ParenExpr:
		return c.value(e.X, depth+1)
	case *ast.Ident:
		if v, ok := c.values[e.Name]; ok {
			return c.value(v, depth+1)
		}
	case *ast.SelectorExpr:
		units := map[string]time.Duration{"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
			"Minute": time.Minute, "Hour": time.Hour}
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" && units[e.Sel.Name] != 0 {
			return constant.MakeInt64(int64(units[e.Sel.Name]))
		}
	case *ast.BinaryExpr:
		x, y := c.value(e.X, depth+1), c.value(e.Y, depth+1)
		switch {
		case x == nil || y == nil:
			return nil
		case e.Op == token.QUO && constant.Sign(y) != 0, e.Op == token.MUL, e.Op == token.ADD, e.Op == token.SUB:
			return constant.BinaryOp(constant.ToFloat(x), e.Op, constant.ToFloat(y))
		}
	}
	return nil
}
