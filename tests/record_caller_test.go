//go:build cgo

package tests

import (
	"runtime/debug"
	"testing"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/require"

	"vkattn/vk"
	"vkattn/vk/goki"
)

// callersCommands is a caller's command buffer. The caller's side uses goki/vulkan, which
// frees the memory that it marshals for array calls in finalizers that may run during the
// call. So the garbage collector is off until the test ends.
type callersCommands struct {
	dev  *vk.Device
	list []vulkan.CommandBuffer
}

func newCallersCommands(t *testing.T, dev *vk.Device) *callersCommands {
	t.Helper()
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	require.NoError(t, goki.Init(dev))
	device := goki.Device(dev.VulkanDevice())
	_, family := dev.VulkanQueue()
	var pool vulkan.CommandPool
	require.Equal(t, vulkan.Success, vulkan.CreateCommandPool(device, &vulkan.CommandPoolCreateInfo{
		SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: family,
	}, nil, &pool))
	t.Cleanup(func() { vulkan.DestroyCommandPool(device, pool, nil) })
	r := &callersCommands{dev: dev, list: make([]vulkan.CommandBuffer, 1)}
	require.Equal(t, vulkan.Success, vulkan.AllocateCommandBuffers(device, &vulkan.CommandBufferAllocateInfo{
		SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: pool,
		Level: vulkan.CommandBufferLevelPrimary, CommandBufferCount: 1,
	}, r.list))
	return r
}

// begin begins the command buffer, to be executed any number of times.
func (r *callersCommands) begin(t *testing.T) *vk.Commands {
	t.Helper()
	require.Equal(t, vulkan.Success, vulkan.BeginCommandBuffer(r.list[0], &vulkan.CommandBufferBeginInfo{
		SType: vulkan.StructureTypeCommandBufferBeginInfo,
	}))
	c, err := r.dev.WrapCommands(goki.FromCommandBuffer(r.list[0]))
	require.NoError(t, err)
	return c
}

func (r *callersCommands) end(t *testing.T) {
	t.Helper()
	require.Equal(t, vulkan.Success, vulkan.EndCommandBuffer(r.list[0]))
}

// submit executes it and waits.
func (r *callersCommands) submit(t *testing.T) {
	t.Helper()
	require.NoError(t, r.dev.WithQueue(func(handle vk.VkQueue) {
		queue := goki.Queue(handle)
		require.Equal(t, vulkan.Success, vulkan.QueueSubmit(queue, 1, []vulkan.SubmitInfo{{
			SType: vulkan.StructureTypeSubmitInfo, CommandBufferCount: 1, PCommandBuffers: r.list,
		}}, nil))
		require.Equal(t, vulkan.Success, vulkan.QueueWaitIdle(queue))
	}))
}
