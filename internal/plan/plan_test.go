package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/shaders"
	"vkattn/vk"
)

// The planner is tested with the limits that devices report, without a device.

func minimalCaps() *vk.Caps {
	return &vk.Caps{
		SubgroupSize: 4, SubgroupOps: vk.SubgroupBasic,
		Limits: vk.Limits{
			MaxSharedBytes: 16 << 10, MaxInvocations: 128,
			MaxWorkGroupSize: [3]uint32{128, 128, 64}, MaxWorkGroupCount: [3]uint32{65535, 65535, 65535},
			MaxStorageBufferRange: 1 << 27, MinStorageBufferOffsetAlignment: 256, MaxPushConstantBytes: 128,
		},
	}
}

func coopmatCaps(m, n, k, subgroup, shared uint32) *vk.Caps {
	c := minimalCaps()
	c.Float16, c.BFloat16, c.BFloat16CoopMat, c.BufferDeviceAddress = true, true, true, true
	c.CoopMat, c.VulkanMemoryModel, c.SubgroupSizeControl, c.FullSubgroups = true, true, true, true
	c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize = subgroup, subgroup, subgroup
	c.SubgroupOps |= vk.SubgroupVote | vk.SubgroupBallot
	c.Limits.MaxSharedBytes, c.Limits.MaxInvocations = shared, 1024
	c.Limits.MaxWorkGroupSize = [3]uint32{1024, 1024, 64}
	for _, t := range []vk.ComponentType{vk.Float16, vk.BFloat16} {
		c.CoopMatShapes = append(c.CoopMatShapes, vk.CoopMatShape{
			M: m, N: n, K: k, A: t, B: t, C: vk.Float32, Result: vk.Float32, Scope: vk.ScopeSubgroup})
	}
	return c
}

func h200Caps() *vk.Caps {
	c := coopmatCaps(16, 16, 16, 32, 48<<10)
	c.CoopMat2.Reductions, c.CoopMat2.Conversions, c.CoopMat2.PerElement, c.Maintenance4 = true, true, true, true
	return c
}

func headDimPairs() [][2]int {
	var pairs [][2]int
	for d := 1; d <= problem.MaxHeadDim; d++ {
		pairs = append(pairs, [2]int{d, d})
	}
	for d := 64; d <= 1024; d += 64 { // the larger pairs that a Config may have
		for dv := 64; dv <= 1024; dv += 64 {
			if max(d, dv) > problem.MaxHeadDim && (problem.Config{HeadDim: d, HeadDimV: dv}).Validate() == nil {
				pairs = append(pairs, [2]int{d, dv})
			}
		}
	}
	return append(pairs, [][2]int{{192, 128}, {128, 64}, {1, 256}, {256, 1}}...)
}

func TestEveryHeadDimHasATileWithinTheLimits(t *testing.T) {
	testlevel.OnceOnly(t)
	devices := map[string]*vk.Caps{
		"16x16x16, 32 invocations, 48 KiB": h200Caps(),
		"16x16x16, 64 invocations, 64 KiB": coopmatCaps(16, 16, 16, 64, 64<<10),
		"8x16x16, 16 invocations, 64 KiB":  coopmatCaps(8, 16, 16, 16, 64<<10),
		"8x8x8, 8 invocations, 32 KiB":     coopmatCaps(8, 8, 8, 8, 32<<10),
		"Vulkan 1.1 minimum":               minimalCaps(),
	}
	for name, caps := range devices {
		for _, tier := range deviceTiers {
			for _, dt := range []problem.DType{problem.F16, problem.BF16, problem.F32} {
				if tier != problem.TierScalar {
					if _, reason := pickFragment(caps, tier, dt); reason != "" {
						continue
					}
				}
				t.Run(fmt.Sprintf("%s/%v/%v", name, tier, dt), func(t *testing.T) {
					for _, d := range headDimPairs() {
						for _, sq := range []int{1, 16, 17, 100, 4096} {
							for _, access := range []problem.Access{problem.AccessAddresses, problem.AccessDescriptors} {
								if access == problem.AccessAddresses && !caps.BufferDeviceAddress {
									continue
								}
								cfg := problem.Config{DType: dt, HeadDim: d[0], HeadDimV: d[1]}
								r := Request{Shape: problem.Shape{B: 1, Hq: 1, Sq: sq, Sk: 100}, Access: access, Align: [4]uint32{1, 1, 1, 1}}
								v, shared, reason := chooseVariant(caps, cfg, tier, r)
								require.Empty(t, reason, "head dims %v, Sq %d, %v", d, sq, access)
								require.LessOrEqual(t, shared, uint64(caps.Limits.MaxSharedBytes))
								require.LessOrEqual(t, v.Tile.LocalSize(), caps.Limits.MaxInvocations)
								checkTile(t, v)
							}
						}
					}
				})
			}
		}
	}
}

// checkTile checks what the kernels assume of their constants.
func checkTile(t *testing.T, v Variant) {
	t.Helper()
	x := v.Tile
	require.NotZero(t, x.Rows())
	require.Zero(t, x.columns()%8*(v.Slices()-1), "each of several slices starts at a multiple of 8 columns")
	switch x := x.(type) {
	case coopmatTile:
		require.Zero(t, x.KVTile%x.N)
		require.GreaterOrEqual(t, x.KVTile, x.M, "Q goes through the space of a KV tile")
		require.Equal(t, x.N, x.K)
	case decodeTile:
		require.Zero(t, x.KVTile%x.N)
	case scalarTile:
		require.Zero(t, x.ThreadsX%4)
		require.Zero(t, x.KVTile%x.ThreadsX)
		require.Zero(t, x.BlockRows%x.threadsY())
		require.Zero(t, x.ChunkD%8)
		require.Zero(t, x.ChunkV%4)
		require.Zero(t, x.KVTile%x.ChunkV)
	}
}

func TestTiersAreRefusedByName(t *testing.T) {
	h200, lacking := h200Caps(), h200Caps()
	lacking.CoopMat2.Reductions = false
	noVote := h200Caps()
	noVote.SubgroupOps = vk.SubgroupBasic
	for _, c := range []struct {
		name string
		caps *vk.Caps
		tier problem.Tier
		dt   problem.DType
		want string
	}{
		{"float32 on fragments", h200, problem.TierCoopMat2, problem.F32, "no float32 cooperative matrices"},
		{"no reductions", lacking, problem.TierCoopMat2, problem.F16, "cooperativeMatrixReductions"},
		{"reductions are not asked of coopmat", lacking, problem.TierCoopMat, problem.F16, ""},
		{"no vote", noVote, problem.TierCoopMat, problem.F16, "subgroup vote"},
		{"nothing at all", minimalCaps(), problem.TierCoopMat, problem.F16, "VK_KHR_cooperative_matrix"},
		{"K is not N", coopmatCaps(16, 8, 16, 32, 48<<10), problem.TierCoopMat, problem.F16, "K = N"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, reason := pickFragment(c.caps, c.tier, c.dt)
			if c.want == "" {
				require.Empty(t, reason)
			} else {
				require.Contains(t, reason, c.want)
			}
		})
	}
}

// The constants of a variant are constants of its module.
func TestVariantsUseTheirModulesConstants(t *testing.T) {
	for _, tier := range deviceTiers {
		for _, access := range []problem.Access{problem.AccessAddresses, problem.AccessDescriptors} {
			v, _, reason := chooseVariant(h200Caps(), problem.Config{HeadDim: 64}, tier,
				Request{Shape: problem.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64}, Access: access, Align: [4]uint32{8, 8, 8, 8}})
			require.Empty(t, reason)
			m, err := shaders.Get(v.module)
			require.NoError(t, err)
			r, err := m.Reflect()
			require.NoError(t, err)
			ids := r.SpecIDs()
			for id := range v.constants() {
				require.Contains(t, ids, id, "%s has no constant %d", v.module, id)
			}
			require.Equal(t, int(DensePushBytes), r.PushConstantBytes())
		}
	}
}
