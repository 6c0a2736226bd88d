//go:build !windows

package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// external describes a device that somebody's program owns.
func external(host *Device) External {
	queue, family := host.VulkanQueue()
	return External{Instance: host.VulkanInstance(), PhysicalDevice: host.VulkanPhysicalDevice(), Device: host.VulkanDevice(),
		Queue: queue, QueueFamily: family, APIVersion: 1<<22 | 3<<12, Enabled: *host.Caps(), PipelineCache: "off",
		LockQueue: host.queue.Lock, UnlockQueue: host.queue.Unlock}
}

// wrapOf wraps the device of somebody's program.
func wrapOf(t *testing.T, host *Device, change ...func(*External)) *Device {
	t.Helper()
	e := external(host)
	for _, f := range change {
		f(&e)
	}
	d, err := Wrap(e)
	require.NoError(t, err)
	return d
}

func TestWrappedDeviceRecordsIntoTheCallersCommandBuffer(t *testing.T) {
	host := openExecuting(t)
	d := wrapOf(t, host)
	const n = 5000
	x, y := newBuffer(t, host, 4*n+256, DeviceLocal), newBuffer(t, host, 4*n, DeviceLocal)
	s := newStream(t, host)
	in := numbers(n, func(i uint32) uint32 { return i })
	require.NoError(t, s.Upload(x, 256, push(in...)))

	// The part that lives in somebody else's program.
	wx, err := d.WrapBuffer(ExternalBuffer{Handle: x.Handle(), Offset: 256, Size: 4 * n})
	require.NoError(t, err)
	wy, err := d.WrapBuffer(ExternalBuffer{Handle: y.Handle(), Size: 4 * n, Address: y.Address()})
	require.NoError(t, err)
	p, err := d.Pipeline(saxpy(t, 3))
	require.NoError(t, err)
	c, err := d.WrapCommands(s.b.commands)
	require.NoError(t, err)
	require.NoError(t, c.Dispatch(p, []BufferRange{{Buffer: wx}, {Buffer: wy}}, push(2, n), groups(n)))
	require.NoError(t, c.Barrier())
	_, err = c.Timestamp()
	assert.ErrorIs(t, err, ErrUnsupported)
	require.NoError(t, p.Close())
	require.NoError(t, wx.Close())

	got := make([]byte, 4*n)
	require.NoError(t, s.Download(background(t), got, y, 0))
	sameWords(t, numbers(n, func(i uint32) uint32 { return 2*i + 3 }), words(got))
	assert.Len(t, d.pipelines.list, 1, "held until Release")
	require.NoError(t, c.Release())
	require.NoError(t, c.Release())
	assert.Empty(t, d.pipelines.list)
	assert.ErrorIs(t, c.Barrier(), ErrClosed)

	// Its own streams work on the shared queue too.
	ws, err := d.NewStream("wrapped")
	require.NoError(t, err)
	require.NoError(t, ws.Download(background(t), got, wy, 0))
	sameWords(t, numbers(n, func(i uint32) uint32 { return 2*i + 3 }), words(got))
	require.NoError(t, d.Close())
	// The caller's objects still work.
	require.NoError(t, s.Download(background(t), got, y, 0))
}

func TestQueueIsUnguarded(t *testing.T) {
	host := openExecuting(t)
	assert.False(t, host.QueueIsUnguarded(), "a queue of ours")
	guarded := wrapOf(t, host)
	assert.False(t, guarded.QueueIsUnguarded())
	bare := wrapOf(t, host, func(e *External) { e.LockQueue, e.UnlockQueue = nil, nil })
	assert.True(t, bare.QueueIsUnguarded())
	require.NoError(t, bare.Close())
	require.NoError(t, guarded.Close())
}

func TestWrapTakesOnlyWhatIsEnabled(t *testing.T) {
	host := openExecuting(t)
	d := wrapOf(t, host, func(e *External) { e.Enabled = Caps{TimelineSemaphore: true} })
	c := d.Caps()
	assert.False(t, c.Float16 || c.CoopMat || c.BufferDeviceAddress || c.Int64 || c.ExternalMemoryFd)
	assert.Empty(t, c.CoopMatShapes)
	assert.Equal(t, host.Caps().Limits.MaxSharedBytes, c.Limits.MaxSharedBytes)
	_, err := d.Pipeline(saxpyAddress(t, 1))
	assert.ErrorIs(t, err, ErrUnsupported)
	require.NoError(t, d.Close())

	_, err = Wrap(External{Instance: host.VulkanInstance(), PhysicalDevice: host.VulkanPhysicalDevice(), Device: host.VulkanDevice(),
		Queue: func() VkQueue { q, _ := host.VulkanQueue(); return q }(), QueueFamily: 40, Enabled: *host.Caps()})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = Wrap(External{})
	assert.ErrorIs(t, err, ErrInvalid)
	queue, _ := host.VulkanQueue()
	_, err = Wrap(External{Instance: host.VulkanInstance(), PhysicalDevice: host.VulkanPhysicalDevice(), Device: host.VulkanDevice(), Queue: queue})
	assert.ErrorIs(t, err, ErrUnsupported)
	assert.ErrorContains(t, err, "timelineSemaphore")
}

func TestWrapListsEveryGap(t *testing.T) {
	newFakeDevices(t, "2 nothing 32 32 32")
	host, err := Open(Options{Device: "fake 0", PipelineCache: "off"})
	require.NoError(t, err)
	defer host.Close()
	e := external(host)
	e.Enabled.PipelineExecutable, e.Enabled.CoopMat = true, true // not enabled; not supported, so dropped
	t.Setenv("FAKE_HIDE", "vkGetBufferDeviceAddress,vkGetBufferDeviceAddressKHR,vkGetPipelineExecutablePropertiesKHR,vkGetPipelineExecutableStatisticsKHR,")
	_, err = Wrap(e)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "Enabled has features that were not enabled: BufferDeviceAddress (no vkGetBufferDeviceAddress), "+
		"PipelineExecutable (no vkGetPipelineExecutablePropertiesKHR, vkGetPipelineExecutableStatisticsKHR)")

	t.Setenv("FAKE_HIDE", "vkCmdDispatch,vkWaitSemaphores,vkWaitSemaphoresKHR,")
	_, err = Wrap(e)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "the driver has no vkWaitSemaphores, vkCmdDispatch")

	t.Setenv("FAKE_HIDE", "vkCreateDevice,vkGetPhysicalDeviceFeatures2,")
	_, err = Wrap(e)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "the driver has no vkGetPhysicalDeviceFeatures2, vkCreateDevice")

	t.Setenv("FAKE_HIDE", "")
	e.Enabled.TimelineSemaphore = false
	_, err = Wrap(e)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "the device supports timelineSemaphore, which is not enabled")

	// Gaps of several kinds in one error.
	t.Setenv("FAKE_HIDE", "vkCmdDispatch,vkGetBufferDeviceAddress,vkGetBufferDeviceAddressKHR,")
	e.QueueFamily = 40
	_, err = Wrap(e)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "the device supports timelineSemaphore, which is not enabled: create the device with it, and set it in Enabled; "+
		"queue family 40 has no compute; the driver has no vkCmdDispatch; and for features that are enabled: BufferDeviceAddress (no vkGetBufferDeviceAddress)")
}

// A capability that is off is not one that is not there.
func TestWithoutTellsLackingFromNotEnabled(t *testing.T) {
	newFakeDevices(t, "2 nothing 32 32 32")
	host, err := Open(Options{Device: "fake 0", PipelineCache: "off"})
	require.NoError(t, err)
	defer host.Close()
	d, err := Wrap(func() External { e := external(host); e.Enabled = Caps{TimelineSemaphore: true}; return e }())
	require.NoError(t, err)
	defer d.Close()
	timeline := Need{"timelineSemaphore", func(c *Caps) bool { return c.TimelineSemaphore }}
	address := Need{"bufferDeviceAddress", func(c *Caps) bool { return c.BufferDeviceAddress }}
	full := Need{"computeFullSubgroups", func(c *Caps) bool { return c.FullSubgroups }}
	float16 := Need{"shaderFloat16", func(c *Caps) bool { return c.Float16 }}
	require.Empty(t, d.Caps().Without(timeline))
	require.Equal(t, "the device has bufferDeviceAddress, computeFullSubgroups, not enabled", d.Caps().Without(timeline, address, full))
	require.Equal(t, "the device lacks shaderFloat16, nonsense (not supported), and has bufferDeviceAddress, computeFullSubgroups, not enabled",
		d.Caps().Without(address, float16, Need{Name: "nonsense"}, timeline, full, float16))
	require.Equal(t, "the device lacks bufferDeviceAddress (not supported)", new(Caps).Without(address))
}
