package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// With the limits of an H200 the planner chooses the decode tiles that were fastest in
// docs/log/vulkan.md.
func TestDecodingTakesTheTilesThatWon(t *testing.T) {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes = 132, 256
	caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{ // and of bfloat16 none
		M: 16, N: 8, K: 16, A: vk.Float16, B: vk.Float16, C: vk.Float32, Result: vk.Float32, Scope: vk.ScopeSubgroup})
	for _, c := range []struct {
		name  string
		dim   int
		dtype problem.DType
		b     int
		sq    int
		set   func(*Request)
		fixed int
		want  string
	}{
		{name: "two splits per row", dim: 128, b: 8, want: "8x16 16x16 8sg decode prefetch2"},
		{name: "a row for each core", dim: 128, b: 32, want: "8x16 16x16 4sg decode prefetch2"},
		{name: "splits that the caller fixed", dim: 128, b: 8, fixed: 2, want: "8x16 16x16 4sg decode prefetch2"},
		{name: "16 rows", dim: 128, b: 32, sq: 4, want: "16x16 16x16 4sg decode prefetch1"},
		{name: "short rows", dim: 64, b: 8, want: "8x32 16x16 8sg decode prefetch2"},
		{name: "short rows over small pages", dim: 64, b: 8, set: func(r *Request) { r.Options.pageSize = 8 }, want: "8x32 16x16 8sg decode"},
		{name: "small pages", dim: 128, b: 8, set: func(r *Request) { r.Options.pageSize = 8 }, want: "8x16 16x16 8sg decode prefetch2"},
		{name: "a list", dim: 128, b: 8, set: func(r *Request) { r.Options.sparseTokens, r.SparseTokens = sparseLists, 640 }, want: "8x16 16x16 8sg decode prefetch1"},
		{name: "quantized", dim: 128, b: 8, set: func(r *Request) {
			r.Options.KV, r.Options.valueType = problem.KVInt8, problem.KVInt8
		}, want: "8x32 16x16 8sg decode prefetch2"},
		{name: "quantized, 16 rows", dim: 128, b: 32, sq: 4, set: func(r *Request) {
			r.Options.KV, r.Options.valueType = problem.KVFP8, problem.KVFP8
		}, want: "16x32 16x16 4sg decode"},
		{name: "quantized in blocks", dim: 128, b: 8, set: func(r *Request) {
			r.Options.KV, r.Options.valueType = problem.KVQ8_0, problem.KVQ8_0
		}, want: "8x32 16x16 8sg decode"},
		{name: "quantized, short rows", dim: 64, b: 8, set: func(r *Request) {
			r.Options.KV, r.Options.valueType = problem.KVInt8, problem.KVInt8
		}, want: "8x32 16x16 8sg decode prefetch2"},
		{name: "quantized, not in pairs", dim: 256, b: 4, set: func(r *Request) {
			r.Options.KV, r.Options.valueType = problem.KVInt8, problem.KVInt8
		}, want: "8x16 16x16 4sg decode q16 prefetch1"},
		{name: "in pairs", dim: 256, b: 4, want: "8x16 16x16 8sg decode q16 dim-split2 prefetch1"},
		{name: "in pairs, a row for each core", dim: 256, b: 32, want: "8x16 16x16 4sg decode q16 dim-split2 prefetch1"},
		{name: "in pairs, 16 rows", dim: 256, b: 4, sq: 4, want: "16x16 16x16 8sg decode q16 dim-split2 prefetch1"},
		{name: "in pairs, bfloat16", dim: 256, dtype: problem.BF16, b: 4, want: "16x16 16x16 8sg decode q16 dim-split2"},
		{name: "not in pairs", dim: 192, b: 4, want: "8x16 16x16 4sg decode q12"},
		{name: "latent", dim: 576, b: 32, want: "8x16 16x16 4sg decode dim-split4"},
	} {
		cfg := problem.Config{DType: c.dtype, HeadDim: c.dim, FixedSplit: c.fixed}
		r := Request{Shape: problem.Shape{B: c.b, Hq: 32, Hkv: 8, Sq: max(c.sq, 1), Sk: 32000}, Access: problem.AccessAddresses,
			Align: [4]uint32{8, 8, 8, 8}, operands: operandsInRegisters}
		if c.set != nil {
			c.set(&r)
		}
		v, _, reason := chooseVariant(caps, cfg, problem.TierCoopMat2, r)
		require.Empty(t, reason, c.name)
		assert.Equal(t, c.want, v.Tile.String(), c.name)
	}
}
