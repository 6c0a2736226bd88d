package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// backwardProblem plans the kernels of dQ, dK and dV for a device that a test describes.
func backwardProblem(t testing.TB, caps *vk.Caps, cfg problem.Config, tier problem.Tier, pick BackwardPicker) (chosenBackward, string) {
	t.Helper()
	r := BackwardRequest{Shape: problem.Shape{B: 4, Hq: 32, Hkv: 32, Sq: 4096, Sk: 4096}, Access: problem.AccessDescriptors,
		Want: tensors.GradientSet{Q: true, K: true, V: true}}
	for i := range r.Align {
		r.Align[i] = 8
	}
	on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
	var plan chosenBackward
	reason := plan.chooseKernels(&on, &cfg, tier, &r, pick)
	return plan, reason
}

// kernelOf returns a kernel of a plan.
func (plan *chosenBackward) kernelOf(t testing.TB, kernel backwardKernel) BackwardKernel {
	t.Helper()
	for _, k := range plan.Kernels {
		if k.Variant.Kernel == kernel {
			return k
		}
	}
	require.Fail(t, "the plan lacks a kernel")
	return BackwardKernel{}
}

func backwardCaps() *vk.Caps {
	c := h200Caps()
	c.Limits.MaxStorageBuffers = BackwardBindings
	c.MemoryHeaps = []vk.Heap{{Bytes: 64 << 30, DeviceLocal: true}}
	return c
}

func TestNamedTilesChangeTheirKernelAlone(t *testing.T) {
	caps := backwardCaps()
	for _, x := range []struct {
		tier     problem.Tier
		d        int
		text     string
		dQ, dKdV string
		changes  backwardKernel
	}{
		{problem.TierCoopMat2, 64, "q.kv_tile=32", "256x32/32 16x16 8sg2", "256x64/16 16x16 8sg2 q2", KernelDQ},
		{problem.TierCoopMat2, 64, "kv.row_tile=48,kv.q_smem_chunks=1", "256x64/32 16x16 8sg2", "256x48/16 16x16 8sg2 q1", KernelDKDV},
		{problem.TierScalar, 64, "q.kv_tile=32 q.chunk_v=8", "64x32 256t", "64x64 256t", KernelDQ},
	} {
		named, err := NamedTiles(x.text)
		require.NoError(t, err)
		plan, reason := backwardProblem(t, caps, problem.Config{HeadDim: x.d}, x.tier, named)
		require.Empty(t, reason, x.text)
		require.Equal(t, x.dQ, plan.kernelOf(t, KernelDQ).Tile, x.text)
		require.Equal(t, x.dKdV, plan.kernelOf(t, KernelDKDV).Tile, x.text)
		for _, k := range plan.Kernels {
			want := problem.TileHeuristic
			if k.Variant.Kernel == x.changes {
				want = problem.TileNamed
			}
			if k.Variant.tile() == nil {
				want = ""
			}
			require.Equal(t, want, k.Tuning, "%s: %s", x.text, k.Outputs)
		}
	}
}

// A named tile that cannot run is refused with the reason. The table's does not replace it.
func TestNamedTilesThatCannotRunAreRefused(t *testing.T) {
	caps := backwardCaps()
	for text, want := range map[string]string{
		"q.subgroups=64":              "needs 2048 invocations",
		"q.kv_tile=500":               "cannot compute head dims",
		"q.kv_step=0":                 "cannot compute head dims",
		"kv.m_frags=100":              "cannot compute head dims",
		"kv.row_tile=0":               "cannot compute head dims",
		"kv.q_smem_chunks=100":        "has 4 chunks",
		"q.row_tile=64":               "is not one of the kernel of q",
		"q.kv_tile=512":               "has over 4 steps",
		"q.kv_tile=512,q.kv_step=128": "bytes of shared memory",
		"q.chunk_d=8":                 "has no field chunk_d",
	} {
		named, err := NamedTiles(text)
		require.NoError(t, err)
		_, reason := backwardProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, named)
		require.Contains(t, reason, want, text)
	}
	for text, want := range map[string]string{
		"kv.row_tile=128":                "do not divide 192",
		"kv.subgroups=6":                 "do not divide 256",
		"add.kv_tile=48":                 "do not divide 256",
		"add.kv_tile=256,add.kv_step=16": "over 8 steps",
	} {
		named, err := NamedTiles(text)
		require.NoError(t, err)
		_, reason := backwardProblem(t, caps, problem.Config{HeadDim: 128}, problem.TierCoopMat2, named)
		require.Contains(t, reason, want, text)
	}
	for text, want := range map[string]string{
		"": "no tile is named", ",": "no tile is named", "q": "want kernel.field=number", "q.kv_tile": "want kernel.field=number",
		"q.kv_tile=-1": "want kernel.field=number", "q.kv_tile=4294967296": "want kernel.field=number", "q.subgroups=134217729": "up to 65535", // 32 invocations each, modulo 2^32
		"kv_tile=3":        "want kernel.field=number",
		"delta.kv_tile=32": "has no tile", "dq.kv_tile=32": "want one of lse, q, scores, dv, dk, kv, add, bias", "q.m=16": "no tile has a field", "q.owns_keys=1": "no tile has a field",
	} {
		_, err := NamedTiles(text)
		require.ErrorContains(t, err, want, text)
	}
}

// A tuned tile whose grid is over the device's leaves the table's tile. A named one is refused.
func TestATileOverTheGridIsIgnored(t *testing.T) {
	caps := backwardCaps()
	rows := 65535*32 + 1 // more than a grid of tiles of 32 rows
	named, err := NamedTiles("q.subgroups=1")
	require.NoError(t, err)
	plan := func(pick BackwardPicker) (p chosenBackward, reason string) {
		on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
		r := BackwardRequest{Shape: problem.Shape{B: 1, Hq: 1, Hkv: 1, Sq: rows, Sk: 64}, Access: problem.AccessDescriptors, Want: tensors.GradientSet{Q: true}}
		reason = p.chooseKernels(&on, &problem.Config{HeadDim: 64}, problem.TierCoopMat2, &r, pick)
		return p, reason
	}
	_, reason := plan(named)
	require.Contains(t, reason, "the device dispatches")
	p, reason := plan(func(v BackwardVariant, cfg *problem.Config, r *BackwardRequest) BackwardPick {
		pick := named(v, cfg, r)
		pick.Only = false
		return pick
	})
	require.Empty(t, reason)
	require.Equal(t, problem.TileHeuristic, p.kernelOf(t, KernelDQ).Tuning)
	require.Len(t, p.Notes, 1)
	require.Contains(t, p.Notes[0], "the tuned tile of dQ is ignored: a grid of")
}

// Every tile of the tables that a device takes meets the conditions of fits.
func TestTablesOfTheBackwardKernelsFit(t *testing.T) {
	testlevel.OnceOnly(t)
	for name, caps := range tuneDevices {
		c := *caps
		c.Limits.MaxStorageBuffers = BackwardBindings
		for _, tier := range deviceTiers {
			for _, d := range []int{1, 16, 40, 64, 80, 128, 192, 256} {
				plan, reason := backwardProblem(t, &c, problem.Config{HeadDim: d}, tier, nil)
				if reason != "" {
					continue
				}
				for _, k := range plan.Kernels {
					_, reason := k.Variant.fits(&c.Limits)
					require.Empty(t, reason, fmt.Sprint(name, tier, d, k.Outputs))
				}
			}
		}
	}
}
