package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"vkattn/internal/compiled"
)

// checkAll proves the committed files current and reports every stale one. Without
// the nvcc that compiled them, hashes have to do.
func checkAll(dir, nvcc string, jobs int) error {
	modules := catalog()
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	if err := checkFiles(dir, modules, m); err != nil {
		return fmt.Errorf("not current; run make cuda\n%w", err)
	}
	path, err := findNVCC(nvcc)
	if err != nil {
		fmt.Printf("%d modules are current by the hashes of their sources (no nvcc here; compiled by %s)\n", len(modules), m.Compiler)
		return nil
	}
	c := compiler{path, dir}
	version, err := c.version()
	if err != nil {
		return err
	}
	if version != m.Compiler {
		fmt.Printf("%d modules are current by the hashes of their sources (compiled by %s, here is %s)\n", len(modules), m.Compiler, version)
		return nil
	}
	built, err := c.compileAll(modules, jobs, func(module) map[string][]byte { return nil })
	if err != nil {
		return err
	}
	var stale []error
	for i, mod := range modules {
		for name, content := range built[i] {
			if compiled.Hash(content) != m.find(mod.name).Files[name] {
				stale = append(stale, fmt.Errorf("%s: the same compiler gives other bytes", name))
			}
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("not current; run make cuda\n%w", errors.Join(stale...))
	}
	fmt.Printf("%d modules are current, byte for byte (%s)\n", len(modules), version)
	return nil
}

// checkFiles compares what is committed with the manifest and the manifest with the
// sources.
func checkFiles(dir string, modules []module, m *manifest) error {
	var stale []error
	known := map[string]bool{"manifest.json": true}
	if len(modules) != len(m.Modules) {
		stale = append(stale, fmt.Errorf("the catalogue has %d modules, the manifest %d", len(modules), len(m.Modules)))
	}
	for _, mod := range modules {
		for _, f := range mod.outputs() {
			known[f.name+".gz"] = true
		}
		if err := checkModule(dir, mod, m.find(mod.name)); err != nil {
			stale = append(stale, fmt.Errorf("%s: %w", mod.name, err))
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "bin"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if !known[f.Name()] {
			stale = append(stale, fmt.Errorf("bin/%s belongs to no module", f.Name()))
		}
	}
	launch, err := tables(modules)
	if err != nil {
		return err
	}
	for name, want := range launch {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			stale = append(stale, fmt.Errorf("%s is not what the catalogue gives", name))
		}
	}
	return errors.Join(stale...)
}

func checkModule(dir string, mod module, line *manifestLine) error {
	_, err := mod.committed(dir, line)
	return err
}

// current gives the committed files of a module if that compiler made them of the
// present sources.
func (m *module) current(dir, compiler string, old *manifest) map[string][]byte {
	if old.Compiler != compiler {
		return nil
	}
	files, err := m.committed(dir, old.find(m.name))
	if err != nil {
		return nil
	}
	return files
}

// committed gives the committed files of a module, or says why they are stale.
func (m *module) committed(dir string, line *manifestLine) (map[string][]byte, error) {
	if line == nil {
		return nil, errors.New("not in the manifest")
	}
	source, err := m.sourceHash(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	if source != line.Source {
		return nil, errors.New("the sources have changed since it was compiled")
	}
	if len(line.Files) != len(m.outputs()) {
		return nil, errors.New("compiled to other files than the catalogue says")
	}
	files := map[string][]byte{}
	for _, f := range m.outputs() {
		content, err := unpack(filepath.Join(dir, "bin", f.name+".gz"))
		if err != nil {
			return nil, err
		}
		if compiled.Hash(content) != line.Files[f.name] {
			return nil, fmt.Errorf("%s is not the file in the manifest", f.name)
		}
		files[f.name] = content
	}
	return files, nil
}
