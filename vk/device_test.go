package vk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDevicesAreListed(t *testing.T) {
	needDriver(t)
	list, err := Devices()
	require.NoError(t, err)
	for _, i := range list {
		t.Logf("%d: %s, %v, Vulkan %s, %s %s, usable: %q", i.Index, i.Name, i.Type, Version(i.APIVersion), i.DriverName, i.DriverInfo, i.Unusable)
		t.Logf("   %+v", i.Caps)
		assert.NotEmpty(t, i.Name)
		if i.Unusable == "" {
			assert.NotZero(t, i.Caps.SubgroupSize)
			assert.NotZero(t, i.Caps.Limits.MaxSharedBytes)
			assert.NotEmpty(t, i.Caps.MemoryHeaps)
		}
	}
}

// Each driver is known to offer certain features; a probing error shows as a difference.
func TestProbedFeaturesAreTheDrivers(t *testing.T) {
	needDriver(t)
	list, err := Devices()
	require.NoError(t, err)
	c := list[0].Caps
	switch driver := os.Getenv("VKATTN_DRIVER"); driver {
	case "lavapipe":
		assert.True(t, c.CoopMat && c.Float16 && c.Storage16 && c.BufferDeviceAddress && c.VulkanMemoryModel)
		assert.Contains(t, c.CoopMatShapes, CoopMatShape{M: 8, N: 8, K: 8, A: Float16, B: Float16, C: Float32, Result: Float32, Scope: ScopeSubgroup})
		assert.True(t, c.CoopMat2.FlexibleDimensions && c.CoopMat2.Reductions && c.CoopMat2.Conversions && c.CoopMat2.PerElement)
		assert.False(t, c.CoopMat2.WorkgroupScope || c.CoopMat2.TensorAddressing || c.BFloat16CoopMat)
		assert.EqualValues(t, 8, c.SubgroupSize)
	case "lavapipe-old":
		assert.False(t, c.CoopMat)
		assert.True(t, c.Float16 && c.Storage16)
	case "swiftshader":
		assert.False(t, c.CoopMat || c.Float16 || c.Storage16)
		assert.EqualValues(t, 4, c.SubgroupSize)
		assert.EqualValues(t, 32<<10, c.Limits.MaxSharedBytes)
	case "radv-navi31", "radv-strix1", "radv-gfx1201":
		assert.True(t, c.CoopMat)
		assert.Equal(t, driver == "radv-gfx1201", c.BFloat16CoopMat)
		assert.EqualValues(t, 32, c.MinSubgroupSize)
		assert.EqualValues(t, 64, c.MaxSubgroupSize)
	case "nvk-turing", "nvk-ampere", "nvk-ada":
		assert.True(t, c.CoopMat)
		assert.EqualValues(t, 32, c.SubgroupSize)
	case "radv-navi21", "turnip", "honeykrisp":
		assert.False(t, c.CoopMat)
	default:
		t.Skipf("nothing is known of driver %q", driver)
	}
}

func TestOpenAndClose(t *testing.T) {
	d := openTest(t)
	assert.False(t, d.Closed())
	assert.NotZero(t, d.VulkanDevice())
	require.NoError(t, d.WaitIdle())
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	assert.True(t, d.Closed())
	assert.Zero(t, d.VulkanDevice())
	assert.ErrorIs(t, d.WaitIdle(), ErrClosed)
	_, err := d.NewBuffer(16, BufferOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	_, err = d.NewStream("")
	assert.ErrorIs(t, err, ErrClosed)
	_, err = d.Pipeline(saxpy(t, 0))
	assert.ErrorIs(t, err, ErrClosed)
}

func TestOpenByIndexUUIDAndName(t *testing.T) {
	needDriver(t)
	list, err := Devices()
	require.NoError(t, err)
	uuid := fmt.Sprintf("%x", list[0].UUID)
	if again, err := Devices(); err != nil || again[0].UUID != list[0].UUID {
		uuid = "0" // some software devices make one up each time
	}
	specs := []string{"", "auto", "0", uuid}
	if name := list[0].Name; len(list) == 1 {
		specs = append(specs, name)
	} else if list[1].Name == name {
		_, err := Open(Options{Device: name})
		assert.ErrorContains(t, err, "means more than one device")
	}
	for _, spec := range specs {
		d, err := Open(Options{Device: spec, PipelineCache: "off"})
		require.NoError(t, err, spec)
		require.NoError(t, d.Close())
	}
	_, err = Open(Options{Device: "no such device"})
	assert.ErrorIs(t, err, ErrNoDevice)
	_, err = Open(Options{Device: "0", Extensions: []string{"VK_NO_such_extension"}})
	assert.ErrorIs(t, err, ErrUnsupported)
}

func TestMissingLoaderIsNoDevice(t *testing.T) {
	loader.Lock()
	get := loader.get
	loader.get = nil
	loader.Unlock()
	t.Cleanup(func() { loader.Lock(); loader.get = get; loader.Unlock() })
	t.Setenv("VKATTN_LIBVULKAN", "/nonexistent/libvulkan.so.1")
	_, err := Devices()
	require.ErrorIs(t, err, ErrNoDevice)
	assert.Contains(t, err.Error(), "/nonexistent/libvulkan.so.1")
	_, err = Open(Options{})
	assert.ErrorIs(t, err, ErrNoDevice)
}

func TestChoose(t *testing.T) {
	list := []DeviceInfo{
		{Name: "llvmpipe", Type: DeviceCPU, UUID: [16]byte{15: 1}},
		{Name: "Iris Xe", Type: DeviceIntegrated, UUID: [16]byte{15: 2}},
		{Name: "GeForce RTX 4090", Type: DeviceDiscrete, UUID: [16]byte{15: 3}},
		{Name: "GeForce RTX 3090", Type: DeviceDiscrete, UUID: [16]byte{15: 4}, Unusable: "it sulks"},
	}
	for _, c := range []struct {
		spec string
		want []int
		err  error
		text string
	}{
		{"", []int{2, 1, 0}, nil, ""},
		{"auto", []int{2, 1, 0}, nil, ""},
		{"1", []int{1}, nil, ""},
		{"4090", []int{2}, nil, ""},
		{"iris", []int{1}, nil, ""},
		{"00000000-0000-0000-0000-000000000001", []int{0}, nil, ""},
		{"00000000000000000000000000000002", []int{1}, nil, ""},
		{"geforce", nil, ErrInvalid, "[3] GeForce RTX 3090"},
		{"3090", nil, ErrUnsupported, "it sulks"},
		{"radeon", nil, ErrNoDevice, "Iris Xe"},
		{"7", nil, ErrNoDevice, "llvmpipe"},
	} {
		got, err := choose(list, c.spec)
		if c.err == nil {
			require.NoError(t, err, c.spec)
			assert.Equal(t, c.want, got, c.spec)
			continue
		}
		require.ErrorIs(t, err, c.err, c.spec)
		assert.Contains(t, err.Error(), c.text)
	}
	err := noneOpens(list[3:], false)
	assert.ErrorIs(t, err, ErrUnsupported)
	assert.ErrorIs(t, err, ErrNoDevice)
	assert.ErrorContains(t, err, "it sulks")
}

func TestOrderPutsDriversOfTheCPULast(t *testing.T) {
	list := []DeviceInfo{{Type: DeviceCPU}, {Type: DeviceOther}, {Type: DeviceVirtual}, {Type: DeviceDiscrete, Unusable: "it sulks"},
		{Type: DeviceIntegrated}, {Type: DeviceDiscrete}, {Type: DeviceCPU}, {Type: DeviceDiscrete}}
	for i := range list {
		list[i].Index = i
	}
	assert.Equal(t, []int{5, 7, 4, 2, 1, 0, 6}, Order(list))
	assert.Empty(t, Order(nil))
}

func TestErrorsMatchSentinels(t *testing.T) {
	for r, want := range map[int32]error{-4: ErrDeviceLost, -2: ErrOutOfMemory, -1: ErrOutOfMemory, -7: ErrUnsupported, -8: ErrUnsupported} {
		err := fmt.Errorf("outer: %w", &Error{Op: "x", Result: Result(r)})
		assert.ErrorIs(t, err, want)
		assert.False(t, errors.Is(err, ErrClosed))
	}
	assert.Equal(t, "vk: vkQueueSubmit: VK_ERROR_DEVICE_LOST", (&Error{Op: "vkQueueSubmit", Result: -4}).Error())
	assert.Equal(t, "vk: Submit: vk: closed", closed("Submit").Error())
}

func TestALostDeviceAnswersAtOnce(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	require.Error(t, d.check("vkQueueSubmit", -4))
	for name, call := range map[string]func() error{
		"NewBuffer": func() error { _, err := d.NewBuffer(1, BufferOptions{}); return err },
		"Pipeline":  func() error { _, err := d.Pipeline(saxpy(t, 0)); return err },
		"Submit":    func() error { _, err := s.Submit(); return err },
		"Wait":      func() error { return s.Wait(background(t)) },
		"WaitIdle":  d.WaitIdle,
	} {
		assert.ErrorIs(t, call(), ErrDeviceLost, name)
	}
	require.NoError(t, s.Close())
}

// An empty name ends the list that C gets: it must not hide the names after it.
func TestExtensionsNeedNames(t *testing.T) {
	for _, list := range [][]string{{"", "VK_no_such_extension"}, {"VK_KHR_maintenance1\x00VK_no_such_extension"}} {
		_, err := Open(Options{Extensions: list, PipelineCache: "off"})
		require.ErrorIs(t, err, ErrInvalid)
	}
}

// A driver that is unloaded and loaded over and over gives up in the end.
func TestDriversStayLoaded(t *testing.T) {
	needDriver(t)
	libraries := func() map[string]bool {
		maps := readFile(t, "/proc/self/maps")
		set := map[string]bool{}
		for line := range strings.Lines(string(maps)) {
			if at := strings.IndexByte(line, '/'); at >= 0 && strings.Contains(line, ".so") {
				set[strings.TrimSpace(line[at:])] = true
			}
		}
		return set
	}
	t.Setenv("VKATTN_VALIDATION", "")
	d, err := Open(Options{PipelineCache: "off"})
	require.NoError(t, err)
	before := libraries()
	require.NoError(t, d.Close())
	after := libraries()
	for library := range before {
		assert.True(t, after[library], "%s was unloaded", library)
	}
}
