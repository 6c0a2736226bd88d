// Package paramtest compares the parameter block of a kernel in Go with the SPIR-V and the GLSL
// that declare it. Tests of the operations use it.
package paramtest

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/shaders"
)

// Block is a parameter block, with the GLSL that declares it and a module that takes it as
// push constants.
type Block struct {
	Module, Source, Define string
	Params                 any
	Bytes                  int
}

// blockField is one member of a block.
type blockField struct {
	name, typ string // as in GLSL
	at        shaders.Member
}

// fieldsOf lists the scalars and addresses of a Go structure.
func fieldsOf(t *testing.T, typ reflect.Type, base uintptr) (all []blockField) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			all = append(all, fieldsOf(t, f.Type, base+f.Offset)...)
			continue
		}
		element, n := f.Type, 1
		for element.Kind() == reflect.Array {
			n *= element.Len()
			element = element.Elem()
		}
		glsl := map[reflect.Kind]string{reflect.Uint64: "uvec2", reflect.Uint32: "uint", reflect.Int32: "int", reflect.Float32: "float"}[element.Kind()]
		require.NotEmpty(t, glsl, "%v.%s", typ, f.Name)
		names := strings.Fields(f.Tag.Get("glsl"))
		if len(names) == 0 {
			names = []string{f.Name}
		}
		require.Len(t, names, n, "%v.%s", typ, f.Name)
		for j, name := range names {
			at := shaders.Member{Offset: uint32(base + f.Offset + uintptr(j)*element.Size()), Size: uint32(element.Size())}
			all = append(all, blockField{name, glsl, at})
		}
	}
	return all
}

// Lie tests that every field of a block in Go is where the module reads that member, and as
// large.
func Lie(t *testing.T, blocks []Block) {
	for _, b := range blocks {
		m, err := shaders.Get(b.Module)
		require.NoError(t, err)
		r, err := m.Reflect()
		require.NoError(t, err)
		members, err := r.PushConstants()
		require.NoError(t, err)
		var ours []shaders.Member
		for _, f := range fieldsOf(t, reflect.TypeOf(b.Params), 0) {
			ours = append(ours, f.at)
		}
		assert.Equal(t, members, ours, b.Module)
		assert.Equal(t, r.PushConstantBytes(), b.Bytes, b.Module)
		assert.LessOrEqual(t, b.Bytes, int(reflect.TypeOf(b.Params).Size()), b.Module)
	}
}

var glslBlock = regexp.MustCompile(`(?s)uniform Params \{\n(.*?)\n\} p;`)

// Names tests that every field has the type and the name that GLSL gives the member there.
// Modules carry no names, so this reads the source in the given folder; a bundle of test
// programs has none.
func Names(t *testing.T, folder string, blocks []Block) {
	if _, err := os.Stat(filepath.Join(folder, "interface.glsl")); err != nil {
		t.Skipf("the sources are not here: %v", err)
	}
	for _, b := range blocks {
		text, err := os.ReadFile(filepath.Join(folder, b.Source))
		require.NoError(t, err)
		block := glslBlock.FindStringSubmatch(string(text))
		require.NotNil(t, block, b.Source)
		var theirs []string
		on := true
		for _, line := range strings.Split(block[1], "\n") {
			line, _, _ = strings.Cut(line, "//")
			line = strings.TrimSpace(line)
			switch {
			case line == "":
			case strings.HasPrefix(line, "#endif"):
				on = true
			case strings.HasPrefix(line, "#if"):
				on = b.Define != "" && line == "#if "+b.Define
			case on:
				for _, declaration := range strings.Split(strings.TrimSuffix(line, ";"), ";") {
					typ, names, ok := strings.Cut(strings.TrimSpace(declaration), " ")
					require.True(t, ok, "%s: %q", b.Source, line)
					for _, name := range strings.Split(names, ",") {
						theirs = append(theirs, typ+" "+strings.TrimSpace(name))
					}
				}
			}
		}
		var ours []string
		for _, f := range fieldsOf(t, reflect.TypeOf(b.Params), 0) {
			ours = append(ours, f.typ+" "+f.name)
		}
		assert.Equal(t, theirs, ours, "%s of %s", b.Source, b.Module)
	}
}
