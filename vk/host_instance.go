// Calls of Vulkan about instances.

package vk

import (
	"slices"
	"unsafe"

	"vkattn/internal/ccall"
)

const validationLayer = "VK_LAYER_KHRONOS_validation"

// hostInstance is an instance and its commands.
type hostInstance struct {
	handle     VkInstance
	get        unsafe.Pointer // vkGetInstanceProcAddr
	api        uint32         // version the instance was made for
	owned      bool
	messenger  uint64
	messages   *hostMessages
	debugUtils bool
	instanceCommands
}

// Flags of hostCreateInstance.
const (
	instanceDebug       = 1 // VK_EXT_debug_utils where there is one
	instanceValidation  = 2 // the validation layer, or ResultLayerNotPresent
	instanceSync        = 4 // with synchronization validation
	instanceGPUAssisted = 8 // with GPU-assisted validation
)

// hostLoaderVersion is the version that the loader offers, 0 if it knows Vulkan 1.0 only.
func hostLoaderVersion(get unsafe.Pointer) uint32 {
	var version uint32
	f := instanceCommand(get, 0, cstring("vkEnumerateInstanceVersion"))
	if f == 0 || call(f, uintptr(unsafe.Pointer(&version))) != ResultSuccess {
		return 0
	}
	return version
}

// hasInstanceExtension reports whether a layer, or with nil the loader and its drivers, has an extension.
func hasInstanceExtension(get unsafe.Pointer, layer *byte, name string) bool {
	f := instanceCommand(get, 0, cstring("vkEnumerateInstanceExtensionProperties"))
	if f == 0 {
		return false
	}
	list, r := listed[vkExtensionProperties](func(n *uint32, to unsafe.Pointer) Result {
		return call(f, uintptr(unsafe.Pointer(layer)), uintptr(unsafe.Pointer(n)), uintptr(to))
	})
	return r >= 0 && extensions(list).has(name)
}

func hasLayer(get unsafe.Pointer, name string) bool {
	f := instanceCommand(get, 0, cstring("vkEnumerateInstanceLayerProperties"))
	if f == 0 {
		return false
	}
	list, r := listed[vkLayerProperties](func(n *uint32, to unsafe.Pointer) Result {
		return call(f, uintptr(unsafe.Pointer(n)), uintptr(to))
	})
	return r >= 0 && slices.ContainsFunc(list, func(l vkLayerProperties) bool { return gotext(l.layerName[:]) == name })
}

// hostWrapInstance makes the table of an instance that somebody else made.
func hostWrapInstance(get unsafe.Pointer, handle VkInstance, api uint32, debugUtils bool) (*hostInstance, []missingFunction, Result) {
	in := &hostInstance{handle: handle, get: get, api: api, debugUtils: debugUtils}
	missing := loadCommands(&in.instanceCommands, 0, func(name *byte) uintptr { return instanceCommand(get, handle, name) })
	if len(missing) > 0 {
		return nil, missing, ResultInitializationFailed
	}
	return in, nil, ResultSuccess
}

func hostCreateInstance(get unsafe.Pointer, api, flags uint32, m *hostMessages) (*hostInstance, []missingFunction, Result) {
	create := instanceCommand(get, 0, cstring("vkCreateInstance"))
	if create == 0 {
		return nil, nil, ResultInitializationFailed
	}
	var layers, enabled []string
	var layer *byte
	if flags&instanceValidation != 0 {
		if !hasLayer(get, validationLayer) {
			return nil, nil, ResultLayerNotPresent
		}
		layers, layer = []string{validationLayer}, cstring(validationLayer)
	}
	debug := flags&instanceDebug != 0 && (hasInstanceExtension(get, nil, "VK_EXT_debug_utils") ||
		layer != nil && hasInstanceExtension(get, layer, "VK_EXT_debug_utils"))
	if debug {
		enabled = append(enabled, "VK_EXT_debug_utils")
	}
	info := headed(vkInstanceCreateInfo{
		pApplicationInfo: headed(vkApplicationInfo{
			pApplicationName: cstring("vkattn"),
			pEngineName:      cstring("vkattn"),
			apiVersion:       api,
		}),
	})
	if hasInstanceExtension(get, nil, "VK_KHR_portability_enumeration") {
		enabled = append(enabled, "VK_KHR_portability_enumeration")
		info.flags = vkInstanceCreateEnumeratePortabilityBitKHR
	}
	var checks []uint32
	if flags&instanceSync != 0 {
		checks = append(checks, vkValidationFeatureEnableSynchronizationValidationEXT)
	}
	if flags&instanceGPUAssisted != 0 {
		checks = append(checks, vkValidationFeatureEnableGpuAssistedEXT)
	}
	if layer != nil && len(checks) > 0 {
		if !hasInstanceExtension(get, layer, "VK_EXT_validation_features") {
			return nil, nil, ResultExtensionNotPresent
		}
		enabled = append(enabled, "VK_EXT_validation_features")
		info.chain(&headed(vkValidationFeaturesEXT{
			enabledValidationFeatureCount: uint32(len(checks)),
			pEnabledValidationFeatures:    &checks[0],
		}).vkHead)
	}
	if debug && m != nil { // in this chain, instance creation and destruction are heard too
		info.chain(&m.messenger().vkHead)
	}
	info.enabledLayerCount, info.ppEnabledLayerNames = uint32(len(layers)), cstrings(layers)
	info.enabledExtensionCount, info.ppEnabledExtensionNames = uint32(len(enabled)), cstrings(enabled)
	var handle VkInstance
	if r := call(create, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&handle))); r != ResultSuccess {
		return nil, nil, r
	}
	in, missing, r := hostWrapInstance(get, handle, api, debug)
	if r != ResultSuccess {
		if destroy := instanceCommand(get, handle, cstring("vkDestroyInstance")); destroy != 0 {
			call(destroy, uintptr(handle), 0)
		}
		return nil, missing, r
	}
	in.owned, in.messages = true, m
	if debug && m != nil && in.CreateDebugUtilsMessengerEXT != 0 {
		r := call(in.CreateDebugUtilsMessengerEXT, uintptr(handle), uintptr(unsafe.Pointer(m.messenger())), 0,
			uintptr(unsafe.Pointer(&in.messenger)))
		if r != ResultSuccess {
			hostDestroyInstance(in)
			return nil, nil, r
		}
	}
	return in, nil, ResultSuccess
}

func hostDestroyInstance(in *hostInstance) {
	if in == nil {
		return
	}
	if in.messenger != 0 {
		call(in.DestroyDebugUtilsMessengerEXT, uintptr(in.handle), uintptr(in.messenger), 0)
	}
	if in.owned {
		call(in.DestroyInstance, uintptr(in.handle), 0)
	}
}

func hostPhysicalDevices(in *hostInstance) ([]VkPhysicalDevice, Result) {
	return listed[VkPhysicalDevice](func(n *uint32, to unsafe.Pointer) Result {
		return call(in.EnumeratePhysicalDevices, uintptr(in.handle), uintptr(unsafe.Pointer(n)), uintptr(to))
	})
}

// Calls of Vulkan about devices.

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
