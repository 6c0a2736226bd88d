package tests

import (
	"runtime/debug"
	"testing"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// A program that has a command buffer of its own records attention into it,
// and submits it to its own queue.
func TestRecordIntoTheCallersCommandBuffer(t *testing.T) {
	s := openDevice(t)
	// The caller's side is written with goki/vulkan, which frees what it
	// marshals for array calls in finalizers that may run during the call.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, access := range []attention.Access{attention.AccessAddresses, attention.AccessDescriptors} {
		if access == attention.AccessAddresses && !s.dev.Caps().BufferDeviceAddress {
			continue
		}
		t.Run(access.String(), func(t *testing.T) {
			c := small
			c.Access = access
			d := newDeviceProblem(t, s.dev, c, scalarF16)
			device := s.dev.VulkanDevice()
			_, family := s.dev.VulkanQueue()

			var pool vulkan.CommandPool
			require.Equal(t, vulkan.Success, vulkan.CreateCommandPool(device, &vulkan.CommandPoolCreateInfo{
				SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: family,
			}, nil, &pool))
			defer vulkan.DestroyCommandPool(device, pool, nil)
			list := make([]vulkan.CommandBuffer, 1)
			require.Equal(t, vulkan.Success, vulkan.AllocateCommandBuffers(device, &vulkan.CommandBufferAllocateInfo{
				SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: pool,
				Level: vulkan.CommandBufferLevelPrimary, CommandBufferCount: 1,
			}, list))
			require.Equal(t, vulkan.Success, vulkan.BeginCommandBuffer(list[0], &vulkan.CommandBufferBeginInfo{
				SType: vulkan.StructureTypeCommandBufferBeginInfo,
			}))
			commands, err := s.dev.WrapCommands(list[0])
			require.NoError(t, err)
			require.NoError(t, d.op.Record(commands, d.args))
			require.NoError(t, commands.Barrier())
			require.Equal(t, vulkan.Success, vulkan.EndCommandBuffer(list[0]))

			require.NoError(t, s.dev.WithQueue(func(queue vulkan.Queue) {
				require.Equal(t, vulkan.Success, vulkan.QueueSubmit(queue, 1, []vulkan.SubmitInfo{{
					SType: vulkan.StructureTypeSubmitInfo, CommandBufferCount: 1, PCommandBuffers: list,
				}}, nil))
				require.Equal(t, vulkan.Success, vulkan.QueueWaitIdle(queue))
			}))
			require.NoError(t, commands.Release())
			d.result(t)
		})
	}
}
