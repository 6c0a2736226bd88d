package shaders

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// Manifest records what the committed SPIR-V was compiled from and by what.
type Manifest struct {
	Compiler string           `json:"compiler"` // version of glslc and glslang
	Modules  []ManifestModule `json:"modules"`
}

// ManifestModule is one module's line of the manifest.
type ManifestModule struct {
	Name    string   `json:"name"`
	Sources []string `json:"sources"` // the kernel and its includes
	Source  string   `json:"source"`  // SHA-256 of the sources, defines and target
	SPV     string   `json:"spv"`     // SHA-256 of the SPIR-V
}

// Find returns the line of that module, or nil.
func (m *Manifest) Find(name string) *ManifestModule {
	for i := range m.Modules {
		if m.Modules[i].Name == name {
			return &m.Modules[i]
		}
	}
	return nil
}

// ReadManifest returns the committed manifest.
func ReadManifest() (*Manifest, error) {
	text, err := compiled.ReadFile("spv/manifest.json")
	if err != nil {
		return nil, fmt.Errorf("shaders: no manifest: %w", err)
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("shaders: manifest: %w", err)
	}
	return &m, nil
}

var includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// Sources lists the variant's source file and everything it includes, sorted,
// as files of dir.
func (v Variant) Sources(dir fs.FS) ([]string, error) {
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return fmt.Errorf("shaders: %s: %w", v.Name, err)
		}
		for _, m := range includeLine.FindAllStringSubmatch(string(text), -1) {
			if err := visit(m[1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(v.Source); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// SourceHash is the SHA-256, in hexadecimal, of everything of ours that
// decides what the variant compiles to.
func (v Variant) SourceHash(dir fs.FS) (string, error) {
	names, err := v.Sources(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n", v.Source, strings.Join(v.Defines, " "), v.Target, v.SPIRV)
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
