package vk

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/hostmem"
)

func TestHostMemoryIsCheckedBeforeItIsTaken(t *testing.T) {
	require.NoError(t, CheckHostMemory("test", 1<<20))
	err := CheckHostMemory("test", math.MaxUint64)
	require.ErrorIs(t, err, ErrOutOfMemory)
	t.Setenv(hostmem.Variable, "1000")
	err = CheckHostMemory("test", 1001)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.EqualError(t, err, "vk: test: needs 1001 B of host memory, 1000 B are available (VKATTN_HOST_MEMORY)")
}

func TestAvailableMemoryFollowsBuffers(t *testing.T) {
	d := openExecuting(t)
	before, err := d.AvailableMemory(DeviceLocal)
	require.NoError(t, err)
	require.NotZero(t, before)
	require.NoError(t, d.CheckMemory("test", 64<<20))
	err = d.CheckMemory("test", math.MaxUint64)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Contains(t, err.Error(), "needs over 16 EiB of ")
	require.Contains(t, err.Error(), " are available")
	require.NoError(t, d.Close())
	_, err = d.AvailableMemory(DeviceLocal)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, d.CheckMemory("test", 1), ErrClosed)
}

// The heap of a device that is the CPU is as large as the machine's memory, whatever
// the process may have of it.
func TestADeviceThatIsTheCPUHasTheMemoryOfTheProcess(t *testing.T) {
	d := openExecuting(t)
	if d.Info().Type != DeviceCPU {
		t.Skip("a device with memory of its own")
	}
	t.Setenv(hostmem.Variable, "40MiB")
	available, err := d.AvailableMemory(DeviceLocal)
	require.NoError(t, err)
	require.EqualValues(t, 40<<20, available)
	require.ErrorIs(t, d.CheckMemory("test", 41<<20), ErrOutOfMemory)
	_, err = d.NewBuffer(41<<20, BufferOptions{})
	require.ErrorIs(t, err, ErrOutOfMemory)
	newBuffer(t, d, 39<<20, DeviceLocal)
}
