package vk

import (
	"strings"
)

// probe is a physical device with everything that was queried of it.
type probe struct {
	handle              VkPhysicalDevice
	info                DeviceInfo
	typeFlags, typeHeap []uint32 // of each memory type
	requiresSize        bool     // kernels may require a size of subgroups
}

// fail makes a device unusable.
func (info *DeviceInfo) fail(err *Error) {
	info.Unusable = strings.TrimPrefix(err.Error(), "vk: ")
	if err.Detail == "" {
		err.Detail = info.Name
	}
	info.failed = err
}

// unusable says why a device cannot be opened, "" if it can.
func unusable(info *DeviceInfo) string {
	if info.effectiveAPI < 1<<22|1<<12 { // nothing else was queried
		return "it offers Vulkan " + Version(info.APIVersion) + "; 1.1 is the least"
	}
	var gaps []string
	if info.queueFamily == ^uint32(0) {
		gaps = append(gaps, "it has no compute queue")
	}
	if !info.Caps.TimelineSemaphore {
		gaps = append(gaps, "it has no timeline semaphores (Vulkan 1.2 or VK_KHR_timeline_semaphore)")
	}
	return strings.Join(gaps, "; ")
}

// Devices lists the physical devices in the loader's order. It creates no device. Devices
// that Open would refuse are listed too, with the reason in Unusable, also one whose
// queries fail. Without Vulkan or without any device the error matches ErrNoDevice.
func Devices() ([]DeviceInfo, error) {
	in, err := newInstance(0, nil)
	if err != nil {
		return nil, err
	}
	defer closeInstance(in)
	probes, err := probeAll(in)
	if err != nil {
		return nil, err
	}
	infos := make([]DeviceInfo, len(probes))
	for i, p := range probes {
		infos[i] = p.info
	}
	return infos, nil
}

func probeAll(in *hostInstance) ([]*probe, error) {
	handles, err := physicalDevices(in)
	if err != nil {
		return nil, err
	}
	if len(handles) == 0 {
		return nil, refuse("vkEnumeratePhysicalDevices", ErrNoDevice, "%s", noDevice("the Vulkan loader lists no device", true))
	}
	var probes []*probe
	for i, h := range handles {
		probes = append(probes, newProbe(in, h, i))
	}
	return probes, nil
}
