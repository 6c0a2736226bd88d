package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// convertCaps are those of an H200 as far as conversion depends on them.
func convertCaps() *vk.Caps {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes = 132, 256
	caps.Limits.MaxWorkGroupCount = [3]uint32{1<<31 - 1, 65535, 65535}
	caps.MemoryHeaps = []vk.Heap{{Bytes: 141 << 30, DeviceLocal: true}}
	return caps
}

// K and V are converted in front of calls with many rows, and only where each element gets the number that the kernels use and no
// scale is lost.
func TestConvertsWhereRowsAreMany(t *testing.T) {
	type change func(*problem.Config, *Request)
	prefill := problem.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 2048, Sk: 2048}
	shape := func(s problem.Shape) change { return func(_ *problem.Config, r *Request) { r.Shape = s } }
	for name, c := range map[string]struct {
		change change
		yes    bool
		why    string // "": the kernel converts them in less time
	}{
		"prefill":           {shape(prefill), true, "in front of the kernel"},
		"causal":            {func(c *problem.Config, _ *Request) { c.Causal = problem.BottomRight }, true, "in front"},
		"chunk of a prompt": {shape(problem.Shape{B: 4, Hq: 32, Hkv: 8, Sq: 512, Sk: 8192}), true, "in front"},
		"pages":             {func(_ *problem.Config, r *Request) { r.Options.pageSize = 16 }, true, "in front"},
		"float8":            {func(c *problem.Config, _ *Request) { c.KeyType, c.ValueType = problem.KVFP8, problem.KVFP8 }, true, "in front"},
		"blocks of float16": {func(c *problem.Config, _ *Request) {
			c.DType, c.KeyType, c.ValueType = problem.F16, problem.KVQ8_0, problem.KVQ4_0
		}, true, "in front"},
		"decode":     {shape(problem.Shape{B: 8, Hq: 32, Hkv: 8, Sq: 1, Sk: 8192}), false, ""},
		"a few rows": {shape(problem.Shape{B: 8, Hq: 32, Hkv: 8, Sq: 16, Sk: 8192}), false, ""},
		"a mixed batch": {func(_ *problem.Config, r *Request) {
			r.Options.Lengths, r.TotalQ, r.Shape.B = LengthCuQ|lengthUsedK, 2048+600, 601
		}, false, ""},
		"a narrow window": {func(c *problem.Config, r *Request) {
			c.Window, r.Shape.Sk = problem.WindowOf(63, 0), 1<<17
		}, false, ""},
		"a narrow window, causal": {func(c *problem.Config, r *Request) {
			c.Causal, c.Window, r.Shape.Sk = problem.BottomRight, problem.WindowOf(63, -1), 1<<17
		}, false, ""},
		"attention chunks": {func(c *problem.Config, r *Request) {
			c.Causal, c.AttentionChunk, r.Shape.Sk = problem.BottomRight, 64, 1<<17
		}, false, ""},
		"not quantized":     {func(c *problem.Config, _ *Request) { c.KeyType, c.ValueType = problem.KVSame, problem.KVSame }, false, ""},
		"never":             {func(_ *problem.Config, r *Request) { r.Experiment.ConvertKV = -1 }, false, ""},
		"a few, anyway":     {func(_ *problem.Config, r *Request) { r.Experiment.ConvertKV, r.Shape.Sq = 1, 1 }, true, "in front"},
		"scales of float16": {func(c *problem.Config, _ *Request) { c.DType = problem.F16 }, false, "may exceed float16"},
		"float32":           {func(c *problem.Config, _ *Request) { c.DType = problem.F32 }, false, "Q is float32"},
		"fixed splits":      {func(c *problem.Config, _ *Request) { c.FixedSplit = 2 }, false, "must not depend on its batch"},
		"head dim 20":       {func(c *problem.Config, _ *Request) { c.HeadDim = 20 }, false, "multiples of 8"},
		"sparse tokens":     {func(_ *problem.Config, r *Request) { r.Options.sparseTokens, r.SparseTokens = sparseLists, 2048 }, false, "some of the keys"},
		"blocks of keys":    {func(_ *problem.Config, r *Request) { r.Options.mapRows, r.Options.mapKeys = 64, 64 }, false, "some of the keys"},
		"a map of tiles":    {func(_ *problem.Config, r *Request) { r.BlockMap = true }, false, "brings a map"},
		"2 GiB of scratch":  {shape(problem.Shape{B: 1, Hq: 32, Hkv: 32, Sq: 1 << 17, Sk: 1 << 17}), false, "more than 1.0 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := problem.Config{DType: problem.BF16, HeadDim: 128, KeyType: problem.KVInt8, ValueType: problem.KVInt8}
			r := Request{Shape: prefill, Access: problem.AccessAddresses, Align: [4]uint32{8, 8, 8, 8}}
			c.change(&cfg, &r)
			r.Options.KV, r.Options.valueType = cfg.KeyType, cfg.ValueType
			yes, why := r.converts(convertCaps(), &cfg)
			require.Equal(t, c.yes, yes, why)
			require.Contains(t, why, c.why)
			require.Equal(t, c.why == "", why == "", why)
		})
	}
}

// Descriptors reach less memory than addresses.
func TestConvertsWithinADescriptor(t *testing.T) {
	caps := convertCaps()
	caps.Limits.MaxStorageBufferRange, caps.Limits.MaxStorageBuffers = 1<<20, 32
	cfg := problem.Config{DType: problem.BF16, HeadDim: 64, KeyType: problem.KVInt8, ValueType: problem.KVInt8}
	for _, access := range []problem.Access{problem.AccessAddresses, problem.AccessDescriptors} {
		r := Request{Shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 4096, Sk: 4096}, Access: access, Align: [4]uint32{8, 8, 8, 8}}
		yes, why := r.converts(caps, &cfg)
		require.Equal(t, access == problem.AccessAddresses, yes, why)
	}
}

// The choice is the same in the range of Sk that it tells, with as much scratch memory as the limit at the most.
func TestConversionIsTheSameInItsRange(t *testing.T) {
	caps, random := convertCaps(), rand.New(rand.NewPCG(5, 6))
	yesses := 0
	for range 3000 {
		cfg := problem.Config{DType: problem.BF16, HeadDim: 64 << random.IntN(3), Causal: problem.Causal(random.IntN(3)), KeyType: problem.KVInt8, ValueType: problem.KVFP8}
		of := func(sk int) (bool, KeyRange) {
			keys := KeyRange{1, math.MaxInt}
			r := Request{Shape: problem.Shape{B: 4, Hq: 32, Hkv: 8, Sq: 200, Sk: sk}, Access: problem.AccessAddresses, seen: &keys}
			yes, _ := r.converts(caps, &cfg)
			return yes, keys
		}
		sk := 1 + random.IntN(1<<(2+random.IntN(18)))
		yes, keys := of(sk)
		require.True(t, keys.Holds(sk))
		for _, other := range []int{keys.From, keys.Below - 1, keys.From + (keys.Below-keys.From)/3} {
			same, _ := of(other)
			require.Equal(t, yes, same, fmt.Sprintf("%v: %d and %d", cfg, sk, other))
		}
		if yes {
			yesses++
			kv := ConvertedKVOf(&cfg, &problem.Shape{Hq: 32, Hkv: 8}, 4*uint64(sk))
			require.LessOrEqual(t, kv.Bytes, uint64(convertMost))
		}
	}
	require.Greater(t, yesses, 300)
}
