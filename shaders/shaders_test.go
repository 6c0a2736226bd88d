package shaders

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCatalogIsCompiled(t *testing.T) {
	var names []string
	for _, v := range Catalog() {
		names = append(names, v.Name)
	}
	assert.ElementsMatch(t, names, Names(), "run make shaders")
	for _, name := range Names() {
		m, err := Get(name)
		require.NoError(t, err)
		assert.Equal(t, name, m.Name)
		assert.Equal(t, sha256.Sum256(m.Code), m.Hash)
		again, err := Get(name)
		require.NoError(t, err)
		assert.Same(t, m, again)
	}
}

func TestGetUnknownModuleListsTheKnown(t *testing.T) {
	_, err := Get("nothing")
	assert.ErrorContains(t, err, `"nothing"`)
	assert.ErrorContains(t, err, "scalar_ssbo")
}

// The committed SPIR-V is what was compiled from the committed sources. Needs
// no compiler; make shaders-check also compiles again.
func TestManifestIsCurrent(t *testing.T) {
	manifest, err := ReadManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Modules, len(Catalog()))
	for _, v := range Catalog() {
		line := manifest.Find(v.Name)
		require.NotNil(t, line, "%s: not in the manifest; run make shaders", v.Name)
		source, err := v.SourceHash(os.DirFS("."))
		require.NoError(t, err)
		assert.Equal(t, source, line.Source, "%s: its sources changed; run make shaders", v.Name)
		m, err := Get(v.Name)
		require.NoError(t, err)
		assert.Equal(t, hex.EncodeToString(m.Hash[:]), line.SPV, "%s: not the module that was compiled; run make shaders", v.Name)
	}
}

func TestConstantIDsInEveryModule(t *testing.T) {
	declared, err := ReadConstants(os.DirFS("."))
	require.NoError(t, err)
	require.Len(t, constantNames, len(declared), "constants_gen.go is stale; run make shaders")
	for _, c := range declared {
		assert.Equal(t, c.Name, constantNames[c.ID], "constants_gen.go is stale; run make shaders")
	}
	for _, name := range Names() {
		ids := reflection(t, name).SpecIDs()
		assert.Contains(t, ids, ConstLocalSize, name)
		for _, id := range ids {
			assert.Contains(t, constantNames, id, "%s: no file of constants declares such an id", name)
		}
	}
}

// Modules carry no names, so an id means what constants*.glsl say only as long as
// no other source declares one.
func TestConstantsAreDeclaredInTheirFiles(t *testing.T) {
	declares := regexp.MustCompile(`\b(constant_id|local_size_[xyz](_id)?)\b`)
	files, err := ConstantFiles(os.DirFS("."))
	require.NoError(t, err)
	require.Equal(t, "constants.glsl", files[0])
	for _, v := range Catalog() {
		sources, err := v.Sources(os.DirFS("."))
		require.NoError(t, err)
		assert.Contains(t, sources, "constants.glsl", v.Name)
		for _, name := range sources {
			if slices.Contains(files, name) {
				continue
			}
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			assert.Empty(t, declares.FindAllString(string(text), -1), name)
		}
	}
}

func TestParseConstantsRefusesWhatItCannotRead(t *testing.T) {
	const local = "layout(local_size_x_id = 0) in;\n"
	for name, source := range map[string]string{
		"no local size": "layout(constant_id = 1) const uint A = 1;\n",
		"same id":       local + "layout(constant_id = 1) const uint A = 1;\nlayout(constant_id = 1) const uint B = 1;\n",
		"same name":     local + "layout(constant_id = 1) const uint A = 1;\nlayout(constant_id = 2) const uint A = 1;\n",
		"id taken":      local + "layout(constant_id = 0) const uint A = 1;\n",
		"other type":    local + "layout(constant_id = 1) const float A = 1;\n",
		"id too large":  local + "layout(constant_id = 99999999999) const uint A = 1;\n",
	} {
		_, err := ParseConstants(source)
		assert.Error(t, err, name)
	}
}

func TestModulesOfEveryDeviceNeedNothingOptional(t *testing.T) {
	for _, kernel := range []string{"scalar", "merge", "append", "backward_delta", "backward_sinks", "backward_scalar_lse",
		"backward_scalar_q", "backward_scalar_kv", "backward_scalar_bias"} {
		assert.Equal(t, []string{"Shader"}, reflection(t, kernel+"_ssbo").Capabilities())
		assert.Equal(t, []string{"Shader", "PhysicalStorageBufferAddresses"}, reflection(t, kernel+"_bda").Capabilities())
		for _, name := range []string{kernel + "_ssbo", kernel + "_bda"} {
			m, err := Get(name)
			require.NoError(t, err)
			assert.Equal(t, []byte{0, 3, 1, 0}, m.Code[4:8], "%s: SPIR-V 1.3, all that Vulkan 1.1 guarantees", name)
		}
	}
}

func TestInterfaceOfEveryModule(t *testing.T) {
	for _, v := range Catalog() {
		r := reflection(t, v.Name)
		push, bindings := 120, []uint32{0, 1, 2, 3, 4}
		switch v.Source {
		case "merge.comp":
			push, bindings = 116, []uint32{0, 1, 2, 3, 4, 5}
		case "append.comp":
			bindings = []uint32{0, 1, 2, 3, 4, 5, 6, 7}
		case "combine.comp":
			push = 80
		case "backward_delta.comp":
			push = 96
		case "backward_sinks.comp":
			push = 56
		case "backward_table_sum.comp":
			push, bindings = 36, []uint32{0, 1}
		case "plain_gemm_scalar.comp", "plain_gemm_coopmat.comp":
			push = 104
		case "peak.comp":
			push = 16
		case "copy.comp":
			push = 20
		case "plain_softmax.comp":
			push = 40
		case "fragment_probe.comp":
			push, bindings = 0, []uint32{0}
		}
		guaranteed := 128
		if slices.Contains(v.Defines, "GENERAL=1") {
			if slices.Contains(v.Defines, "BDA=1") {
				push, guaranteed = 256, 256 // by Vulkan 1.4; a device with less takes the module with descriptors
			} else {
				push = 0 // the last binding has them
			}
			bindings = nil
			for i := range bindingsOf(v) {
				bindings = append(bindings, i)
			}
		}
		assert.Equal(t, push, r.PushConstantBytes(), v.Name)
		assert.LessOrEqual(t, r.PushConstantBytes(), guaranteed, "%s: what devices guarantee", v.Name)
		if strings.HasSuffix(v.Name, "_bda") {
			assert.Empty(t, r.Bindings(), v.Name)
		} else {
			assert.Equal(t, bindings, r.Bindings(), v.Name)
		}
		size, err := r.LocalSize(map[uint32]uint32{ConstLocalSize: 96})
		require.NoError(t, err)
		assert.Equal(t, [3]uint32{96, 1, 1}, size, v.Name)
	}
}

// One host function fills in the parameters, wherever a module reads them.
func TestParamsLieAlikeInBuffersAndPushConstants(t *testing.T) {
	offsets := func(name string, isParams func(r *Reflection, v instruction) bool) (all []uint32) {
		r := reflection(t, name)
		for _, v := range r.variables {
			if !isParams(r, v) {
				continue
			}
			block := r.types[r.types[v.operands[0]].operands[2]]
			for i := range block.operands[1:] {
				all = append(all, r.members[[2]uint32{block.operands[0], uint32(i)}][decorationOffset]...)
			}
		}
		return all
	}
	for _, v := range Catalog() {
		if !slices.Contains(v.Defines, "GENERAL=1") || !slices.Contains(v.Defines, "BDA=0") {
			continue
		}
		twin := strings.Replace(v.Name, "_ssbo", "_bda", 1)
		if v.Source == "backward_scalar_table.comp" { // which takes descriptors alone
			twin = "backward_scalar_q_bda"
		}
		pushed := offsets(twin, func(_ *Reflection, v instruction) bool {
			return v.operands[2] == storagePushConstant
		})
		require.EqualValues(t, 252, slices.Max(pushed))
		last := bindingsOf(v) - 1
		if takesModifiers(v) || slices.Contains([]string{"tile_map.comp", "convert.comp"}, v.Source) {
			pushed = append(pushed, tablesOffset) // of modifiers, which addresses have not
		}
		assert.Equal(t, pushed, offsets(v.Name, func(r *Reflection, v instruction) bool {
			binding, _ := r.decoration(v.operands[1], decorationBinding)
			return binding == last
		}), v.Name)
	}
}

// bindingsOf is the number of bindings of a module with options; the last has the parameters.
func bindingsOf(v Variant) uint32 {
	if strings.HasPrefix(v.Name, "backward_") {
		return 16
	}
	return 18
}

func reflection(t *testing.T, name string) *Reflection {
	t.Helper()
	m, err := Get(name)
	require.NoError(t, err)
	r, err := m.Reflect()
	require.NoError(t, err)
	return r
}

// A workgroup may read the splits that others stored only if store and load are
// available and visible at queue family scope. The SPIR-V is checked because glslc drops
// the qualifier of a buffer block in some places.
func TestDecodingSharesSplitsAtQueueFamilyScope(t *testing.T) {
	const opLoad, opStore, aligned, available, visible, nonPrivate, queueFamily = 61, 62, 2, 8, 16, 32, 5
	for _, v := range Catalog() {
		if v.Source != "decode_coopmat.comp" {
			continue
		}
		m, err := Get(v.Name)
		require.NoError(t, err)
		constants := map[uint32]uint32{}
		loads, stores := 0, 0
		word := func(i int) uint32 { return binary.LittleEndian.Uint32(m.Code[4*i:]) }
		for i := headerWords; i < len(m.Code)/4; i += int(word(i) >> 16) {
			operands := func(n int) uint32 { return word(i + 1 + n) }
			length := int(word(i)>>16) - 1
			access, want := 0, uint32(0)
			switch word(i) & 0xffff {
			case opConstant:
				constants[operands(1)] = operands(2)
			case opLoad:
				access, want = 3, visible|nonPrivate
			case opStore:
				access, want = 2, available|nonPrivate
			}
			if access == 0 || length <= access || operands(access)&want != want || constants[operands(length-1)] != queueFamily {
				continue
			}
			assert.Zero(t, operands(access)&^(want|aligned), v.Name)
			if want&visible != 0 {
				loads++
			} else {
				stores++
			}
		}
		assert.Equal(t, 2+2, loads, "%s: row max and row sum, and four elements of O or one", v.Name)
		assert.Equal(t, 4, stores, v.Name)
	}
}
