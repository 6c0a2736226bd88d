package shaders

import (
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"vkattn/internal/compiled"
)

// The committed SPIR-V, and the manifest that says what it was compiled from.
//
//go:embed spv
var committed embed.FS

// Module is one compiled kernel. It is shared: treat it as read-only.
type Module struct {
	Name string
	Code []byte   // SPIR-V
	Hash [32]byte // SHA-256 of Code

	reflectOnce sync.Once
	reflection  *Reflection
	reflectErr  error

	rolledOnce sync.Once
	rolled     *Module
}

// modules has a loader for each module. A module is copied out of the binary and
// hashed when it is first asked for: a process uses a few of them, and all take 34 ms.
var modules = sync.OnceValue(func() map[string]func() (*Module, error) {
	all := map[string]func() (*Module, error){}
	entries, err := committed.ReadDir("spv")
	if err != nil {
		return all
	}
	for _, entry := range entries {
		if name, isModule := strings.CutSuffix(entry.Name(), ".spv"); isModule {
			all[name] = sync.OnceValues(func() (*Module, error) { return load(name) })
		}
	}
	return all
})

func load(name string) (*Module, error) {
	code, err := committed.ReadFile("spv/" + name + ".spv")
	if err != nil {
		return nil, fmt.Errorf("shaders: module %s: %w", name, err)
	}
	return &Module{Name: name, Code: code, Hash: sha256.Sum256(code)}, nil
}

// Get returns the module of that name, the same one every time. Safe for concurrent use.
func Get(name string) (*Module, error) {
	m, ok := modules()[name]
	if !ok {
		return nil, fmt.Errorf("shaders: no module %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return m()
}

// Names lists the modules in alphabetical order.
func Names() []string {
	names := make([]string, 0, len(modules()))
	for name := range modules() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Reflect reads the module's SPIR-V. The result is computed once and shared.
// Safe for concurrent use.
func (m *Module) Reflect() (*Reflection, error) {
	m.reflectOnce.Do(func() {
		m.reflection, m.reflectErr = Reflect(m.Code)
		if m.reflectErr != nil {
			m.reflectErr = fmt.Errorf("shaders: module %s: %w", m.Name, m.reflectErr)
		}
	})
	return m.reflection, m.reflectErr
}

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
