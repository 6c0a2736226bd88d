package vk

import (
	"errors"
	"sync"
)

// instanceVersions are tried from the newest on. A 1.1 driver must accept all of them, but
// some refuse versions that they do not know.
var instanceVersions = []uint32{1<<22 | 4<<12, 1<<22 | 3<<12, 1<<22 | 2<<12, 1<<22 | 1<<12}

func newInstance(flags uint32, log *messageLog) (*hostInstance, error) {
	get, err := GetInstanceProcAddr()
	if err != nil {
		return nil, err
	}
	have := hostLoaderVersion(get)
	if have < 1<<22|1<<12 {
		return nil, refuse("vkCreateInstance", errors.Join(ErrNoDevice, ErrUnsupported), "the Vulkan loader knows 1.0 only; 1.1 is the least")
	}
	var messages *hostMessages
	if log != nil {
		messages = log.c
	}
	var in *hostInstance
	var missing []missingFunction
	r := ResultIncompatibleDriver
	for _, v := range instanceVersions {
		if v>>12 > have>>12 {
			continue
		}
		in, missing, r = hostCreateInstance(get, v, flags, messages)
		if r != ResultIncompatibleDriver {
			break
		}
	}
	err = &Error{Op: "vkCreateInstance", Result: r}
	validates := flags&instanceValidation != 0
	switch {
	case r == ResultSuccess:
		return in, nil
	case len(missing) > 0:
		err = functionsError("vkGetInstanceProcAddr", missing, false)
	case r == ResultIncompatibleDriver:
		err = noDeviceError("vkCreateInstance", r, "no usable driver", false)
	case r == ResultLayerNotPresent && validates:
		err.(*Error).Detail = "validation was asked for and VK_LAYER_KHRONOS_validation is not installed"
	case !validates:
		err = noDeviceError("vkCreateInstance", r, "", false)
	}
	return nil, err
}

var driversLoaded sync.Once

// closeInstance destroys an instance unless it is the first of this process. The loader
// unloads a driver with the last instance that uses it, and NVIDIA's driver (580.159)
// cannot be loaded more than about ten times in one process. With validation layers the
// first instance is destroyed too, as only then they report leaks, and one without layers
// replaces it.
func closeInstance(in *hostInstance) {
	stays := false
	if owned, debugs, get := in.owned, in.messages != nil || in.debugUtils, in.get; owned {
		driversLoaded.Do(func() {
			stays = !debugs
			if !stays {
				hostCreateInstance(get, 1<<22|1<<12, 0, nil)
			}
		})
	}
	if !stays {
		hostDestroyInstance(in)
	}
}

// physicalDevices lists the handles in the loader's order.
func physicalDevices(in *hostInstance) ([]VkPhysicalDevice, error) {
	list, r := hostPhysicalDevices(in)
	if r < 0 {
		return nil, noDeviceError("vkEnumeratePhysicalDevices", r, "the Vulkan drivers find no device", true)
	}
	return list, nil
}
