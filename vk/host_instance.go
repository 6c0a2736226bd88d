// Calls of Vulkan about instances.

package vk

import (
	"slices"
	"unsafe"
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
