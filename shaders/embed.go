package shaders

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

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
