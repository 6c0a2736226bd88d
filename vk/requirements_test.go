//go:build !windows

package vk

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// saxpyNeeds are the requirements of a kernel with addresses.
func saxpyNeeds(t *testing.T) Requirements {
	t.Helper()
	r, err := Require(func(c *Caps) ([]*PipelineDesc, string) {
		desc := saxpyAddress(t, 1)
		desc.SharedBytes, desc.FullSubgroups = 10000, true
		return []*PipelineDesc{desc}, c.Without(Need{"matrices", func(c *Caps) bool { return len(c.CoopMatShapes) > 0 && c.CoopMat2.PerElement }})
	})
	require.NoError(t, err)
	return r
}

func TestRequirementsHaveVulkansNames(t *testing.T) {
	r := saxpyNeeds(t)
	require.Equal(t, `Vulkan 1.2.0
computeFullSubgroups (VK_EXT_subgroup_size_control), part of Vulkan 1.3.0
timelineSemaphore
bufferDeviceAddress
cooperativeMatrix (VK_KHR_cooperative_matrix)
cooperativeMatrixPerElementOperations (VK_NV_cooperative_matrix2)
cooperative matrices such as 16x16x16 bf16*bf16+f32->f32 subgroup
maxComputeSharedMemorySize >= 10000
maxComputeWorkGroupInvocations >= 64
maxComputeWorkGroupSize[0] >= 64
maxPushConstantsSize >= 24`, r.String())
	var enabled Caps
	enabled.FullSubgroups, enabled.TimelineSemaphore, enabled.BufferDeviceAddress = true, true, true
	enabled.CoopMat, enabled.CoopMat2.PerElement = true, true
	require.Equal(t, enabled.bits(), r.Enabled.bits())
	matrices := []string{"VK_KHR_cooperative_matrix", "VK_NV_cooperative_matrix2"}
	require.Equal(t, matrices, r.Extensions(1<<22|3<<12))
	require.Equal(t, append([]string{"VK_EXT_subgroup_size_control"}, matrices...), r.Extensions(1<<22|2<<12))
	require.Equal(t, append([]string{"VK_EXT_subgroup_size_control", "VK_KHR_timeline_semaphore", "VK_KHR_buffer_device_address"}, matrices...), r.Extensions(1<<22|1<<12))

	_, err := Require(nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Require(func(*Caps) ([]*PipelineDesc, string) { return nil, "never" })
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "never")
	_, err = Require(func(*Caps) ([]*PipelineDesc, string) { return make([]*PipelineDesc, 1), "" })
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "no pipeline")
}

func TestRequirementsMissing(t *testing.T) {
	newFakeDevices(t, "2 nothing 32 32 32")
	list, err := Devices()
	require.NoError(t, err)
	d := list[0]
	r := saxpyNeeds(t)
	require.Equal(t, "cooperativeMatrix (VK_KHR_cooperative_matrix), cooperativeMatrixPerElementOperations (VK_NV_cooperative_matrix2): not supported", r.Missing(&d))
	d.Caps.CoopMat, d.Caps.CoopMat2.PerElement = true, true
	require.Equal(t, "the device lacks matrices (not supported)", r.Missing(&d), "neither a feature nor a limit")
	d.Caps.CoopMatShapes = make([]CoopMatShape, 1)
	require.Empty(t, r.Missing(&d))
	d.Caps.Limits.MaxSharedBytes = 9999
	require.Contains(t, r.Missing(&d), "10000 bytes of shared memory, the device has 9999")
	require.Equal(t, "no device", r.Missing(nil))
}

// The chain has a structure for each feature, and no other.
func TestFeatureChain(t *testing.T) {
	r := saxpyNeeds(t)
	r.Enabled.Int64, r.Enabled.RobustBufferAccess = true, true
	c, err := r.Chain()
	require.NoError(t, err)
	type structure struct {
		kind uint32
		next *structure
		flag [55]uint32
	}
	head := (*structure)(c.Pointer())
	require.EqualValues(t, 1000059000, head.kind, "VkPhysicalDeviceFeatures2")
	for i, on := range head.flag {
		require.Equal(t, i == 0 || i == 40, on != 0, i) // robustBufferAccess, shaderInt64
	}
	got := map[uint32][2]uint32{}
	for s := head.next; s != nil; s = s.next {
		got[s.kind] = [2]uint32(s.flag[:2])
		require.Zero(t, uintptr(unsafe.Pointer(s))%8)
	}
	require.Equal(t, map[uint32][2]uint32{
		1000225002: {0, 1}, // VkPhysicalDeviceSubgroupSizeControlFeatures: computeFullSubgroups
		1000207000: {1, 0}, // VkPhysicalDeviceTimelineSemaphoreFeatures
		1000257000: {1, 0}, // VkPhysicalDeviceBufferDeviceAddressFeatures
		1000506000: {1, 0}, // VkPhysicalDeviceCooperativeMatrixFeaturesKHR
		1000593000: {0, 0}, // VkPhysicalDeviceCooperativeMatrix2FeaturesNV: cooperativeMatrixPerElementOperations is the fifth
	}, got)
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(func() { assert.NoError(t, c.Close()) })
	}
	closing.Wait()
	require.Nil(t, c.Pointer())
	require.NoError(t, c.Close())
	require.NoError(t, (*FeatureChain)(nil).Close())
	require.Nil(t, new(FeatureChain).Pointer())
	_, err = Requirements{Features: r.Features, Enabled: r.Enabled}.Chain()
	require.ErrorIs(t, err, ErrInvalid, "not of Require")
}
