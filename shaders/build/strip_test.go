package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/shaders"
)

// spirv is a module of these instructions, each an opcode and its operands.
func spirv(instructions ...[]uint32) []byte {
	words := []uint32{0x07230203, 0x10300, 0, 100, 0}
	for _, i := range instructions {
		words = append(append(words, uint32(len(i))<<16|i[0]), i[1:]...)
	}
	var code []byte
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

func TestStripDropsDebugInstructionsAlone(t *testing.T) {
	capability, decorate, function := []uint32{17, 1}, []uint32{71, 4, 1, 5}, []uint32{54, 1, 2, 0, 3}
	named := spirv(capability, []uint32{3, 2, 460}, []uint32{2, 0x61}, []uint32{4, 0x61}, []uint32{5, 4, 0x61},
		[]uint32{6, 4, 0, 0x61}, []uint32{7, 9, 0x61}, []uint32{330, 0x61}, decorate, function, []uint32{8, 9, 1, 1}, []uint32{317})
	want := spirv(capability, decorate, function)
	got, err := stripDebug(named)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	again, err := stripDebug(got)
	require.NoError(t, err)
	assert.Equal(t, want, again)
}

func TestStripRefusesWhatIsNotSPIRV(t *testing.T) {
	good := spirv([]uint32{17, 1})
	for name, code := range map[string][]byte{
		"empty": nil, "a header cut off": good[:16], "no whole word": good[:len(good)-1], "cut off": good[:len(good)-4],
		"length zero": append(spirv(), 0, 0, 0, 0),
	} {
		_, err := stripDebug(code)
		assert.ErrorIs(t, err, errNotSPIRV, name)
	}
}

// Whatever the host reads of a module is there without its names.
func TestStrippedModulesKeepTheirInterface(t *testing.T) {
	for _, name := range shaders.Names() {
		m, err := shaders.Get(name)
		require.NoError(t, err)
		stripped, err := stripDebug(m.Code)
		require.NoError(t, err)
		want, err := interfaceOf(m.Code)
		require.NoError(t, err)
		got, err := interfaceOf(stripped)
		require.NoError(t, err)
		assert.Equal(t, want, got, name)
	}
}

// needCompiler skips where GLSLC names no compiler; scripts/test.sh shaders-check does.
func needCompiler(t *testing.T) tools {
	t.Helper()
	compiler := tools{dir: "..", glslc: os.Getenv("GLSLC"), val: os.Getenv("SPIRV_VAL")}
	if compiler.glslc == "" || compiler.val == "" {
		t.Skip("GLSLC and SPIRV_VAL name no compiler and validator; scripts/test.sh shaders-check sets them")
	}
	return compiler
}

// Every identifier that the sources declare gets another name, in another order of
// the alphabet and of another length: functions, variables, parameters, members of
// blocks and specialization constants. No byte of a module may change. Names are
// replaced behind the preprocessor, where macros no longer paste them.
func TestRenamingLeavesModulesAsTheyAre(t *testing.T) {
	compiler := needCompiler(t)
	largest := map[string]shaders.Variant{} // of each source, the one compiled with most macros
	for _, v := range shaders.Catalog() {
		if have, ok := largest[v.Source]; !ok || len(v.Defines) >= len(have.Defines) {
			largest[v.Source] = v
		}
	}
	for _, source := range slices.Sorted(maps.Keys(largest)) {
		v := largest[source]
		t.Run(v.Name, func(t *testing.T) {
			named, err := compiler.compileNamed(v, filepath.Join(t.TempDir(), "named.spv"))
			require.NoError(t, err)
			want, err := compiler.compile(v)
			require.NoError(t, err)

			text, err := exec.Command(compiler.glslc, append(compiler.options(v), "-E")...).Output()
			require.NoError(t, err)
			names := newNames(identifiers(named))
			require.Greater(t, len(names), 18) // copy.comp has the fewest, 19
			t.Logf("%d identifiers renamed", len(names))

			renamed := tools{dir: t.TempDir(), glslc: compiler.glslc, val: compiler.val}
			require.NoError(t, os.WriteFile(filepath.Join(renamed.dir, v.Source), []byte(rename(string(text), names)), 0o600))
			v.Defines = nil // what they chose is what is left
			other, err := renamed.compileNamed(v, filepath.Join(t.TempDir(), "named.spv"))
			require.NoError(t, err)
			require.NotEqual(t, named, other, "nothing was renamed")
			got, err := renamed.compile(v)
			require.NoError(t, err)
			assert.True(t, slices.Equal(want, got), "the module depends on names: %d bytes, renamed %d", len(want), len(got))
		})
	}
}

// A check tells a source whose code has changed from one that only reads otherwise.
func TestCheckTellsNamesFromCode(t *testing.T) {
	compiler := needCompiler(t)
	manifest, err := shaders.ReadManifest()
	require.NoError(t, err)
	version, err := compiler.version()
	require.NoError(t, err)
	if version != manifest.Compiler {
		t.Skipf("the modules are of %s, this is %s", manifest.Compiler, version)
	}
	v := shaders.Catalog()[slices.IndexFunc(shaders.Catalog(), func(v shaders.Variant) bool { return v.Source == "combine.comp" })]
	for _, c := range []struct{ name, suffix, want string }{
		{"as committed", "", ""},
		{"a comment more", "// more\n", errSameCode.Error()},
		{"a function more that nobody calls", "uint more() { return 1; }\n", errSameCode.Error()},
		{"a shared variable more", "shared uint more;\n", "and so has the code"},
	} {
		changed := tools{dir: t.TempDir(), glslc: compiler.glslc, val: compiler.val}
		sources, err := v.Sources(os.DirFS(compiler.dir))
		require.NoError(t, err)
		for _, name := range sources {
			text, err := os.ReadFile(filepath.Join(compiler.dir, name))
			require.NoError(t, err)
			if name == "constants.glsl" {
				text = append(text, c.suffix...)
			}
			require.NoError(t, os.WriteFile(filepath.Join(changed.dir, name), text, 0o600))
		}
		err = checkModule(changed, v, manifest.Find(v.Name), true)
		if c.want == "" {
			assert.NoError(t, err, c.name)
		} else {
			assert.ErrorContains(t, err, c.want, c.name)
		}
	}
}

// identifiers lists the names of its source that a module has.
func identifiers(named []byte) []string {
	const opName, opMemberName = 5, 6
	found := map[string]bool{}
	for at := spirvHeaderBytes; at < len(named); {
		word := binary.LittleEndian.Uint32(named[at:])
		size, text := 4*int(word>>16), 0
		switch word & 0xffff {
		case opName:
			text = 8
		case opMemberName:
			text = 12
		}
		if text > 0 {
			name, _, _ := strings.Cut(string(named[at+text:at+size]), "\x00")
			name, _, _ = strings.Cut(name, "(") // a function's is mangled
			found[name] = true
		}
		at += size
	}
	var all []string
	for name := range found {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

var (
	word      = regexp.MustCompile(`\b[A-Za-z_]\w*`)
	builtin   = regexp.MustCompile(`^(main|length|sign|gl_.*|[xyzw]+|[rgba]+|[stpq]+|)$`) // or a swizzle
	directive = regexp.MustCompile(`^\s*#`)
)

// newNames maps identifiers to others. It leaves out built-in ones and those that
// elsewhere may be a swizzle, which a replacement in the text would change too.
func newNames(names []string) map[string]string {
	all := map[string]string{}
	for i, name := range names {
		if !builtin.MatchString(name) {
			all[name] = fmt.Sprintf("z%04d_%s", len(names)-i, strings.Repeat("y", i%7))
		}
	}
	return all
}

func rename(text string, names map[string]string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !directive.MatchString(line) {
			lines[i] = word.ReplaceAllStringFunc(line, func(w string) string {
				if other, ok := names[w]; ok {
					return other
				}
				return w
			})
		}
	}
	return strings.Join(lines, "\n")
}
