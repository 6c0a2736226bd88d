package cudapath

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// The launch table says what the cubins say, and every kernel fits a launch from Vulkan.
func TestCubinTable(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	cubin := func(arch string, dtype attention.DType, d, dv int, causal bool) ([]*Kernel, string) {
		return table.cubin(arch, &problem.CUDAProblem{DType: dtype, HeadDim: d, HeadDimV: dv, Causal: causal})
	}
	largest := map[string]int{"sm_90a": 192, "sm_80": 128}
	for arch, largest := range largest {
		for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
			for _, causal := range []bool{false, true} {
				for d, want := range map[int]int{8: 64, 64: 64, 72: 96, 96: 96, 104: 128, 128: 128, 136: 192, 192: 192} {
					list, why := cubin(arch, dtype, d, d, causal)
					if d > largest {
						require.Equal(t, fmt.Sprintf("there is none for head dims %d/%d on %s", d, d, arch), why)
						continue
					}
					require.Empty(t, why)
					for _, k := range list {
						require.Equal(t, [2]int{want, want}, [2]int{k.D, k.DV})
					}
				}
				_, why := cubin(arch, dtype, 200, 200, causal)
				require.Equal(t, "there is none for head dims 200/200 on "+arch, why)
			}
		}
		_, why := cubin(arch, attention.F32, 64, 64, false)
		require.Equal(t, "there is none for f32 on "+arch, why)
	}
	for d, want := range map[int]int{8: 64, 64: 64, 72: 96, 128: 128} {
		for _, page := range []int{0, 16} {
			list, why := table.cubin("sm_90a", &problem.CUDAProblem{DType: attention.BF16, HeadDim: d, HeadDimV: d, Options: "lengths", PageSize: page})
			require.Empty(t, why)
			for _, k := range list {
				require.Equal(t, [2]int{want, want}, [2]int{k.D, k.DV})
				require.True(t, k.General && k.Paged == (page > 0))
			}
		}
	}
	_, why := table.cubin("sm_90a", &problem.CUDAProblem{HeadDim: 192, HeadDimV: 192, Options: "lengths, window"})
	require.Equal(t, "there is none for lengths, window, head dims 192/192 on sm_90a", why)
	_, why = table.cubin("sm_80", &problem.CUDAProblem{HeadDim: 64, HeadDimV: 64, Options: "window"})
	require.Equal(t, "there is none for window, f16 on sm_80", why)
	list, why := cubin("sm_90a", attention.F16, 192, 128, true)
	require.Empty(t, why)
	require.Equal(t, [2]int{192, 128}, [2]int{list[0].D, list[0].DV})
	for i := range table.cubins {
		k := &table.cubins[i]
		image, err := table.cubinImage(k)
		require.NoError(t, err)
		require.Contains(t, string(image), k.Entry)
		require.LessOrEqual(t, k.Shared, 47<<10)
		if k.Arch == "sm_90a" {
			require.Equal(t, []Map{{"k", [4]uint32{64, uint32(k.Cols), 1, 1}, 128}, {"v", [4]uint32{64, uint32(k.Cols), 1, 1}, 128}}, k.Maps)
		}
	}
	var p cubinParams
	for n := range maxCubinMaps + 1 {
		require.Len(t, p.bytes(&Kernel{Maps: make([]Map, n)}), n*128+184)
		require.Len(t, p.bytes(&Kernel{Maps: make([]Map, n), General: true}), n*128+408)
	}
	for _, k := range table.kernels {
		require.NotEqual(t, cubinFamily, k.Family, "CUDA does not choose it")
	}
}

// Maps of packed keys have those of all sequences, and maps of paged ones have pages, with boxes that lie in one page.
func TestCubinMapsOfSequences(t *testing.T) {
	for _, c := range []struct {
		change func(p *cubinParams)
		cols   uint32
		want   tensorMapSpec // of K, without strides
	}{
		{func(p *cubinParams) {}, 48, tensorMapSpec{address: 4096, sizes: [4]uint64{64, 100, 2, 3}, box: [4]uint32{64, 48, 1, 1}}},
		{func(p *cubinParams) { p.cuK, p.totalK = 512, 77 }, 48, tensorMapSpec{address: 4096, sizes: [4]uint64{64, 77, 2, 1}, box: [4]uint32{64, 48, 1, 1}}},
		{func(p *cubinParams) { p.cuK = 512 }, 48, tensorMapSpec{address: 8192, sizes: [4]uint64{64, 1, 1, 1}, box: [4]uint32{64, 48, 1, 1}}},
		{func(p *cubinParams) { p.pageSize, p.pages = 64, 9 }, 32, tensorMapSpec{address: 4096, sizes: [4]uint64{64, 64, 2, 9}, box: [4]uint32{64, 32, 1, 1}}},
		{func(p *cubinParams) { p.pageSize, p.pages = 64, 9 }, 48, tensorMapSpec{address: 4096, sizes: [4]uint64{64, 64, 2, 9}, box: [4]uint32{64, 16, 1, 1}}},
		{func(p *cubinParams) { p.pageSize, p.sk = 16, 0 }, 32, tensorMapSpec{address: 8192, sizes: [4]uint64{64, 1, 1, 3}, box: [4]uint32{64, 32, 1, 1}}},
	} {
		var p cubinParams
		p.q, p.k, p.v = tensorParams{8192, 0, 0, 64}, tensorParams{4096, 6400, 640, 64}, tensorParams{16384, 6400, 640, 64}
		p.b, p.hq, p.hkv, p.sq, p.sk, p.d, p.dv = 3, 4, 2, 10, 100, 64, 64
		c.change(&p)
		k := &Kernel{Cols: int(c.cols), General: true, Paged: p.pageSize > 0, Maps: []Map{{"k", [4]uint32{64, c.cols, 1, 1}, 128}, {"v", [4]uint32{64, c.cols, 1, 1}, 128}}}
		require.NoError(t, p.setMaps(k))
		c.want.strides = [3]uint64{128, 1280, 12800}
		var want tensorMap
		require.NoError(t, c.want.encode(&want))
		require.Equal(t, want, p.maps[0])
	}
}

// decodeTypes are the quantized types with decode kernels.
var decodeTypes = []attention.KVType{attention.KVInt8, attention.KVFP8, attention.KVQ8_0, attention.KVQ4_0}

// There is a decode kernel for each storage type, quantized type of these and head dim, which fits a launch from Vulkan. Other
// types are refused by name.
func TestDecodeTable(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	require.Len(t, table.decodes, 2*3*4)
	for _, dtype := range []string{"f16", "bf16"} {
		for _, kv := range decodeTypes {
			for _, d := range []int{64, 128, 256} {
				k, why := decodeKernel(table.decodes, "sm_90a", dtype, kv.String(), d, d)
				require.Empty(t, why)
				image, err := table.cubinImage(k)
				require.NoError(t, err)
				require.Contains(t, string(image), k.Entry)
				require.LessOrEqual(t, k.Shared, 47<<10)
			}
			for _, dims := range [][2]int{{96, 96}, {128, 64}, {512, 512}} {
				_, why := decodeKernel(table.decodes, "sm_90a", dtype, kv.String(), dims[0], dims[1])
				require.Contains(t, why, fmt.Sprintf("and sm_90a, there is none for %s, %v, %d/%d", dtype, kv, dims[0], dims[1]))
			}
		}
		for _, kv := range attention.KVTypes() {
			if !slices.Contains(decodeTypes, kv) {
				_, why := decodeKernel(table.decodes, "sm_90a", dtype, kv.String(), 64, 64)
				require.Contains(t, why, "are for int8, fp8, q8_0 and q4_0", kv)
			}
		}
	}
	_, why := decodeKernel(table.decodes, "sm_80", "f16", "int8", 64, 64)
	require.Contains(t, why, "on sm_80")
	require.Len(t, new(decodeParams).bytes(), 360)
}

// A kernel of smaller row blocks is taken where they fill the multiprocessors better.
func TestFastestCubin(t *testing.T) {
	large, small := &Kernel{Rows: 192, Cols: 32}, &Kernel{Rows: 128, Cols: 32, Speed: 0.9}
	for _, c := range []struct {
		batch, length int
		want          *Kernel
	}{
		{16, 256, small},   // 2 rounds of 192 rows, 2 of 128
		{16, 1024, small},  // 6 of 192, 8 of 128
		{16, 2048, large},  // 11 of 192, 16 of 128
		{16, 16384, large}, // 84 of 192, 125 of 128
		{1, 128, small},
		{1, 192, small},
	} {
		for _, list := range [][]*Kernel{{large, small}, {small, large}} {
			require.Same(t, c.want, fastest(list, &attention.Shape{B: c.batch, Hq: 8, Sq: c.length, Sk: c.length}, 132), "%v", c)
		}
	}
	require.Same(t, large, fastest([]*Kernel{large, small}, &attention.Shape{B: 1, Hq: 1, Sq: 1 << 20, Sk: 1}, 0), "an unknown number of multiprocessors")
}
