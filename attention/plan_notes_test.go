package attention

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// A decode call runs the decode kernel, or its plan has a note that says why not.
func TestPlanNotesDecodingWithoutItsKernel(t *testing.T) {
	dev := deviceUnderTest(t)
	one := Shape{B: 1, Hq: 1, Sq: 1, Sk: 4096}
	group := Shape{B: 1, Hq: 8, Hkv: 1, Sq: 1, Sk: 4096}
	for _, c := range []struct {
		name    string
		tier    Tier
		dim, dv int
		shape   Shape
		why     string // the reason on every device; "" if it depends on the device
		silent  bool
	}{
		{name: "one row", tier: TierCoopMat2, dim: 128, shape: one},
		{name: "a group", tier: TierCoopMat2, dim: 64, shape: group},
		{name: "a group, coopmat", tier: TierCoopMat, dim: 64, shape: group},
		{name: "few keys", tier: TierCoopMat2, dim: 64, shape: Shape{B: 1, Hq: 8, Hkv: 1, Sq: 1, Sk: 20}},
		{name: "latent", tier: TierCoopMat2, dim: 576, dv: 512, shape: group},
		{name: "prefill", tier: TierCoopMat2, dim: 128, shape: Shape{B: 1, Hq: 1, Sq: 512, Sk: 512}, silent: true},
		{name: "scalar", tier: TierScalar, dim: 128, shape: one, silent: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			op, err := New(On(dev), Config{HeadDim: c.dim, HeadDimV: c.dv, Tier: c.tier, FixedSplit: 2})
			if errors.Is(err, ErrUnsupported) && os.Getenv("VKATTN_DRIVER") != "lavapipe" {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer op.Close()
			plan, err := plan.Make(dev, op.cfg, op.typical(c.shape), op.pick)
			require.NoError(t, err)
			t.Log(plan)
			if c.silent || plan.Variant.IsDecode() {
				require.Empty(t, plan.Notes)
				require.Empty(t, c.why)
				return
			}
			require.Len(t, plan.Notes, 1)
			require.True(t, strings.HasPrefix(plan.Notes[0], "the decode kernel is not used: "), plan.Notes[0])
			require.Contains(t, Plan(plan.Plan).String(), "; note: "+plan.Notes[0])
			require.NotContains(t, plan.Notes[0], "within the device's limits")
			if dev.Info().Type == vk.DeviceCPU && c.tier == TierCoopMat {
				c.why = "it needs tier coopmat2"
			}
			require.Contains(t, plan.Notes[0], c.why)
		})
	}
}

// deviceUnderTest opens the device under test.
func deviceUnderTest(t *testing.T) *vk.Device {
	t.Helper()
	if name := os.Getenv("VKATTN_DRIVER"); name == "" || name == "none" {
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	}
	dev, err := vk.Open(vk.Options{PipelineCache: "off", Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	return dev
}

func TestWithoutADeviceOnlyTheCPUTierRuns(t *testing.T) {
	for _, tier := range []Tier{TierScalar, TierCoopMat, TierCoopMat2, TierCUDA} {
		_, err := New(nil, Config{HeadDim: 64, Tier: tier})
		require.ErrorIs(t, err, ErrUnsupported)
		require.ErrorIs(t, err, vk.ErrUnsupported)
	}
	op, err := New(nil, Config{HeadDim: 64})
	require.NoError(t, err)
	plan, err := op.Plan(Shape{B: 2, Hq: 8, Hkv: 2, Sq: 100, Sk: 50})
	require.NoError(t, err)
	require.Equal(t, TierCPU, plan.Tier)
	require.Equal(t, uint64(2*2*8*128*100*50), plan.Flops)
	var shape *ShapeError
	_, err = op.Plan(Shape{B: 2, Hq: 8, Hkv: 3, Sq: 100, Sk: 50})
	require.True(t, errors.As(err, &shape))
}

// On drivers of the CPU tier scalar computes faster than fragments that the driver emulates.
func TestAutoTakesTierScalarOnDriversOfTheCPU(t *testing.T) {
	dev := deviceUnderTest(t)
	if dev.Info().Type != vk.DeviceCPU {
		t.Skip("a GPU")
	}
	for _, dtype := range []DType{F16, BF16, F32} {
		for _, tier := range []Tier{TierAuto, TierScalar, TierCoopMat, TierCoopMat2} {
			op, err := New(On(dev), Config{HeadDim: 64, DType: dtype, Tier: tier})
			if errors.Is(err, ErrUnsupported) && tier > TierScalar {
				continue // the driver lacks it
			}
			require.NoError(t, err)
			want := tier
			if tier == TierAuto {
				want = TierScalar
			}
			for _, rows := range []int{1, 512} {
				shape := Shape{B: 1, Hq: 4, Hkv: 4, Sq: rows, Sk: 512}
				plan, err := op.Plan(shape)
				require.NoError(t, err)
				require.Equal(t, want, plan.Tier, plan)
				backward, err := op.PlanBackward(shape)
				require.NoError(t, err)
				require.Equal(t, want, backward.Tier, backward)
				if tier == TierAuto {
					require.Contains(t, plan.Reason, "a driver of the CPU")
					require.Len(t, plan.Rejected, 2, "the other tiers have a reason too")
					require.Len(t, backward.Rejected, 2)
					require.Contains(t, backward.Reason, "a driver of the CPU")
				}
			}
			require.NoError(t, op.Close())
		}
	}
}

// A device that a program wraps may have more than the program has enabled.
func TestReasonsTellLackingFromNotEnabled(t *testing.T) {
	dev := testdevice.Open(t)
	queue, family := dev.VulkanQueue()
	wrapped, err := vk.Wrap(vk.External{Instance: dev.VulkanInstance(), PhysicalDevice: dev.VulkanPhysicalDevice(), Device: dev.VulkanDevice(),
		Queue: queue, QueueFamily: family, APIVersion: 1<<22 | 3<<12, Enabled: vk.Caps{TimelineSemaphore: true}, PipelineCache: "off"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, wrapped.Close()) })
	says := func(on *vk.Device, want string, cfg Config) {
		t.Helper()
		_, err := New(On(on), cfg)
		require.ErrorIs(t, err, ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	cfg := Config{HeadDim: 64, Tier: TierCoopMat}
	if dev.Caps().CoopMat {
		says(wrapped, "the device has VK_KHR_cooperative_matrix, vulkanMemoryModel, shaderFloat16, subgroupSizeControl, computeFullSubgroups, not enabled", cfg)
	} else {
		says(wrapped, "the device lacks VK_KHR_cooperative_matrix", cfg)
		says(dev, "the device lacks VK_KHR_cooperative_matrix", cfg)
	}
	if dev.Caps().BufferDeviceAddress {
		says(wrapped, "the device has bufferDeviceAddress, not enabled", Config{HeadDim: 64, Access: AccessAddresses})
	}
}
