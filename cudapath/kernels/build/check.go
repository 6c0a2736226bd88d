package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// checkAll proves the committed files current and reports every stale one. Without
// the nvcc that compiled them, hashes have to do.
func checkAll(dir, nvcc string, jobs int) error {
	modules, err := catalog(dir)
	if err != nil {
		return err
	}
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
	compiled, err := c.compileAll(modules, jobs)
	if err != nil {
		return err
	}
	var stale []error
	for i, mod := range modules {
		for name, content := range compiled[i] {
			if hash(content) != m.find(mod.name).Files[name] {
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
	if line == nil {
		return errors.New("not in the manifest")
	}
	source, err := mod.sourceHash(os.DirFS(dir))
	if err != nil {
		return err
	}
	if source != line.Source {
		return errors.New("the sources have changed since it was compiled")
	}
	if len(line.Files) != len(mod.outputs()) {
		return errors.New("compiled to other files than the catalogue says")
	}
	for _, f := range mod.outputs() {
		content, err := unpack(filepath.Join(dir, "bin", f.name+".gz"))
		if err != nil {
			return err
		}
		if hash(content) != line.Files[f.name] {
			return fmt.Errorf("%s is not the file in the manifest", f.name)
		}
	}
	return nil
}
