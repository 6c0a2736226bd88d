package apiwalk

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

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
