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

// Buffer returns a buffer of a device, and closes it after the test.
func Buffer(t testing.TB, dev *vk.Device, bytes uint64) *vk.Buffer {
	t.Helper()
	b, err := dev.NewBuffer(bytes, vk.BufferOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// Upload returns buffers that hold images from here on in a stream's order, and closes them after the test.
func Upload(t testing.TB, s *vk.Stream, images ...[]byte) (buffers []*vk.Buffer) {
	t.Helper()
	for _, image := range images {
		b := Buffer(t, s.Device(), uint64(len(image)))
		require.NoError(t, s.Upload(b, 0, image))
		buffers = append(buffers, b)
	}
	return buffers
}

// Download returns what buffers hold when the stream's work before it is done.
func Download(t testing.TB, s *vk.Stream, buffers ...*vk.Buffer) (images [][]byte) {
	t.Helper()
	for _, b := range buffers {
		image := make([]byte, b.Size())
		require.NoError(t, s.Download(t.Context(), image, b, 0))
		images = append(images, image)
	}
	return images
}
