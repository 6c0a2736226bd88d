//go:build cgo

package goki_test

import (
	"testing"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testdevice"
	"vkattn/vk"
	"vkattn/vk/goki"
)

// goki/vulkan works on our handles, and reads from the driver what we read.
func TestGokiGoesOnWithOurHandles(t *testing.T) {
	d := testdevice.Open(t)
	require.NoError(t, goki.Init(d))
	var p vulkan.PhysicalDeviceProperties
	vulkan.GetPhysicalDeviceProperties(goki.PhysicalDevice(d.VulkanPhysicalDevice()), &p)
	p.Deref()
	p.Limits.Deref()
	i, l := d.Info(), d.Caps().Limits
	assert.Equal(t, i.Name, vulkan.ToString(p.DeviceName[:]))
	assert.Equal(t, i.APIVersion, p.ApiVersion)
	assert.Equal(t, i.DriverVersion, p.DriverVersion)
	assert.Equal(t, i.VendorID, p.VendorID)
	assert.EqualValues(t, i.Type, p.DeviceType)
	assert.Equal(t, l.MaxSharedBytes, p.Limits.MaxComputeSharedMemorySize)
	assert.Equal(t, l.MaxInvocations, p.Limits.MaxComputeWorkGroupInvocations)
	assert.Equal(t, l.MaxWorkGroupSize, p.Limits.MaxComputeWorkGroupSize)
	assert.Equal(t, l.MaxWorkGroupCount, p.Limits.MaxComputeWorkGroupCount)
	assert.Equal(t, l.MaxPushConstantBytes, p.Limits.MaxPushConstantsSize)
	assert.EqualValues(t, l.MaxStorageBufferRange, p.Limits.MaxStorageBufferRange)
	assert.EqualValues(t, l.MinStorageBufferOffsetAlignment, p.Limits.MinStorageBufferOffsetAlignment)
	assert.EqualValues(t, l.NonCoherentAtomSize, p.Limits.NonCoherentAtomSize)
	assert.EqualValues(t, l.TimestampPeriodNs, p.Limits.TimestampPeriod)
	assert.Equal(t, vulkan.Success, vulkan.DeviceWaitIdle(goki.Device(d.VulkanDevice())))
}

func TestHandlesKeepTheirNumber(t *testing.T) {
	const n = 0x1234567890
	require.EqualValues(t, n, goki.FromInstance(goki.Instance(n)))
	require.EqualValues(t, n, goki.FromPhysicalDevice(goki.PhysicalDevice(n)))
	require.EqualValues(t, n, goki.FromDevice(goki.Device(n)))
	require.EqualValues(t, n, goki.FromQueue(goki.Queue(n)))
	require.EqualValues(t, n, goki.FromCommandBuffer(goki.CommandBuffer(n)))
	require.ErrorIs(t, goki.Init(nil), vk.ErrInvalid)
}
