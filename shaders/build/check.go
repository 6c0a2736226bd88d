package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"vkattn/internal/compiled"
	"vkattn/shaders"
)

// checkAll proves the committed files current: the constants and the source
// hashes are equal; the same compiler gives the same bytes, another one a valid
// module with the same interface. It reports every stale file, not only the first.
func checkAll(t tools, version string, constants []byte) error {
	manifest, err := shaders.ReadManifest()
	if err != nil {
		return err
	}
	var stale []error
	committed, err := os.ReadFile(filepath.Join(t.dir, "constants_gen.go"))
	if err != nil || !bytes.Equal(committed, constants) {
		stale = append(stale, errors.New("constants_gen.go is not what constants*.glsl give"))
	}
	if n := len(shaders.Catalog()); n != len(manifest.Modules) || n != len(shaders.Names()) {
		stale = append(stale, fmt.Errorf("the catalogue has %d modules, the manifest %d, spv %d", n, len(manifest.Modules), len(shaders.Names())))
	}
	for _, v := range shaders.Catalog() {
		if err := checkModule(t, v, manifest.Find(v.Name), version == manifest.Compiler); err != nil {
			stale = append(stale, fmt.Errorf("%s: %w", v.Name, err))
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("not current; run make shaders\n%w", errors.Join(stale...))
	}
	how := "byte for byte"
	if version != manifest.Compiler {
		how = fmt.Sprintf("by interface (compiled by %s, checked with %s)", manifest.Compiler, version)
	}
	fmt.Printf("%d modules are current, %s\n", len(manifest.Modules), how)
	return nil
}

// errSameCode is what a change of names or comments gives: the module is byte for
// byte what it was, and only the manifest has to be written again.
var errSameCode = errors.New("the sources have changed since it was compiled, the code is byte for byte the same")

func checkModule(t tools, v shaders.Variant, line *shaders.ManifestModule, sameCompiler bool) error {
	if line == nil {
		return errors.New("not in the manifest")
	}
	m, err := shaders.Get(v.Name)
	if err != nil {
		return err
	}
	if compiled.Hash(m.Code) != line.SPV {
		return errors.New("the SPIR-V is not the one in the manifest")
	}
	source, err := v.SourceHash(os.DirFS(t.dir))
	if err != nil {
		return err
	}
	if source != line.Source && !sameCompiler {
		return errors.New("the sources have changed since it was compiled")
	}
	code, err := t.compile(v)
	if err != nil {
		return err
	}
	if sameCompiler {
		switch same := bytes.Equal(code, m.Code); {
		case source == line.Source && !same:
			return errors.New("the same compiler gives other bytes")
		case source != line.Source && !same:
			return errors.New("the sources have changed since it was compiled, and so has the code")
		case source != line.Source:
			return errSameCode
		}
		return nil
	}
	want, err := interfaceOf(m.Code)
	if err != nil {
		return err
	}
	got, err := interfaceOf(code)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the interface is %v, compiled now %v", want, got)
	}
	return nil
}

// moduleInterface is what the host relies on.
type moduleInterface struct {
	SpecIDs  []uint32
	Bindings []uint32
	Push     int
	Shared   uint64
}

func interfaceOf(code []byte) (moduleInterface, error) {
	r, err := shaders.Reflect(code)
	if err != nil {
		return moduleInterface{}, err
	}
	shared, err := r.SharedBytes(nil)
	return moduleInterface{r.SpecIDs(), r.Bindings(), r.PushConstantBytes(), shared}, err
}
