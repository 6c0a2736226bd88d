package cudapath

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

var (
	h200 = DeviceInfo{Name: "H200", Major: 9, SMs: 132, MaxShared: 227 << 10, MaxThreads: 1024, Driver: 13000}
	a100 = DeviceInfo{Name: "A100", Major: 8, SMs: 108, MaxShared: 163 << 10, MaxThreads: 1024, Driver: 12040}
)

// testTable has a little of everything, in files as this build's.
func testTable(t *testing.T) *table {
	t.Helper()
	var fa3 []string
	for _, causal := range []bool{false, true} {
		fa3 = append(fa3, fmt.Sprintf(`{"entry":"fa3_%v","family":"fa3","dtype":"f16","d":128,"dv":128,"causal":%v,"module":"m3",
			"threads":384,"shared":200000,"rows":128,"cols":128,"grid":"persistent","maps":[{"tensor":"q","box":[64,128,1,1],"swizzle":128}]}`, causal, causal))
	}
	fa3 = append(fa3, `{"entry":"fa3_latent","family":"fa3","dtype":"f16","d":576,"dv":512,"latent":true,"combine":"fa3_latent_combine","module":"m3",
		"threads":512,"shared":200000,"rows":64,"cols":64,"grid":"persistent","maps":[{"tensor":"k","box":[64,64,1,1],"swizzle":128}]}`)
	fa3 = append(fa3, `{"entry":"fa3_tokens","family":"fa3","dtype":"f16","d":576,"dv":512,"latent":true,"tokens":true,"combine":"fa3_tokens_combine","module":"m3",
		"threads":512,"shared":200000,"rows":64,"cols":64,"grid":"persistent"}`)
	fa3 = append(fa3, strings.ReplaceAll(strings.Replace(fa3[len(fa3)-1], `"tokens":true,"combine":"fa3_tokens_combine"`, `"tokens":true,"offsets":true`, 1), "fa3_tokens", "fa3_offsets"))
	fa3 = append(fa3, `{"entry":"fa3_rows","family":"fa3","dtype":"f16","d":576,"dv":512,"latent":true,"kv":"fp8_ds_mla","combine":"fa3_rows_combine","module":"m3",
		"threads":512,"shared":200000,"rows":64,"cols":64,"grid":"persistent"}`)
	fa3 = append(fa3, `{"entry":"fa3_general","family":"fa3","dtype":"f16","d":128,"dv":128,"general":true,"sequences":true,"module":"m3",
		"threads":384,"shared":200000,"rows":128,"cols":128,"grid":"persistent","maps":[{"tensor":"q","box":[64,128,1,1],"swizzle":128}]}`)
	var fa2 []string
	for _, d := range []string{`256,"dv":256`, `64,"dv":64`, `192,"dv":128`} { // not in order
		for _, any := range []bool{false, true} {
			fa2 = append(fa2, fmt.Sprintf(`{"entry":"fa2_%s_%v","family":"fa2","dtype":"f16","d":%s,"any":%v,"module":"m2",
				"threads":128,"shared":65536,"rows":128,"cols":64,"grid":"rows,heads,batch"}`, d[:3], any, d, any))
		}
	}
	fa2 = append(fa2, `{"entry":"fa2_general","family":"fa2","dtype":"f16","d":256,"dv":256,"any":true,"general":true,"module":"m2",
		"threads":128,"shared":65536,"rows":128,"cols":64,"grid":"rows,heads,batch"}`)
	files := fstest.MapFS{
		"fa3.json": {Data: []byte("[" + strings.Join(fa3, ",") + "]")},
		"fa2.json": {Data: []byte(`{"kernels":[` + strings.Join(fa2, ",") + `]}`)},
		"ref.json": {Data: []byte(`[{"entry":"ref_f16","family":"ref","dtype":"f16","d":576,"any":true,"module":"mr","threads":256,"rows":64,"cols":64,"grid":"heads*batch,rows"},
			{"entry":"ref_f32","family":"ref","dtype":"f32","d":576,"any":true,"module":"mr","threads":256,"rows":64,"cols":64,"grid":"rows,heads,batch"}]`)},
		"bin/m3.sm_90a.cubin": {}, "bin/m2.ptx": {Data: []byte("ptx")}, "bin/m2.sm_90a.cubin": {Data: []byte("cubin")}, "bin/mr.ptx": {},
	}
	table, err := readTable(files)
	require.NoError(t, err)
	return table
}

func problemOf(change func(*problem.CUDAProblem)) *problem.CUDAProblem {
	p := &problem.CUDAProblem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 1000, Sk: 2000}, HeadDim: 128, HeadDimV: 128, Align: 8}
	if change != nil {
		change(p)
	}
	return p
}

func TestChoosesTheBestKernelThatTakesTheProblem(t *testing.T) {
	table := testTable(t)
	type chosen = problem.CUDAProblem
	latent := func(p *chosen) { p.HeadDim, p.HeadDimV, p.Hq, p.Hkv, p.VInK = 576, 512, 16, 1, true }
	for _, c := range []struct {
		name   string
		device DeviceInfo
		change func(*chosen)
		want   string // entry; none: nothing will do
		whyNot string // in what is said of those before it
	}{
		{"the best", h200, nil, "fa3_false", ""},
		{"causal", h200, func(p *chosen) { p.Causal = true }, "fa3_true", ""},
		{"an older device", a100, nil, "fa2_192_false", "no code of it for compute capability 8.0"},
		{"the smallest that holds it", h200, func(p *chosen) { p.HeadDim, p.HeadDimV = 129, 128 }, "fa2_192_false", "fa3: there is none for head dims 129/128"},
		{"a wide V", h200, func(p *chosen) { p.HeadDim, p.HeadDimV = 64, 136 }, "fa2_256_false", "64/136"},
		{"a small one", a100, func(p *chosen) { p.HeadDim, p.HeadDimV = 8, 64 }, "fa2_64,_false", ""},
		{"no alignment", h200, func(p *chosen) { p.Align = 4 }, "fa2_192_true", "these are of 4"},
		{"float32", h200, func(p *chosen) { p.DType = attention.F32 }, "ref_f32", "fa2_any: there is none for f32"},
		{"latent attention", h200, func(p *chosen) { p.HeadDim, p.HeadDimV = 576, 512 }, "ref_f16", "576/512"},
		{"latent attention with V in K", h200, func(p *chosen) { latent(p) }, "fa3_latent", ""},
		{"causal latent attention with pages", h200, func(p *chosen) { latent(p); p.Causal, p.Options, p.PageSize = true, "lengths, pages", 64 }, "fa3_latent", ""},
		{"latent attention of small pages", h200, func(p *chosen) { latent(p); p.Options, p.PageSize = "pages", 8 }, "fa3_latent", ""},
		{"latent attention of odd pages", h200, func(p *chosen) { latent(p); p.Options, p.PageSize = "pages", 48 }, "", "latent attention: a page size of 48"},
		{"latent attention of pages of 4", h200, func(p *chosen) { latent(p); p.Options, p.PageSize = "pages", 4 }, "", "latent attention: a page size of 4"},
		{"latent attention with a softcap", h200, func(p *chosen) { latent(p); p.Options, p.NotLatent = "softcap", "softcap" }, "", "latent attention: it takes no softcap"},
		{"unaligned latent attention", h200, func(p *chosen) { latent(p); p.Align = 4 }, "ref_f16", "latent attention: offsets and strides"},
		{"latent attention of float32", h200, func(p *chosen) { latent(p); p.DType = attention.F32 }, "ref_f32", "latent attention: there is none for f32"},
		{"latent attention on an older device", a100, func(p *chosen) { latent(p) }, "ref_f16", "no code of it for compute capability 8.0"},
		{"latent attention of many sequences", h200, func(p *chosen) { latent(p); p.B = 65536 }, "fa3_latent", ""},
		{"long latent attention", h200, func(p *chosen) { latent(p); p.Sk = 1<<29 + 1 }, "ref_f16", "at most 2^29"},
		{"many rows of latent attention", h200, func(p *chosen) { latent(p); p.Hq, p.Sq = 1<<16, 1<<15 }, "ref_f16", "rows of all heads, it takes at most 2147483583"},
		{"latent attention of many keys", h200, func(p *chosen) { latent(p); p.B, p.Sk = 64, 1<<29-64 }, "fa3_latent", ""},
		{"latent attention of too many keys", h200, func(p *chosen) { latent(p); p.B, p.Sk = 64, 1<<29 }, "ref_f16", "536870976 KV tiles or token lists of all sequences, it takes at most 2^29"},
		{"token lists of latent attention", h200, func(p *chosen) { latent(p); p.Tokens, p.B = true, 65536 }, "fa3_tokens", ""},
		{"token lists with offsets", h200, func(p *chosen) { latent(p); p.Tokens, p.Offsets, p.Options, p.PageSize = true, true, "pages", 3 }, "fa3_offsets", ""},
		{"token lists of pages of any size", h200, func(p *chosen) { latent(p); p.Tokens, p.Options, p.PageSize = true, "pages", 3 }, "fa3_tokens", ""},
		{"many token lists", h200, func(p *chosen) { latent(p); p.Tokens, p.B, p.Sq = true, 1<<29+1, 1 }, "", "536870913 KV tiles or token lists of all sequences"},
		{"token lists with a window", h200, func(p *chosen) { latent(p); p.Tokens, p.Options, p.NotLatent = true, "window", "window" }, "", "latent attention: it takes no window"},
		{"token lists of other head dims", h200, func(p *chosen) { p.VInK, p.Tokens, p.Hkv, p.Hq = true, true, 1, 1 }, "", "fa2_any: it takes sparse tokens in latent attention alone"},
		{"latent attention of fp8_ds_mla", h200, func(p *chosen) { latent(p); p.KV, p.Options, p.PageSize = attention.KVFP8DSMLA, "pages", 3 }, "fa3_rows", ""},
		{"fp8_ds_mla on an older device", a100, func(p *chosen) { latent(p); p.KV = attention.KVFP8DSMLA }, "", "ref: it takes no fp8_ds_mla"},
		{"fp8_ds_mla with a window", h200, func(p *chosen) { latent(p); p.KV, p.Options, p.NotLatent = attention.KVFP8DSMLA, "window", "window" }, "", "latent attention: it takes no window"},
		{"V in K of other head dims", h200, func(p *chosen) { latent(p); p.HeadDim, p.HeadDimV = 128, 128 }, "fa3_false", ""},
		{"a family", h200, func(p *chosen) { p.Kernel = "fa2" }, "fa2_192_false", ""},
		{"the family for validation", h200, func(p *chosen) { p.Kernel, p.Causal = "ref", true }, "ref_f16", ""},
		{"a family that cannot", a100, func(p *chosen) { p.Kernel = "fa3" }, "", "fa3: there is no code"},
		{"a family without alignment", h200, func(p *chosen) { p.Kernel, p.Align = "fa3", 2 }, "", "multiples of 8"},
		{"no such type", h200, func(p *chosen) { p.DType = attention.BF16 }, "", "ref: there is none for bf16"},
		{"lengths and a window", h200, func(p *chosen) { p.Options, p.Causal = "lengths, window", true }, "fa3_general", ""},
		{"lengths on an older device", a100, func(p *chosen) { p.Options = "lengths" }, "fa2_general", "no code of it for compute capability 8.0"},
		{"lengths at any alignment", h200, func(p *chosen) { p.Options, p.Align = "lengths", 4 }, "fa2_general", "fa3: head dims, offsets and strides"},
		{"lengths of wide heads", h200, func(p *chosen) { p.Options, p.HeadDim = "lengths", 192 }, "fa2_general", "fa3: there is none for head dims 192/128"},
		{"lengths of many rows", h200, func(p *chosen) { p.Options, p.Rows = "lengths", 1<<30+1 }, "fa2_general", "fa3: 1073741825 rows of all sequences"},
		{"lengths of many tiles", h200, func(p *chosen) { p.Options, p.Hq, p.Hkv, p.Sq = "lengths", 1<<16, 1<<16, 1<<20+1 }, "fa2_general", "rows of all sequences and 1073872896 tiles, it takes at most 2^30"},
		{"lengths by fa2", h200, func(p *chosen) { p.Options, p.Kernel = "lengths", "fa2" }, "fa2_general", ""},
		{"lengths and a softcap", h200, func(p *chosen) { p.Options, p.NotSequences = "lengths, softcap", "softcap" }, "fa2_general", "fa3: it takes no softcap"},
		{"options at any alignment", h200, func(p *chosen) { p.Options, p.Align = "softcap", 1 }, "fa2_general", "fa2: head dims, offsets and strides"},
		{"options for validation", h200, func(p *chosen) { p.Options, p.Kernel = "sinks", "ref" }, "", "ref: it takes no sinks"},
		{"options of float32", h200, func(p *chosen) { p.Options, p.DType = "pages", attention.F32 }, "", "fa2_any: there is none for f32"},
		{"heads of several launches", h200, func(p *chosen) { p.Hq, p.Hkv = 65536, 65536; p.Kernel = "fa2" }, "fa2_192_false", ""},
		{"many heads", h200, func(p *chosen) { p.Hq, p.Hkv = 65536, 65536 }, "fa3_false", ""},
		{"too many tiles", h200, func(p *chosen) { p.B, p.Hq, p.Sq = math.MaxInt32, 100, 1000 }, "fa2_192_false", "tiles, it counts them in 31 bits"},
		{"old tensor maps", DeviceInfo{Major: 9, MaxShared: 227 << 10, MaxThreads: 1024, Driver: 11080}, nil, "fa2_192_false", "a driver for CUDA 12"},
		{"little shared memory", DeviceInfo{Major: 9, MaxShared: 100 << 10, MaxThreads: 1024, Driver: 12000}, nil, "fa2_192_false", "200000 bytes of shared memory a block, the device has 102400"},
		{"few threads", DeviceInfo{Major: 9, MaxShared: 227 << 10, MaxThreads: 256, Driver: 12000}, nil, "fa2_192_false", "384 threads a block, the device has 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, rejected, err := table.choose(&c.device, problemOf(c.change))
			if c.want == "" {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				require.ErrorContains(t, err, c.whyNot)
				require.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, k.Entry)
			assert.Contains(t, strings.Join(rejected, "; "), c.whyNot)
		})
	}
}

func TestModulesByDevice(t *testing.T) {
	table := testTable(t)
	for _, c := range []struct {
		module string
		device DeviceInfo
		want   string
	}{
		{"m2", h200, "cubin\x00"}, {"m2", a100, "ptx\x00"}, {"m2", DeviceInfo{Major: 9, Minor: 1}, "ptx\x00"},
		{"m2", DeviceInfo{Major: 7, Minor: 5}, ""}, {"m3", a100, ""}, {"m4", h200, ""},
	} {
		image, err := table.image(c.module, &c.device)
		if c.want == "" {
			require.ErrorIs(t, err, vk.ErrUnsupported, "%v", c)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, string(image), "%v", c)
	}
}

func TestGrids(t *testing.T) {
	for text, want := range map[string][3]uint64{
		"rows,heads,batch": {2, 3, 5}, "heads*batch, rows": {15, 2, 1}, "rows*heads*batch": {30, 1, 1}, "batch,1,rows": {5, 1, 2},
		"keys,kvheads,batch": {7, 11, 5},
	} {
		g, err := (&Kernel{Grid: text}).grid(tiles{rows: 2, heads: 3, batch: 5, keys: 7, kvHeads: 11})
		require.NoError(t, err)
		require.Equal(t, want, g, text)
	}
	for _, text := range []string{"", "rows,columns", "rows,heads,batch,1", "rows,,batch"} {
		_, err := (&Kernel{Grid: text}).grid(tiles{rows: 1, heads: 1, batch: 1})
		require.Error(t, err, text)
	}
}

func TestTablesThatAreRefused(t *testing.T) {
	good := `{"entry":"e","family":"fa2","dtype":"f16","d":64,"module":"m","threads":128,"rows":64,"cols":64,"grid":"rows,heads,batch"}`
	list, err := parseKernels([]byte("[" + good + "]"))
	require.NoError(t, err)
	require.Equal(t, 64, list[0].DV, "as D where it is not said")
	for _, c := range [][2]string{
		{`"family":"fa2"`, `"family":"fa9"`}, {`"dtype":"f16"`, `"dtype":"f8"`}, {`"d":64`, `"d":0`}, {`"threads":128`, `"threads":0`},
		{`"rows":64`, `"rows":-1`}, {`rows,heads,batch`, `rows,hats`}, {`"entry":"e"`, `"entry":""`},
		{`"cols":64`, `"cols":64,"maps":[{"tensor":"x","box":[1,1,1,1]}]`}, {`"cols":64`, `"cols":64,"maps":[{"tensor":"q","swizzle":48}]`},
		{`"cols":64`, `"cols":64,"maps":[{"tensor":"q"},{"tensor":"q"},{"tensor":"q"},{"tensor":"q"},{"tensor":"q"}]`},
	} {
		_, err := parseKernels([]byte("[" + strings.Replace(good, c[0], c[1], 1) + "]"))
		require.Error(t, err, c[1])
	}
	_, err = parseKernels([]byte("nonsense"))
	require.Error(t, err)
}

// The tables of this build are whole: every entry has its module and can be chosen,
// and the families have what tier cuda promises.
func TestTablesOfThisBuild(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	entries := map[string]bool{}
	for _, k := range slices.Concat(table.kernels, table.backward) {
		require.False(t, entries[k.Entry], "%s twice", k.Entry)
		entries[k.Entry] = true
		require.True(t, strings.HasPrefix(k.Entry, "attn_"+k.Family+"_"+k.DType), k.Entry)
		name, ok := table.imageName(k.Module, &h200)
		require.True(t, ok, "%s: no code for sm_90", k.Entry)
		image, err := table.image(k.Module, &h200)
		require.NoError(t, err, name)
		require.Equal(t, "\x7fELF", string(image[:4]), "%s is no cubin", name)
		require.Contains(t, string(image), k.Entry+"\x00", "%s has no such entry", name)
		if k.Family == "fa3" {
			continue
		}
		image, err = table.image(k.Module, &a100)
		require.NoError(t, err)
		require.Contains(t, string(image), ".entry "+k.Entry+"(", "the PTX of %s has no such entry", k.Module)
	}
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, causal := range []bool{false, true} {
			for _, dims := range [][2]int{{1, 1}, {32, 32}, {64, 64}, {80, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}} {
				for _, align := range []uint32{1, 8} {
					p := problemOf(func(p *problem.CUDAProblem) {
						p.DType, p.Causal, p.HeadDim, p.HeadDimV, p.Align = dtype, causal, dims[0], dims[1], align
					})
					k, _, err := table.choose(&a100, p)
					require.NoError(t, err)
					require.Equal(t, "fa2", k.Family, "%+v", p)
				}
			}
		}
	}
	for _, dtype := range attention.DTypes() {
		k, _, err := table.choose(&h200, problemOf(func(p *problem.CUDAProblem) {
			p.DType, p.HeadDim, p.HeadDimV, p.Kernel, p.Align = dtype, 576, 512, "ref", 1
		}))
		require.NoError(t, err)
		require.Equal(t, "ref", k.Family)
	}
}

// fa3 computes gradients up to head dim 256 on sm_90, with and without options. fa2 computes
// those of 16-bit types up to 256. Everything else goes to ref, with the reason.
func TestChoosesBackwardKernels(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	type chosen = problem.CUDABackwardProblem
	small := DeviceInfo{Name: "RTX 3090", Major: 8, Minor: 6, SMs: 82, MaxShared: 99 << 10, MaxThreads: 1024, Driver: 12040}
	for name, x := range map[string]struct {
		d      *DeviceInfo
		change func(*chosen)
		want   string // names of entries after attn_
		why    string
	}{
		"dense":    {&h200, nil, "fa3_f16_d128_backward_stats_full fa3_f16_d128_backward_main_full fa3_f16_d128_backward_dq_full", ""},
		"dK alone": {&h200, func(p *chosen) { p.Want = [3]bool{1: true} }, "fa3_f16_d128_backward_stats_full fa3_f16_d128_backward_main_full", ""},
		"causal bf16": {&h200, func(p *chosen) { p.DType, p.Causal, p.HeadDim, p.HeadDimV = attention.BF16, true, 40, 64 },
			"fa3_bf16_d64_backward_stats_causal fa3_bf16_d64_backward_main_causal", ""},
		"lengths":   {&h200, func(p *chosen) { p.Lengths = true }, "fa3_f16_d128_backward_stats_options fa3_f16_d128_backward_main_options fa3_f16_d128_backward_dq_options", ""},
		"window":    {&h200, func(p *chosen) { p.Window, p.Causal = true, true }, "fa3_f16_d128_backward_stats_options fa3_f16_d128_backward_main_options fa3_f16_d128_backward_dq_options", ""},
		"softcap":   {&h200, func(p *chosen) { p.Softcap, p.HeadDim, p.HeadDimV = true, 64, 48 }, "fa3_f16_d64_backward_stats_options fa3_f16_d64_backward_main_softcap fa3_f16_d64_backward_dq_options", ""},
		"head dims": {&h200, func(p *chosen) { p.HeadDim = 136 }, "fa3_f16_d192x128_backward_stats_full fa3_f16_d192x128_backward_main_full fa3_f16_d192x128_backward_dq_full", ""},
		"wide": {&h200, func(p *chosen) { p.Causal, p.HeadDim, p.HeadDimV = true, 200, 8 },
			"fa3_f16_d256_backward_stats_causal fa3_f16_d256_backward_main_causal fa3_f16_d256_backward_dq_causal", ""},
		"wide, lengths": {&h200, func(p *chosen) { p.Lengths, p.HeadDim = true, 136 },
			"fa3_f16_d192x128_backward_stats_options fa3_f16_d192x128_backward_main_options fa3_f16_d192x128_backward_dq_options", ""},
		"wide, window": {&h200, func(p *chosen) { p.Window, p.HeadDim, p.HeadDimV, p.Want = true, 192, 136, [3]bool{2: true} },
			"fa3_f16_d192_backward_stats_options fa3_f16_d192_backward_main_options", ""},
		"wide, softcap": {&h200, func(p *chosen) { p.Softcap, p.HeadDim, p.HeadDimV, p.DType = true, 200, 8, attention.BF16 },
			"fa3_bf16_d256_backward_stats_options fa3_bf16_d256_backward_main_softcap fa3_bf16_d256_backward_dq_options", ""},
		"wide, softcap, fa2": {&h200, func(p *chosen) { p.Softcap, p.HeadDim, p.HeadDimV, p.Kernel = true, 200, 8, "fa2" },
			"fa2_f16_d256_backward_stats fa2_f16_d256_backward_main_softcap", ""},
		"alignment": {&h200, func(p *chosen) { p.Align, p.Softcap = 4, true }, "fa2_f16_d128_backward_stats_any fa2_f16_d128_backward_main_any",
			"have to be multiples of 8 elements, these are of 4; fa2: head dims"},
		"float32":              {&h200, func(p *chosen) { p.DType = attention.F32 }, "ref_f32_backward_stats ref_f32_backward_dq ref_f32_backward_dkdv", "fa3: there is none for f32 at head dims 128/128; fa2: there is none for f32"},
		"an older device":      {&a100, func(p *chosen) { p.HeadDim, p.HeadDimV = 96, 96 }, "fa2_f16_d96_backward_stats fa2_f16_d96_backward_main", "fa3: there is no code of it for compute capability 8.0"},
		"little shared memory": {&small, nil, "fa2_f16_d128_backward_stats_any fa2_f16_d128_backward_main_any", "bytes of shared memory a block, the device has 101376"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &chosen{CUDAProblem: *problemOf(nil), Want: [3]bool{true, true, true}}
			if x.change != nil {
				x.change(p)
			}
			list, rejected, err := table.chooseBackward(x.d, p)
			require.NoError(t, err)
			var entries []string
			for _, k := range list {
				entries = append(entries, strings.TrimPrefix(k.Entry, "attn_"))
			}
			require.Equal(t, x.want, strings.Join(entries, " "))
			require.Contains(t, strings.Join(rejected, "; "), x.why)
		})
	}
}

// Launches near the limit of what dS takes have whole heads, or equal parts of one, and the workspace has dQ in float32 only if
// several of them add to it.
func TestUnitsOfLaunches(t *testing.T) {
	const gib = 1 << 30
	table, err := embedded()
	require.NoError(t, err)
	find := func(d int) *Kernel {
		for i := range table.backward {
			if k := &table.backward[i]; k.DSBytes > 0 && k.D == d && k.Outputs == "dQ dK dV" {
				require.Equal(t, 2*gib, k.DSBytes)
				return k
			}
		}
		return nil
	}
	for _, x := range []struct {
		name          string
		b, hq, hkv    int
		sq, sk        int
		launch, parts uint64 // units of a launch, launches
		dQ            bool   // in float32
	}{
		{"one unit", 1, 1, 1, 1, 1, 1, 1, false},
		{"exactly 2 GiB", 1, 64, 64, 4096, 4096, 64 * 64, 1, false},
		{"a head more", 1, 65, 65, 4096, 4096, 33 * 64, 2, false},
		{"a row more", 1, 64, 64, 4097, 4096, 32 * 64, 2, false},
		{"a key more", 1, 64, 64, 4096, 4097, 32 * 65, 2, false},
		{"a head of 2 GiB", 1, 4, 4, 32768, 32768, 512, 4, false},
		{"a head and a key", 1, 4, 4, 32768, 32769, 257, 8, true},
		{"groups of 8", 2, 64, 8, 65536, 65536, 32, 512, true},
		{"a unit of 2 GiB", 1, 1, 1, 1 << 24, 100, 1, 2, true},
		{"a unit of more than 2 GiB", 1, 2, 1, 1<<24 + 1, 100, 1, 2, true},
		{"one key block of more than 2 GiB", 3, 2, 2, 1 << 25, 64, 1, 6, false},
		{"many short sequences", 100_000, 4, 1, 64, 64, 50_000, 2, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			k, s := find(256), attention.Shape{B: x.b, Hq: x.hq, Hkv: x.hkv, Sq: x.sq, Sk: x.sk}
			u := unitsOf(&s, k, true)
			require.Equal(t, x.launch, u.launch)
			n := uint64(0)
			require.NoError(t, u.each(func(first int32) error {
				require.Equal(t, n*u.launch, uint64(first))
				n++
				return nil
			}))
			require.Equal(t, x.parts, n)
			blocks := uint64(x.b) * uint64(x.hq) * uint64((x.sq+63)/64)
			stats := 4 * (32 + blocks*(4+3*64))
			counters := (u.call + uint64(x.hkv)*uint64(x.b) + 31) / 32 * 128
			want := stats + counters + u.launch*u.bytes
			if x.dQ {
				want += blocks * 64 * 256 * 4
			}
			require.Equal(t, want, fa3Workspace(&s, 0, k, true))
			require.Equal(t, stats+counters, fa3Workspace(&s, 0, k, false))
		})
	}
}

// Lengths whose last tiles end past 2^31 - 1 are refused with a reason, since kernels count rows and keys up to there.
func TestBackwardKernelsCountIn31Bits(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	for _, x := range []struct {
		sq, sk, b, totalQ int
		lengths           bool
		want              string // "" if fa3 takes it
	}{
		{sq: math.MaxInt32 - 127, sk: 1, b: 1},
		{sq: math.MaxInt32 - 126, sk: 1, b: 1, want: "fa3: 2147483648 rows and"},
		{sq: 1, sk: math.MaxInt32 - 63, b: 1},
		{sq: 1, sk: math.MaxInt32 - 62, b: 1, want: "fa3: 128 rows and 2147483648 keys"},
		{sq: 1 << 16, sk: 1, b: 1 << 15},
		{sq: 1 << 16, sk: 1, b: 1 << 15, lengths: true, want: "fa3: 2147483648 rows and"},
		{sq: 64, sk: 1, b: 4, totalQ: math.MaxInt32 - 300, lengths: true},
		{sq: 64, sk: 1, b: 5, totalQ: math.MaxInt32 - 300, lengths: true, want: "fa3: 2147483648 rows and"},
		{sq: 1, sk: 64 << 6, b: 1 << 24, want: "fa3: 1073741824 blocks of keys of all heads, and"},
	} {
		p := &problem.CUDABackwardProblem{CUDAProblem: problem.CUDAProblem{Shape: attention.Shape{B: x.b, Hq: 1, Hkv: 1, Sq: x.sq, Sk: x.sk}, DType: attention.F16,
			HeadDim: 256, HeadDimV: 256, Align: 8, Kernel: "fa3"}, Want: [3]bool{false, true, true}, TotalQ: x.totalQ, Lengths: x.lengths}
		list, _, err := table.chooseBackward(&h200, p)
		if x.want == "" {
			require.NoError(t, err, "%+v", x)
			require.Len(t, list, 2)
			continue
		}
		require.ErrorContains(t, err, x.want, "%+v", x)
	}
}

// Decode kernels take few rows where they read keys less often than the others, or divide them over multiprocessors that the others
// leave idle, and quantized K and V always.
func TestChoosesDecodeKernels(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	require.Len(t, table.cudaDecodes, 2*3*5)
	for _, x := range []struct {
		b, hq, hkv, sq, d int
		kv                attention.KVType
		dev               *DeviceInfo
		faster            bool
		entry, why        string
	}{
		{b: 8, hq: 32, hkv: 8, sq: 1, d: 128, faster: true, entry: "attn_decode_f16_d128_same"},
		{b: 8, hq: 32, hkv: 8, sq: 4, d: 128, faster: true, entry: "attn_decode_f16_d128_same"},
		{b: 8, hq: 32, hkv: 8, sq: 5, d: 128, entry: "attn_decode_f16_d128_same"},
		{b: 1, hq: 32, hkv: 8, sq: 8, d: 96, faster: true, entry: "attn_decode_f16_d128_same"},
		{b: 1, hq: 16, hkv: 1, sq: 8, d: 40, faster: true, entry: "attn_decode_f16_d64_same"},
		{b: 64, hq: 8, hkv: 8, sq: 2, d: 256, entry: "attn_decode_f16_d256_same"},
		{b: 1, hq: 8, hkv: 8, sq: 9, d: 64, why: "9 rows a sequence, its decode kernels take 8"},
		{b: 1, hq: 8, hkv: 8, sq: 1, d: 320, why: "there is none for f16, same, 320/320"},
		{b: 1, hq: 8, hkv: 8, sq: 1, d: 64, dev: &a100, why: "the device has 8.0"},
		{b: 70000, hq: 8, hkv: 8, sq: 1, d: 64, why: "more heads, sequences or rows"},
		{b: 1, hq: 8, hkv: 8, sq: 1, d: 64, kv: attention.KVQ4_0, faster: true, entry: "attn_decode_f16_d64_q4_0"},
		{b: 1, hq: 8, hkv: 8, sq: 1, d: 96, kv: attention.KVInt8, why: "there is none for f16, int8, 96/96"},
		{b: 1, hq: 8, hkv: 8, sq: 1, d: 64, kv: attention.KVQ5_0, why: "are for int8, fp8, q8_0 and q4_0"},
	} {
		dev := &h200
		if x.dev != nil {
			dev = x.dev
		}
		p := problem.CUDAProblem{Shape: attention.Shape{B: x.b, Hq: x.hq, Hkv: x.hkv, Sq: x.sq, Sk: 5000}, HeadDim: x.d, HeadDimV: x.d, Align: 8, KV: x.kv, Rows: uint64(x.b * x.sq)}
		k, why := table.chooseDecode(dev, &p)
		require.Contains(t, why, x.why)
		require.Equal(t, x.why == "", why == "")
		if k != nil {
			require.Equal(t, x.entry, k.Entry)
			require.Equal(t, x.faster, decodesFaster(dev, &p), "%+v", x)
			require.LessOrEqual(t, k.Blocks*(k.Shared+1024), 228<<10, "shared memory of a multiprocessor")
			image, err := table.image(k.Module, &h200)
			require.NoError(t, err)
			require.Contains(t, string(image), k.Entry+"\x00")
		}
	}
	p := problem.CUDAProblem{NoDecode: "its decode kernels take no bias"}
	_, why := table.chooseDecode(&h200, &p)
	require.Equal(t, p.NoDecode, why)
}
