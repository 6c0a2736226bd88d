package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

var includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// sources lists a module's source file and everything of ours it includes, sorted.
func (m *module) sources(dir fs.FS) ([]string, error) {
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		for _, found := range includeLine.FindAllStringSubmatch(string(text), -1) {
			if err := visit(found[1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(m.source); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// sourceHash is the SHA-256 of everything of ours that decides what a module compiles to.
func (m *module) sourceHash(dir fs.FS) (string, error) {
	names, err := m.sources(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", m.source, strings.Join(m.defines, "\n"))
	for _, f := range m.outputs() {
		fmt.Fprintf(h, "%s %s\n", f.name, strings.Join(f.options, " "))
	}
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
