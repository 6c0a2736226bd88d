package vk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// typeRank orders device types for automatic choice, best first.
var typeRank = map[DeviceType]int{DeviceDiscrete: -3, DeviceIntegrated: -2, DeviceVirtual: -1, DeviceOther: 0, DeviceCPU: 1}

// better reports whether automatic choice takes a before b.
func better(a, b *DeviceInfo) bool {
	if x, y := typeRank[a.Type], typeRank[b.Type]; x != y {
		return x < y
	}
	return a.Index < b.Index
}

// Order returns the positions in list of the devices that can be used, in the order in
// which automatic choice tries them: discrete GPUs, integrated, virtual and other ones,
// then drivers of the CPU (DeviceCPU). Devices of one type stay in the loader's order.
func Order(list []DeviceInfo) (order []int) {
	for i := range list {
		if list[i].Unusable == "" {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		if better(&list[i], &list[j]) {
			return -1
		}
		return 1
	})
	return order
}

// choose finds the devices to try, best first: of "" or "auto" all that can be used, of an
// index, a UUID or part of a name the one that is meant.
func choose(list []DeviceInfo, spec string) ([]int, error) {
	if isAuto(spec) {
		return Order(list), nil
	}
	if b, err := hex.DecodeString(strings.ReplaceAll(spec, "-", "")); err == nil && len(b) == 16 {
		for i := range list {
			if list[i].UUID == [16]byte(b) {
				return usable(list, i)
			}
		}
	}
	if i, err := strconv.Atoi(spec); err == nil && i >= 0 && i < len(list) {
		return usable(list, i)
	}
	var found []int
	for i := range list {
		if strings.Contains(strings.ToLower(list[i].Name), strings.ToLower(spec)) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return nil, refuse("Open", ErrNoDevice, "no device is meant by %q; there are%s", spec, listing(list, nil))
	case 1:
		return usable(list, found[0])
	}
	return nil, invalid("Open", "%q means more than one device:%s", spec, listing(list, found))
}

func isAuto(spec string) bool { return spec == "" || spec == "auto" }

// noneOpens is the error of automatic choice when no device of the list can be opened.
func noneOpens(list []DeviceInfo, gpuOnly bool) error {
	what, causes := "device", []error{ErrNoDevice, ErrUnsupported}
	for i := range list {
		if d := &list[i]; gpuOnly && d.Type == DeviceCPU && d.Unusable == "" {
			d.Unusable = "a driver of the CPU"
		} else if d.failed != nil {
			causes = append(causes, d.failed)
		}
	}
	if gpuOnly {
		what = "GPU"
	}
	return refuse("Open", errors.Join(causes...), "%s", noDevice(fmt.Sprintf("no %s can be used:%s", what, listing(list, nil)), false))
}

func usable(list []DeviceInfo, i int) ([]int, error) {
	switch d := &list[i]; {
	case d.failed != nil:
		return nil, d.failed
	case d.Unusable != "":
		return nil, unsupported("Open", "device %d (%s): %s", i, d.Name, d.Unusable)
	}
	return []int{i}, nil
}

// listing names devices, all of them or those in only.
func listing(list []DeviceInfo, only []int) string {
	if only == nil {
		for i := range list {
			only = append(only, i)
		}
	}
	var s strings.Builder
	for _, i := range only {
		fmt.Fprintf(&s, " [%d] %s %x", i, list[i].Name, list[i].UUID)
		if list[i].Unusable != "" {
			fmt.Fprintf(&s, " (%s)", list[i].Unusable)
		}
		s.WriteByte(';')
	}
	return strings.TrimSuffix(s.String(), ";")
}

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
