package vk

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/ccall"
)

var (
	cComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
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

// prints runs a C program with these statements, which print the facts of the headers, and compares its lines with ours.
func (h vulkanHeaders) prints(t *testing.T, ours []string, theirs string) {
	t.Helper()
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "facts.c"), filepath.Join(dir, "facts")
	program := "#define VK_NO_PROTOTYPES\n#include <stddef.h>\n#include <stdio.h>\n#include <vulkan/vulkan.h>\n" +
		"int main(void)\n{\n" + theirs + "return 0;\n}\n"
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.Command("cc", "-I", h.dir, "-o", bin, file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bin).Output()
	require.NoError(t, err)
	want := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Equal(t, len(want), len(ours))
	for i := range ours {
		assert.Equal(t, want[i], ours[i])
	}
	t.Logf("%d facts", len(ours))
}

// parsed are the files of this package that match a pattern, without tests.
func parsed(t *testing.T, pattern string) (*token.FileSet, []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(set, name, nil, 0)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	require.NotEmpty(t, files)
	return set, files
}

// declared are the structures and numbers of abi*.go, with types for this machine.
func declared(t *testing.T) *types.Package {
	t.Helper()
	set, files := parsed(t, "abi*.go")
	_, handles := parsed(t, "handles.go")
	config := types.Config{
		Importer: nothing{}, Error: func(error) {}, // abi.go has functions, which need the rest of the package
		Sizes: types.SizesFor("gc", runtime.GOARCH),
	}
	p, _ := config.Check("vk", set, append(files, handles...), nil)
	return p
}

type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	switch path {
	case "unsafe":
		return types.Unsafe, nil
	case "structs":
		p := types.NewPackage(path, path)
		p.Scope().Insert(types.NewNamed(types.NewTypeName(token.NoPos, p, "HostLayout", nil), types.NewStruct(nil, nil), nil).Obj())
		p.MarkComplete()
		return p, nil
	}
	return nil, fmt.Errorf("no %s", path)
}

// registry is the name that Vulkan has for a field.
func registry(field string) string {
	return cmp.Or(map[string]string{"typ": "type", "rang": "range"}[field], field)
}

// fold removes what tells a name here from the registry's.
func fold(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// Every structure and every number that abi*.go declare is the registry's. None may be missing from the headers.
func TestABIMatchesVulkanHeaders(t *testing.T) {
	h := needHeaders(t)
	known := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^typedef struct (\w+) \{|^typedef \w+ (\w+);|^ +(VK_\w+) =|^#define (VK_\w+) `).FindAllStringSubmatch(h.text, -1) {
		name := m[1] + m[2] + m[3] + m[4]
		known[fold(name)] = name
	}
	p := declared(t)
	sizes := types.SizesFor("gc", runtime.GOARCH)
	var ours []string
	var theirs strings.Builder
	structs, numbers := 0, 0
	for _, name := range p.Scope().Names() {
		if !strings.HasPrefix(name, "vk") || name == "vkHead" {
			continue
		}
		its, ok := known[fold(name)]
		if !assert.True(t, ok, "%s is not in the headers", name) {
			continue
		}
		switch o := p.Scope().Lookup(name).(type) {
		case *types.Const:
			numbers++
			ours = append(ours, fmt.Sprintf("%s %s", its, o.Val()))
			fmt.Fprintf(&theirs, "printf(\"%s %%lld\\n\", (long long)%s);\n", its, its)
		case *types.TypeName:
			structs++
			ours = append(ours, fmt.Sprintf("%s %d", its, sizes.Sizeof(o.Type())))
			fmt.Fprintf(&theirs, "printf(\"%s %%zu\\n\", sizeof(%s));\n", its, its)
			member := func(field string, offset int64, typ types.Type) {
				field = registry(field)
				if field != "_" && !grouped.MatchString(field) {
					ours = append(ours, fmt.Sprintf("%s.%s %d %d", its, field, offset, sizes.Sizeof(typ)))
					fmt.Fprintf(&theirs, "printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", its, field, its, field, its, field)
				}
			}
			s := o.Type().Underlying().(*types.Struct)
			var fields []*types.Var
			for i := range s.NumFields() {
				fields = append(fields, s.Field(i))
			}
			for i, offset := range sizes.Offsetsof(fields) {
				if fields[i].Embedded() {
					member("sType", offset, types.Typ[types.Uint32])
					member("pNext", offset+8, types.Typ[types.UnsafePointer])
					numbers++
					kind := known[fold("vkStructureType"+name[2:])]
					ours = append(ours, fmt.Sprintf("%s %s", kind, reflect.StructTag(s.Tag(i)).Get("type")))
					fmt.Fprintf(&theirs, "printf(\"%s %%d\\n\", %s);\n", kind, kind)
					continue
				}
				member(fields[i].Name(), offset, fields[i].Type())
			}
		}
	}
	assert.Greater(t, structs, 80)
	assert.Greater(t, numbers, 120)
	assert.Equal(t, uintptr(8), unsafe.Offsetof(vkHead{}.pNext))
	if !t.Failed() {
		h.prints(t, ours, theirs.String())
	}
}

// Every command is called with as many arguments as the registry's, and where one is a pointer here it is one there, to
// the same structure.
func TestABICommands(t *testing.T) {
	h := needHeaders(t)
	prototypes := map[string][]string{}
	for _, m := range regexp.MustCompile(`typedef (\w+) \(VKAPI_PTR \*PFN_vk(\w+)\)\((.*)\);`).FindAllStringSubmatch(h.text, -1) {
		prototypes[m[2]] = strings.Split(m[3], ",")
	}
	table := map[string]bool{} // whether a call was seen
	set, files := parsed(t, "*.go")
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && strings.HasSuffix(s.Name.Name, "eCommands") {
				for _, field := range s.Type.(*ast.StructType).Fields.List {
					table[field.Names[0].Name] = false
				}
			}
			return true
		})
	}
	assert.Greater(t, len(table), 70)
	structures := 0
	check := func(at token.Pos, name string, args []bool, pointee func(i int) string) {
		p, ok := prototypes[name]
		for _, suffix := range []string{"KHR", "EXT"} { // those that two extensions share
			if !ok {
				p, ok = prototypes[name+suffix]
			}
		}
		if !assert.True(t, ok, "vk%s is not in the headers", name) || !assert.Len(t, args, len(p), "%v: arguments of vk%s", set.Position(at), name) {
			return
		}
		table[name] = true
		for i, pointer := range args {
			assert.False(t, pointer && !strings.Contains(p[i], "*"), "%v: argument %d of vk%s is no pointer", set.Position(at), i, name)
			if to := pointee(i); to != "" {
				structures++
				its := regexp.MustCompile(`Vk\w+`).FindString(p[i])
				assert.Equal(t, strings.TrimSuffix(its, "KHR"), strings.TrimSuffix("V"+to[1:], "KHR"), "%v: argument %d of vk%s", set.Position(at), i, name)
			}
		}
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			body, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			locals := map[string]string{} // structures of Vulkan by the variable's name
			ast.Inspect(body, func(n ast.Node) bool {
				var names []ast.Expr
				var typ ast.Expr
				literal := func(e ast.Expr) {
					if c, ok := e.(*ast.CallExpr); ok && types.ExprString(c.Fun) == "headed" {
						e = c.Args[0]
					}
					if c, ok := e.(*ast.CompositeLit); ok {
						typ = c.Type
					}
				}
				switch n := n.(type) {
				case *ast.AssignStmt:
					names = n.Lhs
					literal(n.Rhs[0])
				case *ast.ValueSpec:
					for _, name := range n.Names {
						names = append(names, name)
					}
					typ = n.Type
					if len(n.Values) == 1 {
						literal(n.Values[0])
					}
				case *ast.CallExpr:
					command, ok := commandOf(n)
					if _, known := table[command]; !ok || !known {
						return true
					}
					if f := types.ExprString(n.Fun); !strings.HasSuffix(f, "call") && f != "ccall.Call" { // matrices or destroy
						lists := strings.HasPrefix(f, "matrices")
						check(n.Pos(), command, []bool{false, lists, lists}, func(int) string { return "" })
						return true
					}
					var pointers []bool
					for _, a := range n.Args[1:] {
						pointers = append(pointers, strings.HasPrefix(types.ExprString(a), "uintptr(unsafe.Pointer("))
					}
					check(n.Pos(), command, pointers, func(i int) string {
						name, _ := strings.CutPrefix(types.ExprString(n.Args[1+i]), "uintptr(unsafe.Pointer(")
						return locals[strings.Trim(name, "&)")]
					})
				}
				for _, name := range names {
					if typ, ok := typ.(*ast.Ident); ok && strings.HasPrefix(typ.Name, "vk") {
						locals[types.ExprString(name)] = typ.Name
					}
				}
				return true
			})
		}
	}
	// Frames: their fields are the arguments.
	for command, frame := range framesOf(t) {
		check(token.NoPos, command, frame.pointers, func(i int) string { return frame.structures[i] })
	}
	for command, seen := range table {
		assert.True(t, seen, "no call of vk%s was found", command)
	}
	assert.Greater(t, structures, 35)
}

// commandOf is the command that a call of call, ccall.Call, recorder.call, hostDevice.destroy or matrices calls.
func commandOf(c *ast.CallExpr) (string, bool) {
	if regexp.MustCompile(`^(call|ccall\.Call|r\.call|matrices\[.*\]|.*\.destroy)$`).MatchString(types.ExprString(c.Fun)) && len(c.Args) > 0 {
		if s, ok := c.Args[0].(*ast.SelectorExpr); ok {
			return s.Sel.Name, true
		}
	}
	return "", false
}

// frameArgs are the arguments of a frame: whether one is a pointer, and to which structure.
type frameArgs struct {
	pointers   []bool
	structures []string
}

// framesOf describes the frames by the command that each calls.
func framesOf(t *testing.T) map[string]frameArgs {
	t.Helper()
	d := new(hostDevice)
	var next uintptr
	names := map[uintptr]string{}
	table := reflect.ValueOf(&d.deviceCommands).Elem()
	for i := range table.NumField() { // addresses that tell the commands apart
		next++
		table.Field(i).SetUint(uint64(next))
		names[next] = table.Type().Field(i).Name
	}
	r := new(recorder)
	r.prepare(d)
	timeline := timelineCalls.Get().(*timelineCall)
	timeline.read.Fn, timeline.await.Fn = d.GetSemaphoreCounterValue, d.WaitSemaphores
	d.submit.frame.Fn, d.submit.frame.Args = d.QueueSubmit, ccall.Size(unsafe.Sizeof(d.submit.frame))
	frames := map[string]frameArgs{}
	for _, v := range []reflect.Value{reflect.ValueOf(r).Elem(), reflect.ValueOf(timeline).Elem(), reflect.ValueOf(&d.submit).Elem()} {
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Kind() != reflect.Struct || f.NumField() == 0 || f.Type().Field(0).Type != reflect.TypeFor[ccall.Frame]() || v.Type().Field(i).Name == "other" {
				continue
			}
			head := f.Field(0)
			require.Equal(t, int64(f.NumField()-1), head.FieldByName("Args").Int(), "%s", v.Type().Field(i).Name)
			var a frameArgs
			for j := 1; j < f.NumField(); j++ {
				field := f.Type().Field(j)
				require.Equal(t, uintptr(8), field.Type.Size(), "%s.%s", v.Type().Field(i).Name, field.Name)
				to := ""
				if field.Type.Kind() == reflect.Pointer && strings.HasPrefix(field.Type.Elem().Name(), "vk") {
					to = field.Type.Elem().Name()
				}
				a.pointers = append(a.pointers, field.Type.Kind() == reflect.Pointer)
				a.structures = append(a.structures, to)
			}
			name := names[uintptr(head.FieldByName("Fn").Uint())]
			require.NotEmpty(t, name, "%s", v.Type().Field(i).Name)
			frames[name] = a
		}
	}
	require.Len(t, frames, 11)
	return frames
}

// A feature structure is a row of flags here, and a flag is known by its place.
func TestABIFeatureTable(t *testing.T) {
	h := needHeaders(t)
	var theirs strings.Builder
	for _, row := range []struct {
		name, number, extension, alias string
		flags                          map[string]string // feature -> member
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
		for bit, name := range featureNames() {
			for feature, member := range row.flags {
				if fold(feature) == name {
					fmt.Fprintf(&theirs, "printf(\"%%u: %d %s at %%zu\\n\", %s, offsetof(%s, %s));\n", bit, member, number, typ, member)
				}
			}
		}
	}
	for _, member := range []string{"robustBufferAccess", "shaderInt64", "shaderInt16"} {
		fmt.Fprintf(&theirs, "printf(\"%s at %%zu\\n\", offsetof(VkPhysicalDeviceFeatures, %s));\n", member, member)
	}
	var ours []string
	for i := range featureRows {
		row := &featureRows[i]
		flags := int(unsafe.Offsetof(featureStruct{}.flags))
		ours = append(ours, fmt.Sprintf("%s %d %d %s %s", row.name, row.structure, (flags+4*len(row.flags)+7)/8*8, row.extension, row.alias))
		require.LessOrEqual(t, len(row.flags), len(featureStruct{}.flags))
		for bit := range featureCount {
			for f, flag := range row.flags {
				if flag.bit == bit {
					ours = append(ours, fmt.Sprintf("%d: %d %s at %d", row.structure, bit, flag.name, flags+4*f))
				}
			}
		}
	}
	var f vkPhysicalDeviceFeatures
	for _, c := range coreFeatures {
		ours = append(ours, fmt.Sprintf("%s at %d", c.name, uintptr(unsafe.Pointer(c.of(&f)))-uintptr(unsafe.Pointer(&f))))
	}
	h.prints(t, ours, theirs.String())
}

// Extensions are asked for by names that the registry has.
func TestABIExtensionNames(t *testing.T) {
	h := needHeaders(t)
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, f := range sources {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
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
	var ours []string
	var theirs strings.Builder
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
		ours = append(ours, fmt.Sprintf("%s %d", c.name, c.value))
		fmt.Fprintf(&theirs, "printf(\"%s %%llu\\n\", (unsigned long long)VK_%s);\n", c.name, c.name)
	}
	h.prints(t, ours, theirs.String())
}
