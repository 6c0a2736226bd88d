package kvcache

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// launchOf is a checked append of K alone, f16 with 64 columns, in memory that nothing
// reads.
func launchOf(t *testing.T, a AppendArgs, access problem.Access, limits *vk.Limits) (*appendLauncher, *appendLaunch) {
	w := &appendLauncher{limits: limits, access: access}
	require.NoError(t, w.setSizes(&a))
	require.NoError(t, w.setTensors(&AppendConfig{HeadDim: 64}, &a))
	return w, &appendLaunch{appendTask: &appendTasks[0]}
}

func TestAppendBatchesAtOnce(t *testing.T) {
	limits := &vk.Limits{MaxWorkGroupCount: [3]uint32{100, 100, 7}, MaxStorageBufferRange: 1<<20 + 256, MinStorageBufferOffsetAlignment: 256}
	good := AppendArgs{B: 1000, Hkv: 2, New: 16, Capacity: 64} // 4096 bytes of K a batch, 16384 of the cache
	good.K.Offset, good.KCache.Offset, good.Used.Offset = 1, 1, 1
	for name, c := range map[string]struct {
		access problem.Access
		change func(a *AppendArgs)
		want   int
	}{
		"the grid's z":                  {problem.AccessAddresses, func(*AppendArgs) {}, 7},
		"fewer":                         {problem.AccessAddresses, func(a *AppendArgs) { a.B = 3 }, 3},
		"a stride of 2^32":              {problem.AccessAddresses, func(a *AppendArgs) { a.KCache.Strides = problem.Strides{Batch: 1 << 32, Head: 4096, Seq: 64} }, 1},
		"the range of a descriptor":     {problem.AccessDescriptors, func(a *AppendArgs) { a.KCache.Strides = problem.Strides{Batch: 1 << 17, Head: 4096, Seq: 64} }, 4},
		"is none of addresses":          {problem.AccessAddresses, func(a *AppendArgs) { a.KCache.Strides = problem.Strides{Batch: 1 << 17, Head: 4096, Seq: 64} }, 7},
		"all packed sequences together": {problem.AccessAddresses, func(a *AppendArgs) { a.CuNew.Offset, a.TotalNew = 1, 10 }, 1},
		"a pool as a whole":             {problem.AccessDescriptors, func(a *AppendArgs) { a.Pages = &problem.Pages{PageSize: 16, Count: 200} }, 7},
	} {
		a := good
		c.change(&a)
		w, l := launchOf(t, a, c.access, limits)
		require.NoError(t, w.size(l, &appendVariant{dim: 64}), name)
		require.Equal(t, c.want, l.chunk, name)
	}
	for name, change := range map[string]func(a *AppendArgs){
		"a pool":                  func(a *AppendArgs) { a.Pages = &problem.Pages{PageSize: 16, Count: 300} },
		"the caches of a packing": func(a *AppendArgs) { a.CuNew.Offset, a.TotalNew = 1, 10 },
		"more rows than the grid": func(a *AppendArgs) { a.New = 100 * 100 * 4 },
		"one sequence":            func(a *AppendArgs) { a.Capacity = 1 << 14 },
	} {
		a := good
		change(&a)
		w, l := launchOf(t, a, problem.AccessDescriptors, limits)
		require.ErrorIs(t, w.size(l, &appendVariant{dim: 64}), problem.ErrUnsupported, name)
	}
	far := good
	far.Pages = &problem.Pages{PageSize: 16, Count: 2}
	far.KCache.Strides = problem.Strides{Batch: 1 << 32, Head: 1024, Seq: 64}
	w, l := launchOf(t, far, problem.AccessAddresses, limits)
	require.ErrorIs(t, w.size(l, &appendVariant{dim: 64}), problem.ErrUnsupported)
}

func TestAppendRefusesStridesBeyond32Bits(t *testing.T) {
	for name, change := range map[string]func(*AppendArgs){
		"rows":  func(a *AppendArgs) { a.Hkv, a.New = 1<<16, 1<<15 },
		"cache": func(a *AppendArgs) { a.Hkv, a.Capacity = 1<<16, 1<<16 },
		"head":  func(a *AppendArgs) { a.K.Strides = problem.Strides{Head: 1 << 32, Seq: 64} },
		"row":   func(a *AppendArgs) { a.KCache.Strides = problem.Strides{Head: 1, Seq: 1 << 32} },
	} {
		a := AppendArgs{B: 1, Hkv: 2, New: 16, Capacity: 64}
		w, _ := launchOf(t, a, problem.AccessAddresses, &vk.Limits{})
		require.NoError(t, w.fits32())
		change(&a)
		w, _ = launchOf(t, a, problem.AccessAddresses, &vk.Limits{})
		require.ErrorIs(t, w.fits32(), problem.ErrUnsupported, name)
	}
}

// The constants of an append are constants of its module, and so is the size of
// what is pushed; rows of every width fit a workgroup and its shared memory.
func TestAppendFitsItsModule(t *testing.T) {
	for _, access := range []problem.Access{problem.AccessAddresses, problem.AccessDescriptors} {
		desc, err := appendVariant{access: access, dim: 576}.Pipeline(&AppendConfig{HeadDim: 576})
		require.NoError(t, err)
		r, err := shaders.Reflect(desc.Code)
		require.NoError(t, err)
		for _, c := range desc.Constants {
			require.Contains(t, r.SpecIDs(), c.ID)
		}
		require.Equal(t, appendPushBytes, r.PushConstantBytes())
		if access == problem.AccessDescriptors {
			require.EqualValues(t, appendBindings, desc.StorageBuffers)
		}
		for dim := 1; dim <= 576; dim++ {
			v := appendVariant{dim: dim}
			require.Zero(t, appendLocal%v.lanes(), dim)
			for _, kv := range problem.KVTypes() {
				if dim%kv.Unit() != 0 {
					continue
				}
				bytes, err := r.SharedBytes(map[uint32]uint32{shaders.ConstLocalSize: appendLocal, shaders.ConstHeadDim: uint32(dim),
					shaders.ConstLanesPerRow: v.lanes(), shaders.ConstCacheType: uint32(kv)})
				require.NoError(t, err)
				require.LessOrEqual(t, bytes, uint64(16384), "%d %v: what every device has", dim, kv)
			}
		}
	}
}

// Pieces of a row as they are stored, against the values that their formats name.
func TestEncodeKV(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	row := make([]float32, 32)
	row[0], row[1], row[2], row[17] = 127, -0.5, 2.5, -126.6
	got := make([]byte, 34)
	require.EqualValues(t, 1, encodeKV(got, row, problem.KVInt8, problem.F16))
	require.Equal(t, []byte{127, 0, 2, 0x81}, []byte{got[0], got[1], got[2], got[17]})
	encodeKV(got, row, problem.KVQ8_0, problem.F16)
	require.Equal(t, []byte{0x00, 0x3c, 127, 0xff, 3}, got[:5], "an f16 of 1, then the numbers")
	row[0] = -128
	encodeKV(got, row, problem.KVQ4_0, problem.F16)
	require.Equal(t, []byte{0x00, 0x4c, 0x80, 0x08}, got[:4], "an f16 of 16; -128 is 0, -126.6 is 0, the rest 8")
	row = []float32{448, -0x1p-9, 0x1p-10, 0.9375 * 0x1p-6, 17, 19, 1}
	require.EqualValues(t, 1, encodeKV(got, row, problem.KVFP8, problem.F16))
	require.Equal(t, []byte{0x7e, 0x81, 0x00, 0x08, 0x58, 0x5a, 0x38}, got[:7])
	for _, kv := range []problem.KVType{problem.KVInt8, problem.KVFP8} {
		require.Zero(t, encodeKV(got, []float32{0, 0x1p-101}, kv, problem.F16))
		require.Equal(t, []byte{0, 0}, got[:2])
		for _, bad := range []float32{inf, -inf, nan} {
			scale := encodeKV(got, []float32{1, bad}, kv, problem.F16)
			require.True(t, scale != scale)
			require.Equal(t, []byte{0, 0}, got[:2])
		}
	}
}
