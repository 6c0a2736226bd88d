package vk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDriverHintNamesWhatNVIDIAsDriverLacks(t *testing.T) {
	kernel, egl := nvidiaKernel, eglLibrary
	t.Cleanup(func() { nvidiaKernel, eglLibrary = kernel, egl })
	there := filepath.Join(t.TempDir(), "version")
	require.NoError(t, os.WriteFile(there, nil, 0o644))
	const missing, present = "libNoSuchEGL.so.1", "libc.so.6"
	for _, c := range []struct {
		kernel  []string
		library string
		hint    bool
	}{
		{[]string{there}, missing, true},
		{[]string{there + ".no", there}, missing, true},
		{[]string{there}, present, false},
		{[]string{there + ".no"}, missing, false},
	} {
		nvidiaKernel, eglLibrary = c.kernel, c.library
		hint := DriverHint()
		require.Equal(t, c.hint, hint != "", "%+v: %q", c, hint)
		if c.hint {
			assert.Contains(t, hint, "install the package libegl1")
			assert.Contains(t, hint, missing+": cannot open")
		}
	}
}

// A loader without a driver, as NVIDIA's looks without libEGL.
func TestNoUsableDriverGivesTheHint(t *testing.T) {
	needDriver(t)
	kernel, egl := nvidiaKernel, eglLibrary
	t.Cleanup(func() { nvidiaKernel, eglLibrary = kernel, egl })
	there := t.TempDir()
	nvidiaKernel, eglLibrary = []string{there}, "libNoSuchEGL.so.1"
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		t.Setenv(name, filepath.Join(there, "none.json"))
	}
	for _, name := range []string{"VK_ADD_DRIVER_FILES", "VK_LOADER_DRIVERS_SELECT"} {
		t.Setenv(name, "")
	}
	_, err := Devices()
	require.ErrorIs(t, err, ErrNoDevice)
	assert.ErrorContains(t, err, "install the package libegl1")
	_, err = Open(Options{PipelineCache: "off"})
	require.ErrorIs(t, err, ErrNoDevice)
	assert.ErrorContains(t, err, "install the package libegl1")
}
