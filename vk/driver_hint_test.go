//go:build !windows

package vk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hideGPUs hides the files of this machine's GPUs until the test ends.
func hideGPUs(t *testing.T) {
	kernel, egl, nodes, known := nvidiaKernel, eglLibrary, renderNodes, kernelNodes
	t.Cleanup(func() { nvidiaKernel, eglLibrary, renderNodes, kernelNodes = kernel, egl, nodes, known })
	nvidiaKernel = nil
	renderNodes, kernelNodes = filepath.Join(t.TempDir(), "renderD*"), filepath.Join(t.TempDir(), "renderD*")
}

// A driver of Mesa without the files that it opens.
func TestDriverHintNamesWhatMesasDriversLack(t *testing.T) {
	hideGPUs(t)
	require.Empty(t, DriverHint(), "there may be no GPU")
	require.Contains(t, driverHint(true), "the container the devices of /dev/dri", "a driver is installed")
	node := filepath.Join(filepath.Dir(kernelNodes), "renderD128")
	require.NoError(t, os.Mkdir(node, 0o755))
	require.Contains(t, DriverHint(), "the kernel has a GPU (renderD128)")
	node = filepath.Join(filepath.Dir(renderNodes), "renderD128")
	require.NoError(t, os.Mkdir(node, 0o755)) // which nobody can open for writing, root included
	require.Contains(t, DriverHint(), "add the user to the group render")
	require.NoError(t, os.Remove(node))
	require.NoError(t, os.WriteFile(node, nil, 0o600))
	require.Empty(t, DriverHint(), "a driver can open it")
}

func TestDriverHintNamesWhatNVIDIAsDriverLacks(t *testing.T) {
	hideGPUs(t)
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
	hideGPUs(t)
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
