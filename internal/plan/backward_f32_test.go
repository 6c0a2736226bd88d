package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

func f32Config(d, dv int) problem.Config {
	return problem.Config{DType: problem.F32, HeadDim: d, HeadDimV: dv}
}

func f32Caps() *vk.Caps {
	c := backwardCaps()
	c.Int16 = true
	return c
}

// The float32 kernels of gradients on an H200's numbers: tiles, modules and memory.
func TestBackwardF32TilesOnAnH200(t *testing.T) {
	caps := f32Caps()
	for _, x := range []struct {
		d, dv                  int
		dKdV, dQ, rest, scores string
	}{
		{16, 16, "64x32 16x16 8sg1 g2", "256x32 16x16 8sg2 g2", "64x16 16x16 8sg1 g1", ""},
		{64, 64, "64x32 16x16 8sg1 g2", "256x32 16x16 8sg2 g2", "64x16 16x16 8sg1 g1", ""},
		{64, 80, "64x16 16x16 8sg1 g2", "256x16 16x16 8sg2 g2 f", "64x16 16x16 8sg1 g1", ""},
		{128, 128, "64x16 16x16 8sg1 g2", "256x16 16x16 8sg2 g2 f", "64x16 16x16 8sg1 g1", ""},
		{160, 160, "256x16 16x16 8sg2 g5 f s2", "256x16 16x16 8sg2 g5 f s2", "128x128 16x16 8sg2 g2 q1", "128x128 16x16 8sg2 g2 q1"},
		{7, 129, "256x16 16x16 8sg2 g5 f s2", "256x16 16x16 8sg2 g5 f s2", "128x128 16x16 8sg2 g2 q1", "128x128 16x16 8sg2 g2 q1"},
		{256, 256, "256x16 16x16 8sg2 g2 f s2", "256x16 16x16 8sg2 g2 f s2", "128x128 16x16 8sg2 g2 q1", "128x128 16x16 8sg2 g2 q1"},
	} {
		for _, tier := range []problem.Tier{problem.TierCoopMat2, problem.TierCoopMat} {
			plan, reason := backwardProblem(t, caps, f32Config(x.d, x.dv), tier, nil)
			require.Empty(t, reason, "%v %d/%d", tier, x.d, x.dv)
			prefix := "backward_" + tier.String() + "_f32_"
			if x.scores == "" {
				require.Equal(t, x.dKdV, plan.kernelOf(t, KernelDKDV).Tile)
				require.Equal(t, prefix+"kv_ssbo", plan.kernelOf(t, KernelDKDV).Kernel)
			} else {
				for k, module := range map[backwardKernel]string{KernelLSE: "scores", KernelScores: "scores", KernelDV: "product", KernelDK: "product", KernelDSK: "product"} {
					require.Equal(t, prefix+module+"_ssbo", plan.kernelOf(t, k).Kernel)
				}
				require.Equal(t, x.scores, plan.kernelOf(t, KernelScores).Tile)
				require.Equal(t, x.dKdV, plan.kernelOf(t, KernelDV).Tile)
				require.Equal(t, x.dKdV, plan.kernelOf(t, KernelDK).Tile)
			}
			require.Equal(t, x.dQ, plan.kernelOf(t, KernelDSK).Tile)
			require.Equal(t, x.rest, plan.kernelOf(t, KernelLSE).Tile)
			for _, k := range plan.Kernels {
				require.LessOrEqual(t, k.SharedBytes, uint64(48<<10), "%s %s", k.Outputs, k.Tile)
			}
			require.Len(t, plan.Notes, 1)
		}
	}
}

// Tiles that are tried on a GPU are within its limits.
func TestBackwardF32NamedTiles(t *testing.T) {
	caps := f32Caps()
	for d, all := range map[int][]string{
		64: {"kv.row_tile=16", "kv.m_frags=2,kv.row_tile=16", "kv.m_frags=2,kv.group=1,kv.fences=1", "kv.fences=1", "add.fences=1",
			"add.m_frags=1,add.kv_tile=64", "kv.subgroups=16,kv.group=1"},
		128: {"kv.group=4", "kv.q_smem_chunks=1", "kv.q_smem_chunks=1,kv.group=4", "kv.fences=0", "add.m_frags=1,add.kv_tile=32", "add.group=1", "scores.group=2"},
		192: {"scores.row_tile=64,scores.q_smem_chunks=2", "scores.m_frags=1", "dv.slices=4,dk.slices=3,add.slices=4", "dv.row_tile=32,dk.row_tile=32,add.kv_tile=32"},
	} {
		for _, text := range all {
			named, err := NamedTiles(text)
			require.NoError(t, err)
			for _, tier := range []problem.Tier{problem.TierCoopMat2, problem.TierCoopMat} {
				_, reason := backwardProblem(t, caps, f32Config(d, d), tier, named)
				require.Empty(t, reason, "%s at head dim %d on %v", text, d, tier)
			}
		}
	}
	for _, x := range []struct{ text, want string }{
		{"scores.row_tile=48", "not divided by its subgroups"}, {"scores.kv_tile=96", "not divided by its subgroups"},
		{"scores.q_smem_chunks=0", "no chunk in shared memory"}, {"scores.kv_tile=512,scores.m_frags=8", "do not divide 256"},
		{"dv.slices=0,dv.m_frags=1", "not one of the kernel of dv"}, {"dk.kv_tile=16", "not one of the kernel of dk"},
		{"dv.slices=1", "cannot compute"}, {"dk.m_frags=4,dk.slices=4", "up to 2 fragments of rows"}, {"add.kv_tile=128", "4 of a tile"}, {"add.row_tile=16", "not one of the kernel of add"}, {"scores.q_smem_chunks=2", "bytes of shared memory"},
	} {
		named, err := NamedTiles(x.text)
		require.NoError(t, err)
		_, reason := backwardProblem(t, caps, f32Config(256, 256), problem.TierCoopMat2, named)
		require.Contains(t, reason, x.want, x.text)
	}
	for text, want := range map[string]string{
		"kv.subgroups=3":       "cannot compute",
		"kv.kv_tile=16":        "is not one of the kernel of kv",
		"add.row_tile=16":      "is not one of the kernel of add",
		"add.kv_tile=48":       "do not divide 256",
		"kv.row_tile=128":      "do not divide 192",
		"kv.q_smem_chunks=4":   "has 4 chunks",
		"kv.m_frags=5":         "cannot compute",
		"kv.slices=2":          "is not one of the kernel of kv",
		"kv.row_tile=96":       "bytes of shared memory",
		"kv.kv_step=16":        "has no field kv_step",
		"q.kv_tile=16,q.rows=": "",
	} {
		named, err := NamedTiles(text)
		if want == "" {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		_, reason := backwardProblem(t, caps, f32Config(64, 64), problem.TierCoopMat2, named)
		require.Contains(t, reason, want, text)
	}
}

// Above head dim 128 P and dS are stored first, and then only gradients that are asked for are computed.
func TestBackwardF32InStages(t *testing.T) {
	on := backwardDevice{caps: f32Caps(), accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
	for want, set := range map[string]tensors.GradientSet{
		"stats LSE:0x1 P dS:1x2 dV:1x2 dK:1x2 dQ:0x2": {Q: true, K: true, V: true},
		"stats LSE:0x1 P dS:1x2 dK:1x2":               {K: true},
		"stats LSE:0x1 P dS:1x2 dQ:0x2":               {Q: true},
		"stats LSE:0x1 P dS:1x2 dV:1x2":               {V: true},
	} {
		cfg := f32Config(160, 160)
		r := BackwardRequest{Shape: problem.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 100, Sk: 100}, Access: problem.AccessDescriptors, Want: set}
		var plan chosenBackward
		require.Empty(t, plan.chooseKernels(&on, &cfg, problem.TierCoopMat2, &r, nil))
		var got []string
		for _, k := range plan.Kernels {
			text := k.Outputs
			if k.Variant.Kernel != KernelStats { // STORE_DS, and workgroups along z
				text += fmt.Sprintf(":%dx%d", k.Variant.constants()[shaders.ConstStoreDs], k.Variant.GridDepth(&r.Shape))
			}
			got = append(got, text)
		}
		require.Equal(t, want, strings.Join(got, " "))
		require.EqualValues(t, 16*4*100+8*2*384*256, plan.ScratchBytes) // a head has 200 rows and 100 keys, which every tile divides
	}
}

// What the float32 kernels of gradients do not compute is refused by name.
func TestBackwardF32Refuses(t *testing.T) {
	on := backwardDevice{caps: f32Caps(), accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
	on.caps.Limits.MaxWorkGroupCount[0] = 1<<31 - 1
	request := func() BackwardRequest {
		return BackwardRequest{Shape: problem.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 100, Sk: 100}, Access: problem.AccessDescriptors, Want: tensors.GradientSet{Q: true, K: true, V: true}}
	}
	for want, x := range map[string]func(*problem.Config, *BackwardRequest){
		"take no options":     func(_ *problem.Config, r *BackwardRequest) { r.Options.softcap = true },
		"options":             func(_ *problem.Config, r *BackwardRequest) { r.Want.Sinks = true },
		"head dims up to 256": func(cfg *problem.Config, _ *BackwardRequest) { cfg.HeadDim = 257 },
		"dims up to 256":      func(cfg *problem.Config, _ *BackwardRequest) { cfg.HeadDimV = 320 },
		"takes scores over":   func(cfg *problem.Config, _ *BackwardRequest) { cfg.Scale = problem.ScaleOf(1e30) },
		"row tiles of scores": func(cfg *problem.Config, r *BackwardRequest) {
			cfg.HeadDim, cfg.HeadDimV, r.Shape = 160, 160, problem.Shape{B: 1, Hq: 256, Hkv: 1, Sq: 1 << 16, Sk: 100}
		},
		"storage type of Q": func(cfg *problem.Config, _ *BackwardRequest) { cfg.DType, cfg.F32O = problem.F16, true },
	} {
		cfg, r := f32Config(64, 64), request()
		x(&cfg, &r)
		var plan chosenBackward
		require.Contains(t, plan.chooseKernels(&on, &cfg, problem.TierCoopMat2, &r, nil), want)
	}
	caps := f32Caps()
	caps.Int16 = false
	on.caps = caps
	cfg, r := f32Config(64, 64), request()
	var plan chosenBackward
	require.Contains(t, plan.chooseKernels(&on, &cfg, problem.TierCoopMat2, &r, nil), "shaderInt16")
}

// One alignment for dK and dV: stores of elements next to stores of vectors were lost on an H200.
func TestBackwardF32StoresOfOneAlignment(t *testing.T) {
	on := backwardDevice{caps: f32Caps(), accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
	for _, x := range []struct {
		set            tensors.GradientSet
		dK, dV         uint32
		wantDK, wantDV uint32
	}{
		{tensors.GradientSet{Q: true, K: true, V: true}, 1, 4, 1, 1},
		{tensors.GradientSet{K: true, V: true}, 4, 2, 2, 2},
		{tensors.GradientSet{V: true}, 1, 4, 0, 4},
		{tensors.GradientSet{K: true}, 1, 4, 1, 0},
	} {
		cfg := f32Config(33, 64)
		r := BackwardRequest{Shape: problem.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 100, Sk: 100}, Access: problem.AccessDescriptors, Want: x.set}
		r.Align[tensors.BackwardDK], r.Align[tensors.BackwardDV] = x.dK, x.dV
		var plan chosenBackward
		require.Empty(t, plan.chooseKernels(&on, &cfg, problem.TierCoopMat2, &r, nil))
		v := plan.kernelOf(t, KernelDKDV).Variant
		require.Equal(t, [2]uint32{x.wantDK, x.wantDV}, [2]uint32{v.align[tensors.BackwardDK], v.align[tensors.BackwardDV]}, "%+v", x)
	}
}

// dS of float32 is divided by heads, and by keys where a head does not fit.
func TestF32Chunks(t *testing.T) {
	f := fragment{M: 16, N: 16, K: 16, SumN: 16, Subgroup: 32}
	for _, x := range []struct {
		shape  problem.Shape
		budget uint64
		want   BackwardChunks
	}{
		{problem.Shape{B: 4, Hq: 8, Hkv: 8, Sq: 4096, Sk: 4096}, 4 << 30, BackwardChunks{Heads: 32, Keys: 4096, KeyFrags: 256, RowFrags: 264, DSBytes: 32 * 4224 * 4096 * 4}},
		{problem.Shape{B: 4, Hq: 8, Hkv: 8, Sq: 4096, Sk: 4096}, 2 << 30, BackwardChunks{Heads: 16, Keys: 4096, KeyFrags: 256, RowFrags: 264, DSBytes: 16 * 4224 * 4096 * 4}},
		{problem.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 60000, Sk: 60000}, 2 << 30, BackwardChunks{Heads: 1, Keys: 4352, KeyFrags: 272, RowFrags: 7500, DSBytes: 120000 * 4352 * 4}},
		{problem.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 100, Sk: 300}, 1, BackwardChunks{Heads: 1, Keys: 256, KeyFrags: 16, RowFrags: 12, DSBytes: 192 * 256 * 4}},
	} {
		r := BackwardRequest{Shape: x.shape, Want: tensors.GradientSet{Q: true}}
		got := f32ChunksOf(false, f, &r, x.budget)
		require.Equal(t, x.want, got, "%v", x.shape)
		require.Zero(t, got.Keys%keyUnit)
	}
	stages := BackwardRequest{Shape: problem.Shape{B: 4, Hq: 8, Hkv: 8, Sq: 4096, Sk: 4096}, Want: tensors.GradientSet{K: true}}
	require.Equal(t, BackwardChunks{Heads: 16, Keys: 4096, KeyFrags: 256, RowFrags: 264, DSBytes: 16 * 4224 * 4096 * 8}, f32ChunksOf(true, f, &stages, maxDSBytes))
	require.Zero(t, f32ChunksOf(false, f, &BackwardRequest{Shape: problem.Shape{B: 1, Hq: 1, Sq: 9, Sk: 9}, Want: tensors.GradientSet{K: true}}, 1<<30))
	require.True(t, strings.HasPrefix(termsNote(problem.BF16), "float32 is three terms"))
}
