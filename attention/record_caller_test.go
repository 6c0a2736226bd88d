//go:build cgo

package attention_test

import (
	"runtime/debug"
	"testing"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/require"

	"vkattn/vk"
	"vkattn/vk/goki"
)

// wrap makes a command buffer as a caller would, and Commands that record into it. again
// begins both anew.
func (r *recording) wrap(t testing.TB) (c *vk.Commands, again func()) {
	t.Helper()
	// goki/vulkan frees what it marshals for calls with arrays in finalizers
	// that may run during the call.
	percent := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(percent)
	require.NoError(t, goki.Init(r.dev))
	device := goki.Device(r.dev.VulkanDevice())
	_, family := r.dev.VulkanQueue()
	var pool vulkan.CommandPool
	require.Equal(t, vulkan.Success, vulkan.CreateCommandPool(device, &vulkan.CommandPoolCreateInfo{
		SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: family,
		Flags: vulkan.CommandPoolCreateFlags(vulkan.CommandPoolCreateResetCommandBufferBit),
	}, nil, &pool))
	t.Cleanup(func() { vulkan.DestroyCommandPool(device, pool, nil) })
	list := make([]vulkan.CommandBuffer, 1)
	require.Equal(t, vulkan.Success, vulkan.AllocateCommandBuffers(device, &vulkan.CommandBufferAllocateInfo{
		SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: pool,
		Level: vulkan.CommandBufferLevelPrimary, CommandBufferCount: 1,
	}, list))
	begin := func() {
		require.Equal(t, vulkan.Success, vulkan.BeginCommandBuffer(list[0], &vulkan.CommandBufferBeginInfo{
			SType: vulkan.StructureTypeCommandBufferBeginInfo,
		}))
	}
	begin()
	c, err := r.dev.WrapCommands(goki.FromCommandBuffer(list[0]))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Release()) })
	return c, func() {
		begin()
		require.NoError(t, c.Reset())
	}
}
