//go:build cgo && linux

package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/cudapath"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

func TestMain(m *testing.M) {
	testlevel.Announce()
	os.Exit(m.Run())
}

// header is what vkattn.h declares.
type header struct {
	functions []string
	structs   map[string][]string // members, in order
	order     []string            // of the structs
}

var (
	comment  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	function = regexp.MustCompile(`(?m)^(?:int32_t|vkattn_status|const char \*) ?(vkattn_\w+)\(`)
	// A struct that grows has its size first; the others keep their members.
	structure = regexp.MustCompile(`(?s)typedef struct (\w+) \{(.*?)\n\} \w+;`)
	member    = regexp.MustCompile(`(\w+)\)?(?:\[\w+\]|\(void\))?;`)
)

func readHeader(t *testing.T) header {
	t.Helper()
	file, err := os.ReadFile("vkattn.h")
	require.NoError(t, err)
	text := comment.ReplaceAllString(string(file), "")
	h := header{structs: map[string][]string{}}
	for _, m := range function.FindAllStringSubmatch(text, -1) {
		h.functions = append(h.functions, m[1])
	}
	slices.Sort(h.functions)
	for _, m := range structure.FindAllStringSubmatch(text, -1) {
		h.order = append(h.order, m[1])
		for _, f := range member.FindAllStringSubmatch(m[2], -1) {
			h.structs[m[1]] = append(h.structs[m[1]], f[1])
		}
	}
	require.Greater(t, len(h.functions), 20)
	require.Greater(t, len(h.order), 15)
	return h
}

// fields are the fields of Go whose members have other names than those that cName gives. None: not offered in C.
var fields = map[string]map[string][]string{
	"vkattn_config": {"Scale": {"has_scale", "scale"}, "Window": {"has_window", "window_left", "window_right"},
		"ScoreMod": {"score_mod", "tables", "table_count"}, "MaskMod": {"mask_mod", "tables", "table_count"}},
	// Each call makes its map of a mask modifier's tiles.
	"vkattn_args":          {"Tables": {"tables", "table_count"}, "BlockMap": nil},
	"vkattn_backward_args": {"Args": {"forward"}, "DTables": {"d_tables", "d_table_count"}},
	"vkattn_bias":          {"Tensor": {"tensor"}},
	// A buffer is memory of any device.
	"vkattn_tensor": {"Host": {"data", "bytes"}, "Memory": {"buffer"}, "Strides": {"stride_batch", "stride_head", "stride_row", "expanded"}},
	"vkattn_vector": {"Host": {"data", "bytes"}, "Memory": {"buffer"}},
	"vkattn_device_options": {
		"CPU": {"cpu"}, "Timeout": {"timeout_ms"},
		// A layer's settings file and environment have the rest of validation; the library opens no device for tools.
		"GPUOnly": nil, "SyncValidation": nil, "GPUValidation": nil, "OnMessage": nil, "Debug": nil, "Stats": nil,
		"RobustBufferAccess": nil, "Extensions": nil,
	},
	"vkattn_vulkan": {"Enabled": {"requirements"}, "GetInstanceProcAddr": {"get_instance_proc_addr"}, "Timeout": {"timeout_ms"},
		"APIVersion": {"api_version"},
		// The library uses the queue in calls of the program alone, which docs/c.md lists.
		"LockQueue": nil, "UnlockQueue": nil},
}

// Every field of a struct of Go has its members in C, or is named as not offered, and every member has a field.
func TestFieldsHaveMembers(t *testing.T) {
	h := readHeader(t)
	type options struct {
		CPU bool
		vk.Options
	}
	for name, of := range map[string]any{
		"vkattn_config": attention.Config{}, "vkattn_shape": attention.Shape{}, "vkattn_args": attention.Args{},
		"vkattn_backward_args": attention.BackwardArgs{}, "vkattn_varlen": attention.Varlen{}, "vkattn_pages": attention.Pages{},
		"vkattn_sparse_tokens": attention.SparseTokens{}, "vkattn_blocks": attention.Blocks{}, "vkattn_bias": attention.Bias{},
		"vkattn_append_config": kvcache.AppendConfig{}, "vkattn_append_args": kvcache.AppendArgs{}, "vkattn_rotary": kvcache.Rotary{},
		"vkattn_mask": attention.Mask{}, "vkattn_table": attention.Table{}, "vkattn_tensor": attention.Tensor{},
		"vkattn_vector": attention.Vector{}, "vkattn_vulkan": vk.External{}, "vkattn_cuda": cudapath.DeviceOptions{}, "vkattn_device_options": options{},
	} {
		require.Contains(t, h.structs, name)
		left := slices.DeleteFunc(slices.Clone(h.structs[name]), func(m string) bool { return m == "size" })
		goFields := reflect.TypeOf(of)
		var list []reflect.StructField
		for i := range goFields.NumField() {
			f := goFields.Field(i)
			if f.Type == reflect.TypeFor[vk.Options]() {
				list = append(list, reflect.VisibleFields(f.Type)...)
			} else if f.IsExported() {
				list = append(list, f)
			}
		}
		for _, f := range list {
			members, special := fields[name][f.Name]
			if !special {
				members = []string{cName(f.Name)}
			}
			for _, m := range members {
				require.Contains(t, h.structs[name], m, "%s of %s", f.Name, name)
				left = slices.DeleteFunc(left, func(l string) bool { return l == m })
			}
		}
		require.Empty(t, left, "members of %s without a field", name)
	}
}

// setting sets one member of a struct of C, whose type only the functions that read it name.
func setting(p reflect.Value, member string, value any) {
	f := p.Elem().FieldByName(member)
	if !f.IsValid() {
		f = p.Elem().FieldByName("_" + member) // a keyword of Go
	}
	reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Set(reflect.ValueOf(value).Convert(f.Type()))
}

// Each member of a config reaches the field that has its name, and no other.
func TestMembersReachTheirFields(t *testing.T) {
	read := reflect.ValueOf(configOf)
	base := func() reflect.Value {
		p := reflect.New(read.Type().In(0).Elem())
		setting(p, "size", p.Type().Elem().Size())
		return p
	}
	config := func(p reflect.Value) attention.Config {
		got := read.Call([]reflect.Value{p})
		require.True(t, got[1].IsNil(), "%v", got[1])
		return got[0].Interface().(attention.Config)
	}
	names := map[string]string{"has_scale": "Scale", "has_window": "Window", "window_left": "", "window_right": "", "scale": ""}
	p := base()
	for i := range p.Type().Elem().NumField() {
		f := p.Type().Elem().Field(i)
		want, known := names[f.Name]
		if f.Name == "size" || known && want == "" || f.Type.Kind() == reflect.Pointer || f.Name == "table_count" {
			continue
		}
		p := base()
		setting(p, f.Name, 1)
		got := reflect.ValueOf(config(p))
		var changed []string
		for j := range got.NumField() {
			if !got.Field(j).IsZero() {
				changed = append(changed, got.Type().Field(j).Name)
			}
		}
		if !known {
			for j := range got.NumField() {
				if cName(got.Type().Field(j).Name) == f.Name {
					want = got.Type().Field(j).Name
				}
			}
		}
		require.Equal(t, []string{want}, changed, f.Name)
	}
	p = base()
	setting(p, "has_scale", 1)
	setting(p, "scale", 0.25)
	setting(p, "has_window", 1)
	setting(p, "window_left", 3)
	setting(p, "window_right", -1)
	require.Equal(t, attention.Config{Scale: attention.ScaleOf(0.25), Window: attention.WindowOf(3, -1)}, config(p))
}

// The numbers of the enumerations are those of Go.
func TestValuesOfEnumerations(t *testing.T) {
	file, err := os.ReadFile("vkattn.h")
	require.NoError(t, err)
	values := map[string]string{}
	for _, m := range regexp.MustCompile(`VKATTN_(\w+) = (-?\d+)`).FindAllStringSubmatch(string(file), -1) {
		values[m[1]] = m[2]
	}
	check := func(prefix string, n int, name func(int) string) {
		for i := range n {
			key := prefix + strings.ToUpper(strings.ReplaceAll(name(i), "-", "_"))
			require.Equal(t, fmt.Sprint(i), values[key], key)
		}
	}
	check("", 3, func(i int) string { return attention.DType(i).String() })
	check("KV_", len(attention.KVTypes()), func(i int) string { return attention.KVType(i).String() })
	check("TIER_", 8, func(i int) string { return attention.Tier(i).String() })
	for i, key := range []string{"CAUSAL_NONE", "TOP_LEFT", "BOTTOM_RIGHT"} {
		require.Equal(t, string(rune('0'+i)), values[key])
	}
	require.Equal(t, "top-left", attention.TopLeft.String())
	require.EqualValues(t, 1, attention.TopLeft)
	require.EqualValues(t, 2, attention.BottomRight)
	for i, key := range []string{"ACCESS_AUTO", "ADDRESSES", "DESCRIPTORS"} {
		require.Equal(t, string(rune('0'+i)), values[key])
	}
	require.EqualValues(t, 1, attention.AccessAddresses)
	for i, key := range []string{"TUNING_AUTO", "TUNING_OFF", "TUNING_ON"} {
		require.Equal(t, string(rune('0'+i)), values[key])
	}
	require.EqualValues(t, 2, attention.TuningOn)
	check("ROTARY_", 2, func(i int) string { return kvcache.RotaryStyle(i).String() })
	require.Equal(t, [2]string{fmt.Sprint(attention.KVBlockHead), fmt.Sprint(attention.KVBlockTensor)}, [2]string{values["KV_BLOCK_HEAD"], values["KV_BLOCK_TENSOR"]})
}

// A text has the names of C.
func TestNamesInTexts(t *testing.T) {
	for goNames, want := range map[string]string{
		"HeadDim/HeadDimV": "head_dim/head_dim_v", "O.Strides.Seq": "o.stride_row", "Q.Offset": "q.offset", "KVBlock": "kv_block",
		"F32Gradients": "f32_gradients", "Varlen.CuQ": "varlen.cu_q", "DQ": "d_q", "DBias": "d_bias", "B*Hq*Sq": "b*hq*sq", "ALiBi": "alibi",
	} {
		require.Equal(t, want, cNames(goNames))
	}
	err := attention.Config{HeadDim: 1, Softcap: -1}.Validate()
	require.Equal(t, "attention: softcap is -1, want a finite number above 0, or 0 for none", text(err))
}
