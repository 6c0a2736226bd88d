// Calls of Vulkan about devices.

package vk

import (
	"slices"
	"unsafe"

	"vkattn/internal/ccall"
)

// hostDevice is a device and its commands.
type hostDevice struct {
	deviceHandles
	instance *hostInstance
	features uint64
	owned    bool
	submit   submitCall
	deviceCommands
}

// has reports whether the device was made with a feature.
func (d *hostDevice) has(feature int) bool { return d.features>>feature&1 != 0 }

// arg is the device as an argument.
func (d *hostDevice) arg() uintptr { return uintptr(d.device) }

// destroy calls a command that destroys or frees one object of the device.
func (d *hostDevice) destroy(command uintptr, handle uint64) {
	call(command, d.arg(), uintptr(handle), 0)
}

func (in *hostInstance) wrapDevice(h deviceHandles, features uint64) (*hostDevice, []missingFunction, Result) {
	d := &hostDevice{deviceHandles: h, instance: in, features: features}
	missing := loadCommands(&d.deviceCommands, features, func(name *byte) uintptr {
		return ccall.Call(in.GetDeviceProcAddr, uintptr(h.device), uintptr(unsafe.Pointer(name)))
	})
	if len(missing) > 0 {
		return nil, missing, ResultInitializationFailed
	}
	return d, nil, ResultSuccess
}

func hostWrapDevice(in *hostInstance, e *External, features uint64) (*hostDevice, []missingFunction, Result) {
	return in.wrapDevice(deviceHandles{e.PhysicalDevice, e.Device, e.Queue}, features)
}

// hostCreateDevice makes a device with features, and further extensions, that it enables.
func hostCreateDevice(in *hostInstance, p *probe, features uint64, further []string) (*hostDevice, []missingFunction, Result) {
	have, r := in.extensionsOf(p.handle)
	if r != ResultSuccess {
		return nil, nil, r
	}
	var enabled []string
	add := func(name string) {
		if !slices.Contains(enabled, name) {
			enabled = append(enabled, name)
		}
	}
	for i := range featureRows {
		row := &featureRows[i]
		if extension, ok := row.extensionFor(p.info.effectiveAPI, have); ok && extension != "" && row.wanted(features) {
			add(extension)
		}
	}
	for _, f := range extensionFeatures {
		switch {
		case features>>f.bit&1 == 0:
		case f.alias != "" && !have.has(f.extension):
			add(f.alias)
		default:
			add(f.extension)
		}
	}
	if have.has("VK_KHR_portability_subset") {
		add("VK_KHR_portability_subset") // required where it is listed
	}
	for _, name := range further {
		if !have.has(name) {
			return nil, nil, ResultExtensionNotPresent
		}
		add(name)
	}
	priority := float32(1)
	info := headed(vkDeviceCreateInfo{
		queueCreateInfoCount: 1,
		pQueueCreateInfos: headed(vkDeviceQueueCreateInfo{
			queueFamilyIndex: p.info.queueFamily,
			queueCount:       1,
			pQueuePriorities: &priority,
		}),
		enabledExtensionCount:   uint32(len(enabled)),
		ppEnabledExtensionNames: cstrings(enabled),
	})
	info.pNext = unsafe.Pointer(newFeatureChain(features))
	h := deviceHandles{physical: p.handle}
	r = call(in.CreateDevice, uintptr(p.handle), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&h.device)))
	if r != ResultSuccess {
		return nil, nil, r
	}
	d, missing, r := in.wrapDevice(h, features)
	if r != ResultSuccess {
		destroy := ccall.Call(in.GetDeviceProcAddr, uintptr(h.device), uintptr(unsafe.Pointer(cstring("vkDestroyDevice"))))
		if destroy != 0 {
			call(destroy, uintptr(h.device), 0)
		}
		return nil, missing, r
	}
	d.owned = true
	call(d.GetDeviceQueue, d.arg(), uintptr(p.info.queueFamily), 0, uintptr(unsafe.Pointer(&d.queue)))
	return d, nil, ResultSuccess
}

func hostDestroyDevice(d *hostDevice) {
	if d != nil && d.owned {
		call(d.DestroyDevice, d.arg(), 0)
	}
}

func hostWaitIdle(d *hostDevice) Result { return call(d.DeviceWaitIdle, d.arg()) }

func hostSetName(d *hostDevice, kind uint32, handle uint64, name string) {
	if d.SetDebugUtilsObjectNameEXT == 0 {
		return
	}
	info := headed(vkDebugUtilsObjectNameInfoEXT{objectType: kind, objectHandle: handle, pObjectName: cstring(name)})
	call(d.SetDebugUtilsObjectNameEXT, d.arg(), uintptr(unsafe.Pointer(info)))
}

// hostCalibrate reads the clocks of device and host at once, with the host's before and after the call.
func hostCalibrate(d *hostDevice, ticks, host, deviation, before, after *uint64) Result {
	infos := [2]vkCalibratedTimestampInfoKHR{
		*headed(vkCalibratedTimestampInfoKHR{timeDomain: vkTimeDomainDeviceKHR}),
		*headed(vkCalibratedTimestampInfoKHR{timeDomain: hostTimeDomain}),
	}
	var stamps [2]uint64
	*before = nanoseconds(hostTicks())
	r := call(d.GetCalibratedTimestamps, d.arg(), 2, uintptr(unsafe.Pointer(&infos)), uintptr(unsafe.Pointer(&stamps)),
		uintptr(unsafe.Pointer(deviation)))
	*after = nanoseconds(hostTicks())
	*ticks, *host = stamps[0], nanoseconds(stamps[1])
	return r
}
