// Package testdevice opens the Vulkan device of the driver under test.
package testdevice

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// Null reports whether the device under test is a null device of scripts/run-with: it compiles
// pipelines and executes nothing.
func Null() bool { return os.Getenv("VKATTN_NULL_DEVICE") != "" }

// patience bounds waits. A call of seconds may take a driver of the CPU a minute where other processes compute.
const patience = 5 * time.Minute

// Open opens a device that computes, and closes it after the test. It skips the test on a null
// device, and where there is no device and VKATTN_DRIVER names none. With VKATTN_VALIDATION=1
// the test fails if the validation layers have a message.
func Open(t testing.TB) *vk.Device {
	t.Helper()
	driver := os.Getenv("VKATTN_DRIVER")
	if Null() {
		t.Skip("a null device computes nothing")
	}
	validation, err := vk.ValidationByEnv()
	require.NoError(t, err)
	dev, err := vk.Open(vk.Options{PipelineCache: "off", Validation: validation, Timeout: patience})
	if errors.Is(err, vk.ErrNoDevice) && (driver == "" || driver == "none") {
		t.Skip(err)
	}
	require.NoError(t, err)
	if driver != "" {
		require.Empty(t, dev.PassedOver(), "the device under test is not the best one")
	}
	t.Cleanup(func() { require.NoError(t, dev.Close()); require.Empty(t, dev.ValidationMessages()) })
	return dev
}

// Stream returns a stream of a device, and closes it after the test.
func Stream(t testing.TB, dev *vk.Device, name string) *vk.Stream {
	t.Helper()
	s, err := dev.NewStream(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
