// Package apiwalk calls everything that a package exports with wrong arguments: nil
// receivers, zero values, nil arguments, nil contexts, closed objects and senseless
// numbers. No call may panic, and errors must match a sentinel.
//
// It finds methods by reflection, and functions and types in the package's source. So a new
// one is either walked, or the test fails and names it.
package apiwalk

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// Package describes the package to walk.
type Package struct {
	Name      string
	Folder    string         // of its source, seen from the test's folder
	Functions map[string]any // every exported function
	Types     []any          // a zero value of every exported type with methods
	// Matches reports whether an error matches a sentinel.
	Matches func(error) bool
	// Exact are arguments of functions and methods ("Func", "Type.Method") that must
	// not be made up.
	Exact map[string][]any
	// Live makes the objects whose methods are called, of the types of Types, and objects
	// to pass as arguments: fresh ones for each method. nil: there are none.
	Live func(t *testing.T) []any
	// Closed are such objects after their Close.
	Closed func(t *testing.T) []any
}

const (
	seed   = 20
	trials = 20 // of each method with made-up arguments
)

// Walk runs the tests of a package.
func Walk(t *testing.T, p Package) {
	s, err := readSource(p.Folder)
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{Package: p, source: s, d: &drawer{Rand: rand.New(rand.NewPCG(seed, 0))}}
	t.Run("everything is walked", w.complete)
	t.Run("functions", w.functions)
	t.Run("nil and zero", w.zeroReceivers)
	if p.Closed != nil {
		t.Run("closed", func(t *testing.T) { w.receivers(t, p.Closed, true) })
	}
	if p.Live != nil {
		t.Run("live", func(t *testing.T) { w.receivers(t, p.Live, false) })
	}
}

type walker struct {
	Package
	source *source
	d      *drawer
}

// complete reports exported functions and types that are missing in Package.
func (w *walker) complete(t *testing.T) {
	for name := range w.source.functions {
		if _, ok := w.Functions[name]; !ok {
			t.Errorf("%s.%s is not in the table of functions", w.Name, name)
		}
	}
	known := map[string]bool{}
	for _, x := range w.Types {
		known[reflect.TypeOf(x).Name()] = true
	}
	for name := range w.source.types {
		if !known[name] {
			t.Errorf("%s.%s is not in the list of types", w.Name, name)
		}
	}
}

func (w *walker) functions(t *testing.T) {
	for name, f := range w.Functions {
		t.Run(name, func(t *testing.T) {
			w.trials(t, name, reflect.ValueOf(f), func(results []reflect.Value) {
				for _, r := range results { // close the objects that the call made
					if c, ok := r.Interface().(interface{ Close() error }); ok && !(r.Kind() == reflect.Pointer && r.IsNil()) {
						_ = c.Close()
					}
				}
			})
		})
	}
}

// zeroReceivers calls the methods of nil pointers and of zero values.
func (w *walker) zeroReceivers(t *testing.T) {
	for _, x := range w.Types {
		T := reflect.TypeOf(x)
		P := reflect.PointerTo(T)
		for i := range P.NumMethod() {
			m := P.Method(i)
			name := T.Name() + "." + m.Name
			t.Run(name, func(t *testing.T) {
				_, byValue := T.MethodByName(m.Name)
				if !byValue { // the language itself would dereference the nil pointer
					w.unusable(t, name, reflect.Zero(P).Method(i))
				}
				w.unusable(t, name, reflect.New(T).Method(i))
				if byValue {
					for range trials {
						made := reflect.New(T)
						made.Elem().Set(w.d.value(T, 0))
						w.trials(t, name, made.Method(i), nil)
					}
				}
			})
		}
	}
}

// unusable calls a method of a zero or closed object.
func (w *walker) unusable(t *testing.T, name string, method reflect.Value) {
	t.Helper()
	w.trials(t, name, method, func(results []reflect.Value) {
		if err, ok := lastError(method, results); ok && err == nil && !harmless(name) {
			t.Errorf("%s: no error", name)
		}
	})
}

// harmless are the methods that succeed on anything.
func harmless(name string) bool {
	_, method, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"Close", "Release", "MarshalText", "UnmarshalText", "Set", "Validate", "Unwrap"}, method)
}

// receivers calls every method of objects, with fresh objects for each.
func (w *walker) receivers(t *testing.T, objects func(*testing.T) []any, closed bool) {
	var kinds []reflect.Type
	t.Run("types", func(t *testing.T) {
		for _, x := range objects(t) {
			kinds = append(kinds, reflect.TypeOf(x))
		}
	})
	own := map[reflect.Type]bool{} // objects of other types are only arguments
	for _, x := range w.Types {
		own[reflect.PointerTo(reflect.TypeOf(x))] = true
	}
	for k, P := range kinds {
		if !own[P] {
			continue
		}
		for i := range P.NumMethod() {
			name := P.Elem().Name() + "." + P.Method(i).Name
			t.Run(name, func(t *testing.T) {
				list := objects(t)
				pool := map[reflect.Type][]reflect.Value{}
				for _, x := range list {
					pool[reflect.TypeOf(x)] = append(pool[reflect.TypeOf(x)], reflect.ValueOf(x))
				}
				w.d.pool = pool
				defer func() { w.d.pool = nil }()
				method := reflect.ValueOf(list[k]).Method(i)
				if closed {
					w.unusable(t, name, method)
				} else {
					w.trials(t, name, method, nil)
				}
			})
		}
	}
}

// trials calls f with zero values and with made-up ones.
func (w *walker) trials(t *testing.T, name string, f reflect.Value, then func(results []reflect.Value)) {
	t.Helper()
	n := trials
	if f.Type().NumIn() == 0 || w.Exact[name] != nil {
		n = 1
	}
	for trial := range n {
		w.d.zero = trial == 0
		args := w.arguments(name, f.Type())
		w.d.zero = false
		results := w.call(t, name, f, args)
		if results == nil {
			return
		}
		if err, ok := lastError(f, results); ok && err != nil && !w.Matches(err) {
			t.Errorf("%s%s: %v (%T) matches no sentinel", name, show(args), err, err)
			return
		}
		if then != nil {
			then(results)
		}
	}
}

func (w *walker) arguments(name string, t reflect.Type) (args []reflect.Value) {
	exact := w.Exact[name]
	for i := range t.NumIn() {
		switch {
		case i >= len(exact):
			args = append(args, w.d.value(t.In(i), 0))
		case exact[i] == nil:
			args = append(args, reflect.Zero(t.In(i)))
		default:
			args = append(args, reflect.ValueOf(exact[i]).Convert(t.In(i)))
		}
	}
	return args
}

// call returns nil after a panic that the function's documentation does not promise.
func (w *walker) call(t *testing.T, name string, f reflect.Value, args []reflect.Value) (results []reflect.Value) {
	t.Helper()
	done := make(chan string, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
				return
			}
			done <- ""
		}()
		if f.Type().IsVariadic() {
			results = f.CallSlice(args)
		} else {
			results = f.Call(args)
		}
		if results == nil {
			results = []reflect.Value{}
		}
	}()
	select {
	case what := <-done:
		if what != "" && w.source.panics[name] {
			return nil
		}
		if what != "" {
			t.Errorf("seed %d: %s%s: %s", seed, name, show(args), what)
		}
		return results
	case <-time.After(time.Minute):
		t.Fatalf("seed %d: %s%s does not return", seed, name, show(args))
		return nil
	}
}

// lastError returns the error result of a call; false if the function has none.
func lastError(f reflect.Value, results []reflect.Value) (error, bool) {
	n := f.Type().NumOut()
	if n == 0 || f.Type().Out(n-1) != errorType {
		return nil, false
	}
	err, _ := results[n-1].Interface().(error)
	return err, true
}

// show prints arguments without the values that they point to.
func show(args []reflect.Value) string {
	var list []string
	for _, a := range args {
		s := fmt.Sprintf("%T", a.Interface())
		if a.Kind() != reflect.Pointer && a.Kind() != reflect.Interface && a.Kind() != reflect.Func {
			s = fmt.Sprintf("%.200v", fmt.Sprintf("%+v", a.Interface()))
		} else if a.IsNil() {
			s = "nil " + a.Type().String()
		}
		list = append(list, s)
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// Matching returns a Matches for the sentinels and the errors of contexts.
func Matching(sentinels ...error) func(error) bool {
	sentinels = append(sentinels, context.DeadlineExceeded, context.Canceled)
	return func(err error) bool {
		return slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	}
}

// source lists what the Go files of a package export.
type source struct {
	functions map[string]bool
	types     map[string]bool   // with an exported method of their own; no interfaces
	panics    map[string]bool   // whose doc comment says when they panic: "Func" or "Type.Method"
	doc       map[string]string // doc comments, likewise
}

// readSource parses the files of a folder, without tests.
func readSource(folder string) (*source, error) {
	s := &source{functions: map[string]bool{}, types: map[string]bool{}, panics: map[string]bool{}, doc: map[string]string{}}
	files := token.NewFileSet()
	list, err := fs.Glob(os.DirFS(folder), "*.go")
	if err != nil {
		return nil, err
	}
	for _, name := range list {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(files, filepath.Join(folder, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Name.IsExported() {
				s.add(d)
			}
		}
	}
	return s, nil
}

func (s *source) add(d *ast.FuncDecl) {
	name := d.Name.Name
	if d.Recv == nil {
		s.functions[name] = true
	} else {
		receiver := d.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		id, ok := receiver.(*ast.Ident)
		if !ok || !id.IsExported() {
			return
		}
		s.types[id.Name] = true
		name = id.Name + "." + name
	}
	s.doc[name] = d.Doc.Text()
	s.panics[name] = strings.Contains(s.doc[name], "panic")
}
