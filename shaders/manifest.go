package shaders

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"

	"vkattn/internal/compiled"
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
	text, err := committed.ReadFile("spv/manifest.json")
	if err != nil {
		return nil, fmt.Errorf("shaders: no manifest: %w", err)
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("shaders: manifest: %w", err)
	}
	return &m, nil
}

// Sources lists the variant's source file and everything it includes, sorted,
// as files of dir.
func (v Variant) Sources(dir fs.FS) ([]string, error) {
	names, err := compiled.Sources(dir, v.Source)
	if err != nil {
		err = fmt.Errorf("shaders: %s: %w", v.Name, err)
	}
	return names, err
}

// SourceHash is the SHA-256, in hexadecimal, of everything of ours that
// decides what the variant compiles to.
func (v Variant) SourceHash(dir fs.FS) (string, error) {
	return compiled.SourceHash(dir, v.Source, fmt.Sprintf("%s\n%s\n%s\n%s\n", v.Source, strings.Join(v.Defines, " "), v.Target, v.SPIRV))
}
