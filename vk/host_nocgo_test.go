//go:build !cgo

package vk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A build without Vulkan says so, wherever a device is asked for.
func TestThisBuildHasNoVulkan(t *testing.T) {
	_, opened := Open(Options{})
	_, listed := Devices()
	_, wrapped := Wrap(External{Instance: 1, PhysicalDevice: 1, Device: 1, Queue: 1})
	_, loader := GetInstanceProcAddr()
	for _, err := range []error{opened, listed, wrapped, loader} {
		require.ErrorIs(t, err, ErrNoDevice)
		require.ErrorContains(t, err, "this build has no Vulkan")
	}
	require.Empty(t, DriverHint())
}
