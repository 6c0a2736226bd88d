package vk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var abiFiles = []string{"abi.h", "abi_enums.h", "abi_device.h", "abi_memory.h", "abi_pipeline.h", "abi_cubin.h"}

var (
	cComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	cStruct  = regexp.MustCompile(`(?s)typedef struct (\w+) \{(.*?)\n\} \w+;`)
	cUnion   = regexp.MustCompile(`(?s)union \{.*?\} (\w+);`)
	cEnum    = regexp.MustCompile(`\b(VK_\w+) = `)
	cIndex   = regexp.MustCompile(`\[.*?\]`)
	// Members that stand for several of the real ones.
	grouped = regexp.MustCompile(`^(others|images|granularities|descriptors|graphics|copyAlignments)\d?$`)
)

// vulkanHeaders is an include folder with the Khronos headers.
type vulkanHeaders struct {
	dir  string
	text string // of all of them
}

// needHeaders skips where there are no headers or no C compiler, unless
// VKATTN_VULKAN_HEADERS names the folder: then both have to be there.
func needHeaders(t *testing.T) vulkanHeaders {
	t.Helper()
	dir, required := os.LookupEnv("VKATTN_VULKAN_HEADERS")
	skip := t.Skipf
	if required {
		skip = t.Fatalf
	} else {
		root, err := exec.Command("../scripts/deps.sh", "path", "headers").Output()
		if err != nil {
			skip("no Vulkan headers (%v); scripts/deps.sh headers fetches them", err)
		}
		dir = filepath.Join("/", strings.TrimPrefix(strings.TrimSpace(string(root)), "system"), "usr", "include")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		skip("no C compiler: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "vulkan", "*.h"))
	require.NoError(t, err)
	h := vulkanHeaders{dir: dir}
	for _, f := range files {
		text := readFile(t, f)
		h.text += cComment.ReplaceAllString(string(text), "")
	}
	require.Contains(t, h.text, "VK_HEADER_VERSION", "no Vulkan headers in %s", dir)
	version := regexp.MustCompile(`VK_HEADER_VERSION \d+`).FindString(h.text)
	t.Logf("%s, %s", dir, version)
	return h
}

// prints runs a C program with these statements, once with our declarations and
// once with the headers', and compares the lines that it prints.
func (h vulkanHeaders) prints(t *testing.T, ours, theirs string) {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	run := func(include, statements string, sources ...string) []string {
		dir := t.TempDir()
		file, bin := filepath.Join(dir, "facts.c"), filepath.Join(dir, "facts")
		program := "#define VK_NO_PROTOTYPES\n#include <stddef.h>\n#include <stdio.h>\n" + include +
			"int main(void)\n{\n" + statements + "return 0;\n}\n"
		require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
		out, err := exec.Command("cc", append([]string{"-I", h.dir, "-I", here, "-o", bin, file}, sources...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.Command(bin).Output()
		require.NoError(t, err)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	got := run("#include \"host.h\"\n#include \"feature_table.h\"\n", ours, filepath.Join(here, "feature_table.c"))
	want := run("#include <vulkan/vulkan.h>\n#include \"feature_bits.h\"\n", theirs)
	require.Equal(t, len(want), len(got))
	for i := range got {
		assert.Equal(t, want[i], got[i])
	}
	t.Logf("%d facts", len(got))
}

func abiText(t *testing.T) string {
	t.Helper()
	var src strings.Builder
	for _, f := range abiFiles {
		b := readFile(t, f)
		src.Write(b)
	}
	return cComment.ReplaceAllString(src.String(), "")
}

// members lists what a structure declares.
func members(body string) (fields []string) {
	if strings.Contains(body, "VKA_HEAD") {
		fields = append(fields, "sType", "pNext")
		body = strings.Replace(body, "VKA_HEAD", "", 1)
	}
	body = cUnion.ReplaceAllString(body, "int $1;")
	for _, decl := range strings.Split(body, ";") {
		for _, part := range strings.Split(strings.TrimSpace(decl), ",") {
			if words := strings.Fields(cIndex.ReplaceAllString(part, "")); len(words) > 0 {
				fields = append(fields, strings.TrimLeft(words[len(words)-1], "*"))
			}
		}
	}
	return fields
}

// Every structure and every number that abi*.h declare is the registry's. None may
// be missing from the headers.
func TestABIMatchesVulkanHeaders(t *testing.T) {
	h := needHeaders(t)
	text := abiText(t)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^typedef struct (\w+) \{|^typedef \w+ (\w+);|^ +(VK_\w+) =|^#define (VK_\w+) `).FindAllStringSubmatch(h.text, -1) {
		known[m[1]+m[2]+m[3]+m[4]] = true
	}
	var facts strings.Builder
	structs := cStruct.FindAllStringSubmatch(text, -1)
	assert.Len(t, structs, strings.Count(text, "{")-strings.Count(text, "union {")-strings.Count(text, "enum {"), "a structure is not understood")
	for _, m := range structs {
		name := m[1]
		assert.True(t, known[name], "%s is not in the headers", name)
		fmt.Fprintf(&facts, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		for _, f := range members(m[2]) {
			if !grouped.MatchString(f) {
				fmt.Fprintf(&facts, "printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", name, f, name, f, name, f)
			}
		}
	}
	enums := cEnum.FindAllStringSubmatch(text, -1)
	assert.Len(t, enums, len(regexp.MustCompile(`\bVK_\w+`).FindAllString(text, -1)), "a number is not understood")
	for _, m := range enums {
		assert.True(t, known[m[1]], "%s is not in the headers", m[1])
		fmt.Fprintf(&facts, "printf(\"%s %%lld\\n\", (long long)%s);\n", m[1], m[1])
	}
	if !t.Failed() {
		h.prints(t, facts.String(), facts.String())
	}
}

var cCommand = regexp.MustCompile(`(?m)^\t(\w+) \(\*(\w+)\)\((.*)\);$`)

// Every command is declared with as many arguments as the registry's, each of the
// same size and, where it is a structure, the same one.
func TestABICommands(t *testing.T) {
	h := needHeaders(t)
	text := readFile(t, "host.h")
	prototypes := map[string][]string{}
	for _, m := range regexp.MustCompile(`typedef (\w+) \(VKAPI_PTR \*PFN_vk(\w+)\)\((.*)\);`).FindAllStringSubmatch(h.text, -1) {
		prototypes[m[2]] = m[1:]
	}
	commands := cCommand.FindAllStringSubmatch(cComment.ReplaceAllString(string(text), ""), -1)
	assert.Len(t, commands, len(regexp.MustCompile(`(?m)^\t.*\(\*\w+\)\(`).FindAllString(string(text), -1)), "a command is not understood")
	var ours, theirs strings.Builder
	for _, c := range commands {
		name := c[2]
		p, ok := prototypes[name]
		for _, suffix := range []string{"KHR", "EXT"} { // those that two extensions share
			if !ok {
				p, ok = prototypes[name+suffix]
			}
		}
		if !assert.True(t, ok, "vk%s is not in the headers", name) {
			continue
		}
		a, b := strings.Split(c[3], ","), strings.Split(p[2], ",")
		if !assert.Len(t, a, len(b), "arguments of vk%s", name) {
			continue
		}
		size := func(out *strings.Builder, what, typ string) {
			fmt.Fprintf(out, "printf(\"vk%s %s %%zu\\n\", sizeof(%s));\n", name, what, typ)
		}
		size(&ours, "returns", c[1])
		size(&theirs, "returns", p[0])
		for i := range a {
			mine, its := a[i], regexp.MustCompile(`\w+$`).ReplaceAllString(b[i], "")
			size(&ours, fmt.Sprint(i), mine)
			size(&theirs, fmt.Sprint(i), its)
			mineTo, itsTo := pointee(mine), pointee(its)
			if assert.Equal(t, mineTo == "", itsTo == "", "vk%s: argument %d", name, i) && mineTo != "" && mineTo != "void" {
				if strings.HasPrefix(mineTo, "Vk") && mineTo != "VkHandle" {
					assert.Equal(t, strings.TrimSuffix(itsTo, "KHR"), strings.TrimSuffix(mineTo, "KHR"), "vk%s: argument %d", name, i)
				}
				size(&ours, fmt.Sprint(i, " points to "), mineTo)
				size(&theirs, fmt.Sprint(i, " points to "), itsTo)
			}
		}
	}
	if !t.Failed() {
		h.prints(t, ours.String(), theirs.String())
	}
}

// pointee is what a type points to, without const, or "" where it is no pointer.
func pointee(typ string) string {
	to, _, pointer := strings.Cut(strings.ReplaceAll(typ, "const ", " "), "*")
	if !pointer {
		return ""
	}
	return strings.TrimSpace(to)
}

// A feature structure is a row of flags here, and a flag is known by its place.
func TestABIFeatureTable(t *testing.T) {
	h := needHeaders(t)
	var theirs strings.Builder
	for _, row := range []struct {
		name, number, extension, alias string
		flags                          map[string]string // VKA_ -> member
	}{
		{"16BitStorage", "16BIT_STORAGE", "", "", map[string]string{"STORAGE16": "storageBuffer16BitAccess", "UNIFORM_STORAGE16": "uniformAndStorageBuffer16BitAccess"}},
		{"8BitStorage", "8BIT_STORAGE", "KHR_8BIT_STORAGE", "", map[string]string{"STORAGE8": "storageBuffer8BitAccess"}},
		{"ShaderFloat16Int8", "SHADER_FLOAT16_INT8", "KHR_SHADER_FLOAT16_INT8", "", map[string]string{"FLOAT16": "shaderFloat16", "INT8": "shaderInt8"}},
		{"ShaderBfloat16/KHR", "SHADER_BFLOAT16/KHR", "KHR_SHADER_BFLOAT16", "", map[string]string{"BFLOAT16": "shaderBFloat16Type", "BFLOAT16_DOT": "shaderBFloat16DotProduct", "BFLOAT16_COOPMAT": "shaderBFloat16CooperativeMatrix"}},
		{"ScalarBlockLayout", "SCALAR_BLOCK_LAYOUT", "EXT_SCALAR_BLOCK_LAYOUT", "", map[string]string{"SCALAR_BLOCK_LAYOUT": "scalarBlockLayout"}},
		{"WorkgroupMemoryExplicitLayout/KHR", "WORKGROUP_MEMORY_EXPLICIT_LAYOUT/KHR", "KHR_WORKGROUP_MEMORY_EXPLICIT_LAYOUT", "", map[string]string{"WORKGROUP_LAYOUT": "workgroupMemoryExplicitLayout", "WORKGROUP_LAYOUT_SCALAR": "workgroupMemoryExplicitLayoutScalarBlockLayout", "WORKGROUP_LAYOUT_8": "workgroupMemoryExplicitLayout8BitAccess", "WORKGROUP_LAYOUT_16": "workgroupMemoryExplicitLayout16BitAccess"}},
		{"SubgroupSizeControl", "SUBGROUP_SIZE_CONTROL", "EXT_SUBGROUP_SIZE_CONTROL", "", map[string]string{"SUBGROUP_SIZE_CONTROL": "subgroupSizeControl", "FULL_SUBGROUPS": "computeFullSubgroups"}},
		{"ShaderSubgroupExtendedTypes", "SHADER_SUBGROUP_EXTENDED_TYPES", "KHR_SHADER_SUBGROUP_EXTENDED_TYPES", "", map[string]string{"SUBGROUP_EXTENDED_TYPES": "shaderSubgroupExtendedTypes"}},
		{"TimelineSemaphore", "TIMELINE_SEMAPHORE", "KHR_TIMELINE_SEMAPHORE", "", map[string]string{"TIMELINE_SEMAPHORE": "timelineSemaphore"}},
		{"BufferDeviceAddress", "BUFFER_DEVICE_ADDRESS", "KHR_BUFFER_DEVICE_ADDRESS", "", map[string]string{"BUFFER_DEVICE_ADDRESS": "bufferDeviceAddress"}},
		{"VulkanMemoryModel", "VULKAN_MEMORY_MODEL", "KHR_VULKAN_MEMORY_MODEL", "", map[string]string{"VULKAN_MEMORY_MODEL": "vulkanMemoryModel", "MEMORY_MODEL_DEVICE_SCOPE": "vulkanMemoryModelDeviceScope"}},
		{"Synchronization2", "SYNCHRONIZATION_2", "KHR_SYNCHRONIZATION_2", "", map[string]string{"SYNC2": "synchronization2"}},
		{"Maintenance4", "MAINTENANCE_4", "KHR_MAINTENANCE_4", "", map[string]string{"MAINTENANCE4": "maintenance4"}},
		{"HostQueryReset", "HOST_QUERY_RESET", "EXT_HOST_QUERY_RESET", "", map[string]string{"HOST_QUERY_RESET": "hostQueryReset"}},
		{"Robustness2/EXT", "ROBUSTNESS_2/EXT", "KHR_ROBUSTNESS_2", "EXT_ROBUSTNESS_2", map[string]string{"ROBUSTNESS2": "robustBufferAccess2"}},
		{"PipelineExecutableProperties/KHR", "PIPELINE_EXECUTABLE_PROPERTIES/KHR", "KHR_PIPELINE_EXECUTABLE_PROPERTIES", "", map[string]string{"PIPELINE_EXECUTABLE": "pipelineExecutableInfo"}},
		{"PipelineRobustness", "PIPELINE_ROBUSTNESS", "EXT_PIPELINE_ROBUSTNESS", "", map[string]string{"PIPELINE_ROBUSTNESS": "pipelineRobustness"}},
		{"CooperativeMatrix/KHR", "COOPERATIVE_MATRIX/KHR", "KHR_COOPERATIVE_MATRIX", "", map[string]string{"COOPMAT": "cooperativeMatrix"}},
		{"CooperativeMatrix2/NV", "COOPERATIVE_MATRIX_2/NV", "NV_COOPERATIVE_MATRIX_2", "", map[string]string{"CM2_WORKGROUP_SCOPE": "cooperativeMatrixWorkgroupScope", "CM2_FLEXIBLE_DIMENSIONS": "cooperativeMatrixFlexibleDimensions", "CM2_REDUCTIONS": "cooperativeMatrixReductions", "CM2_CONVERSIONS": "cooperativeMatrixConversions", "CM2_PER_ELEMENT": "cooperativeMatrixPerElementOperations", "CM2_TENSOR_ADDRESSING": "cooperativeMatrixTensorAddressing", "CM2_BLOCK_LOADS": "cooperativeMatrixBlockLoads"}},
	} {
		base, vendor, _ := strings.Cut(row.name, "/")
		typ := "VkPhysicalDevice" + base + "Features" + vendor
		number, vendor, _ := strings.Cut(row.number, "/")
		number = "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_" + number + "_FEATURES"
		if vendor != "" {
			number += "_" + vendor
		}
		extension := func(name string) string {
			if name == "" {
				return `""`
			}
			return "VK_" + name + "_EXTENSION_NAME"
		}
		fmt.Fprintf(&theirs, "printf(\"%s %%u %%zu %%s %%s\\n\", %s, sizeof(%s), %s, %s);\n", typ, number, typ, extension(row.extension), extension(row.alias))
		fmt.Fprintf(&theirs, "for (size_t bit = 0; bit < VKA_FEATURE_COUNT; bit++) {\n")
		for bit, member := range row.flags {
			fmt.Fprintf(&theirs, "if (bit == VKA_%s) printf(\"%%u: %%zu %s at %%zu\\n\", %s, bit, offsetof(%s, %s));\n", bit, member, number, typ, member)
		}
		theirs.WriteString("}\n")
	}
	for _, member := range []string{"robustBufferAccess", "shaderInt64", "shaderInt16"} {
		fmt.Fprintf(&theirs, "printf(\"%s at %%zu\\n\", offsetof(VkPhysicalDeviceFeatures, %s));\n", member, member)
	}
	h.prints(t, `
for (uint32_t i = 0; i < vka_feature_row_count; i++) {
	const vka_feature_row *row = &vka_feature_rows[i];
	size_t n = 0;
	while (row->flags[n].bit != VKA_NO_FLAG) n++;
	printf("%s %u %zu %s %s\n", row->name, row->type, (offsetof(vka_feature_struct, flags) + 4 * n + 7) / 8 * 8,
		row->extension ? row->extension : "", row->alias ? row->alias : "");
	for (int bit = 0; bit < VKA_FEATURE_COUNT; bit++)
		for (size_t f = 0; f < n; f++)
			if (row->flags[f].bit == bit) printf("%u: %d %s at %zu\n", row->type, bit, row->flags[f].name, offsetof(vka_feature_struct, flags[f]));
}
for (uint32_t i = 0; i < vka_core_feature_count; i++)
	printf("%s at %u\n", vka_core_features[i].name, vka_core_features[i].offset);
`, theirs.String())
}

// Extensions are asked for by names that the registry has.
func TestABIExtensionNames(t *testing.T) {
	h := needHeaders(t)
	sources, err := filepath.Glob("*.c")
	require.NoError(t, err)
	found := 0
	for _, f := range sources {
		text := readFile(t, f)
		for _, name := range regexp.MustCompile(`"VK_[A-Z]+_[a-z]\w*"`).FindAllString(string(text), -1) {
			assert.True(t, regexp.MustCompile(`_EXTENSION_NAME\s+`+name).MatchString(h.text), "%s: %s is not in the headers", f, name)
			found++
		}
	}
	assert.Greater(t, found, 30)
}

// Numbers that Go passes on as the driver gave them.
func TestABINumbersInGo(t *testing.T) {
	h := needHeaders(t)
	var ours, theirs strings.Builder
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"COMPONENT_TYPE_FLOAT16_KHR", uint64(Float16)}, {"COMPONENT_TYPE_FLOAT32_KHR", uint64(Float32)}, {"COMPONENT_TYPE_FLOAT64_KHR", uint64(Float64)},
		{"COMPONENT_TYPE_SINT8_KHR", uint64(SInt8)}, {"COMPONENT_TYPE_SINT16_KHR", uint64(SInt16)}, {"COMPONENT_TYPE_SINT32_KHR", uint64(SInt32)}, {"COMPONENT_TYPE_SINT64_KHR", uint64(SInt64)},
		{"COMPONENT_TYPE_UINT8_KHR", uint64(UInt8)}, {"COMPONENT_TYPE_UINT16_KHR", uint64(UInt16)}, {"COMPONENT_TYPE_UINT32_KHR", uint64(UInt32)}, {"COMPONENT_TYPE_UINT64_KHR", uint64(UInt64)},
		{"COMPONENT_TYPE_BFLOAT16_KHR", uint64(BFloat16)}, {"COMPONENT_TYPE_FLOAT8_E4M3_EXT", uint64(E4M3)}, {"COMPONENT_TYPE_FLOAT8_E5M2_EXT", uint64(E5M2)},
		{"SCOPE_DEVICE_KHR", uint64(ScopeDevice)}, {"SCOPE_WORKGROUP_KHR", uint64(ScopeWorkgroup)}, {"SCOPE_SUBGROUP_KHR", uint64(ScopeSubgroup)}, {"SCOPE_QUEUE_FAMILY_KHR", uint64(ScopeQueueFamily)},
		{"PHYSICAL_DEVICE_TYPE_OTHER", uint64(DeviceOther)}, {"PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU", uint64(DeviceIntegrated)}, {"PHYSICAL_DEVICE_TYPE_DISCRETE_GPU", uint64(DeviceDiscrete)}, {"PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU", uint64(DeviceVirtual)}, {"PHYSICAL_DEVICE_TYPE_CPU", uint64(DeviceCPU)},
		{"SUBGROUP_FEATURE_BASIC_BIT", uint64(SubgroupBasic)}, {"SUBGROUP_FEATURE_VOTE_BIT", uint64(SubgroupVote)}, {"SUBGROUP_FEATURE_ARITHMETIC_BIT", uint64(SubgroupArithmetic)}, {"SUBGROUP_FEATURE_BALLOT_BIT", uint64(SubgroupBallot)}, {"SUBGROUP_FEATURE_SHUFFLE_BIT", uint64(SubgroupShuffle)}, {"SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT", uint64(SubgroupShuffleRelative)}, {"SUBGROUP_FEATURE_CLUSTERED_BIT", uint64(SubgroupClustered)}, {"SUBGROUP_FEATURE_QUAD_BIT", uint64(SubgroupQuad)},
	} {
		fmt.Fprintf(&ours, "printf(\"%s %%llu\\n\", %dull);\n", c.name, c.value)
		fmt.Fprintf(&theirs, "printf(\"%s %%llu\\n\", (unsigned long long)VK_%s);\n", c.name, c.name)
	}
	h.prints(t, ours.String(), theirs.String())
}
