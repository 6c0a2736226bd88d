//go:build !windows

package vk

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newFrontLoader compiles a Vulkan loader of testdata and puts it in place of the loader, or in
// front of it if there is a driver under test, until the test ends. It returns the library.
func newFrontLoader(t *testing.T, source string) uintptr {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	file := filepath.Join(t.TempDir(), "loader.so")
	text, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-o", file, filepath.Join("testdata", source)).CombinedOutput()
	require.NoError(t, err, "%s", text)
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	var before unsafe.Pointer
	if _, err := Devices(); err == nil {
		before, err = GetInstanceProcAddr()
		require.NoError(t, err)
		var front func(unsafe.Pointer)
		purego.RegisterLibFunc(&front, lib, "fake_front")
		front(before)
	}
	get, err := purego.Dlsym(lib, "vkGetInstanceProcAddr")
	require.NoError(t, err)
	set := func(p unsafe.Pointer) {
		loader.Lock()
		defer loader.Unlock()
		loader.get = p
	}
	set(*(*unsafe.Pointer)(unsafe.Pointer(&get)))
	t.Cleanup(func() { set(before) })
	return lib
}

// newFakeDevices puts the devices of testdata/fake_devices.c in front of those of the driver
// under test, until the test ends. It returns the subgroup size that the last pipeline required.
func newFakeDevices(t *testing.T, devices string) (required *uint32) {
	t.Helper()
	var address func() *uint32
	purego.RegisterLibFunc(&address, newFrontLoader(t, "fake_devices.c"), "fake_required")
	t.Setenv("FAKE_DEVICES", devices)
	return address()
}

// A radeon driver without /dev/dri: the loader is there, and lists nothing.
func TestDriversThatFindNoDeviceAreNoDevice(t *testing.T) {
	newFakeDevices(t, "")
	t.Setenv("FAKE_ENUMERATE", "-3")
	_, err := Devices()
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "vkEnumeratePhysicalDevices: VK_ERROR_INITIALIZATION_FAILED")
	_, err = Open(Options{PipelineCache: "off"})
	require.ErrorIs(t, err, ErrNoDevice)
	t.Setenv("FAKE_ENUMERATE", "-1")
	_, err = Devices()
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.False(t, errors.Is(err, ErrNoDevice), "memory may be there in a moment")
}

func TestADeviceThatFailsHidesNoOther(t *testing.T) {
	const call = "vkEnumerateDeviceExtensionProperties: VK_ERROR_INITIALIZATION_FAILED"
	newFakeDevices(t, "2 extensions; 2 nothing 32 32 32; 1 create 32 32 32")
	list, err := Devices()
	require.NoError(t, err)
	assert.Equal(t, "fake 0", list[0].Name)
	assert.Equal(t, call, list[0].Unusable)
	assert.Empty(t, list[1].Unusable)
	for _, spec := range []string{"", "1", "fake 1"} {
		d, err := Open(Options{Device: spec, PipelineCache: "off"})
		require.NoError(t, err, spec)
		assert.Equal(t, "fake 1", d.Info().Name, spec)
		require.NoError(t, d.Close())
	}
	for spec, want := range map[string]string{"fake 0": call, "fake 2": "vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED"} {
		_, err = Open(Options{Device: spec, PipelineCache: "off"})
		require.ErrorContains(t, err, want)
		require.False(t, errors.Is(err, ErrNoDevice), "there is one, and it fails: %v", err)
	}
}

func TestAutoPassesOverDevicesThatFail(t *testing.T) {
	newFakeDevices(t, "2 create 32 32 32; 2 extensions; 2 nothing 32 32 32; 2 extensions")
	d, err := Open(Options{PipelineCache: "off"})
	require.NoError(t, err)
	assert.Equal(t, "fake 2", d.Info().Name)
	over := d.PassedOver()
	require.Len(t, over, 2, "the last one is no better than the one that is open")
	assert.Equal(t, "fake 0", over[0].Name)
	assert.Equal(t, "vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED", over[0].Unusable)
	assert.Equal(t, "fake 1", over[1].Name)
	require.NoError(t, d.Close())
}

func TestDriversOfTheCPUAreNoGPUs(t *testing.T) {
	newFakeDevices(t, "2 create 32 32 32; 4 nothing 8 8 32")
	list, err := Devices()
	require.NoError(t, err)
	for _, d := range list[2:] {
		if d.Type != DeviceCPU {
			t.Skipf("%s would be opened", d.Name)
		}
	}
	d, err := Open(Options{PipelineCache: "off"})
	require.NoError(t, err)
	assert.Equal(t, "fake 1", d.Info().Name)
	require.NoError(t, d.Close())
	_, err = Open(Options{GPUOnly: true, PipelineCache: "off"})
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "fake 0")
	require.ErrorContains(t, err, "(vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED)")
	require.ErrorContains(t, err, "fake 1")
	require.ErrorContains(t, err, "(a driver of the CPU)")
	d, err = Open(Options{Device: "fake 1", GPUOnly: true, PipelineCache: "off"})
	require.NoError(t, err, "it is named")
	require.NoError(t, d.Close())
}

// NVK has one subgroup size and requires none (requiredSubgroupSizeStages is 0).
func TestASingleSubgroupSizeNeedsNoRequirement(t *testing.T) {
	const compute = "32"
	required := newFakeDevices(t, "2 nothing 32 32 0; 2 nothing 32 64 "+compute+"; 2 nothing 8 32 0; 2 nothing 32 32 "+compute)
	list, err := Devices()
	require.NoError(t, err)
	for i, want := range []struct {
		control  bool
		min, max uint32
		required uint32
	}{{true, 32, 32, 0}, {true, 32, 64, 32}, {false, 32, 32, 0}, {true, 32, 32, 0}} {
		c := list[i].Caps
		assert.Equal(t, want.control, c.SubgroupSizeControl, i)
		assert.Equal(t, [2]uint32{want.min, want.max}, [2]uint32{c.MinSubgroupSize, c.MaxSubgroupSize}, i)
		d, err := Open(Options{Device: list[i].Name, PipelineCache: "off"})
		require.NoError(t, err)
		desc := saxpy(t, 5)
		desc.SubgroupSize, desc.FullSubgroups = 32, true
		p, err := d.Pipeline(desc)
		require.NoError(t, err)
		assert.Equal(t, want.required, *required, i)
		require.NoError(t, p.Close())
		require.NoError(t, d.Close())
	}
}
