package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"vkattn/internal/compiled"
)

// manifest records what the committed modules were compiled from and by what.
type manifest struct {
	Compiler string         `json:"compiler"`
	Modules  []manifestLine `json:"modules"`
}

type manifestLine struct {
	Name    string            `json:"name"`
	Sources []string          `json:"sources"` // the kernel and its includes
	Source  string            `json:"source"`  // SHA-256 of the sources, defines and options
	Files   map[string]string `json:"files"`   // SHA-256 of each file of bin/, unpacked
}

func (m *manifest) find(name string) *manifestLine {
	for i := range m.Modules {
		if m.Modules[i].Name == name {
			return &m.Modules[i]
		}
	}
	return nil
}

func readManifest(dir string) (*manifest, error) {
	text, err := os.ReadFile(filepath.Join(dir, "bin", "manifest.json"))
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("bin/manifest.json: %w", err)
	}
	return &m, nil
}

// sourceHash is the SHA-256 of everything of ours that decides what a module compiles to.
func (m *module) sourceHash(dir fs.FS) (string, error) {
	head := fmt.Sprintf("%s\n%s\n", m.source, strings.Join(m.defines, "\n"))
	for _, f := range m.outputs() {
		head += fmt.Sprintf("%s %s\n", f.name, strings.Join(f.options, " "))
	}
	hash, err := compiled.SourceHash(dir, m.source, head)
	if err != nil {
		err = fmt.Errorf("%s: %w", m.name, err)
	}
	return hash, err
}
