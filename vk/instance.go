package vk

// #include "host.h"
import "C"

import (
	"errors"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// instanceVersions are tried from the newest on. A 1.1 driver must accept all of them, but
// some refuse versions that they do not know.
var instanceVersions = []uint32{1<<22 | 4<<12, 1<<22 | 3<<12, 1<<22 | 2<<12, 1<<22 | 1<<12}

func newInstance(flags C.uint32_t, log *messageLog) (*C.vka_instance, unsafe.Pointer, error) {
	get, err := GetInstanceProcAddr()
	if err != nil {
		return nil, nil, err
	}
	have := uint32(C.vka_loader_version(get))
	if have < 1<<22|1<<12 {
		return nil, nil, refuse("vkCreateInstance", errors.Join(ErrNoDevice, ErrUnsupported), "the Vulkan loader knows 1.0 only; 1.1 is the least")
	}
	var messages *C.vka_messages
	if log != nil {
		messages = log.c
	}
	var in *C.vka_instance
	var missing C.vka_missing
	r := C.VkResult(C.VK_ERROR_INCOMPATIBLE_DRIVER)
	for _, v := range instanceVersions {
		if v>>12 > have>>12 {
			continue
		}
		r = C.vka_create_instance(get, C.uint32_t(v), flags, messages, &missing, &in)
		if r != C.VK_ERROR_INCOMPATIBLE_DRIVER {
			break
		}
	}
	err = &Error{Op: "vkCreateInstance", Result: goResult(r)}
	validates := flags&C.VKA_INSTANCE_VALIDATION != 0
	switch result := goResult(r); {
	case r == C.VK_SUCCESS:
		return in, get, nil
	case missing.count > 0:
		err = functionsError("vkGetInstanceProcAddr", &missing, false)
	case result == vulkan.ErrorIncompatibleDriver:
		err = noDeviceError("vkCreateInstance", r, "no usable driver", false)
	case result == vulkan.ErrorLayerNotPresent && validates:
		err.(*Error).Detail = "validation was asked for and VK_LAYER_KHRONOS_validation is not installed"
	case !validates:
		err = noDeviceError("vkCreateInstance", r, "", false)
	}
	return nil, nil, err
}

var driversLoaded sync.Once

// closeInstance destroys an instance unless it is the first of this process. The loader
// unloads a driver with the last instance that uses it, and NVIDIA's driver (580.159)
// cannot be loaded more than about ten times in one process. With validation layers the
// first instance is destroyed too, as only then they report leaks, and one without layers
// replaces it.
func closeInstance(in *C.vka_instance) {
	stays := false
	if in.owned != 0 {
		driversLoaded.Do(func() {
			if stays = in.messages == nil && in.debug_utils == 0; !stays {
				var bare *C.vka_instance
				var missing C.vka_missing
				C.vka_create_instance(unsafe.Pointer(in.get), C.uint32_t(1<<22|1<<12), 0, nil, &missing, &bare)
			}
		})
	}
	if !stays {
		C.vka_destroy_instance(in)
	}
}

// physicalDevices lists the handles in the loader's order.
func physicalDevices(in *C.vka_instance) ([]C.VkPhysicalDevice, error) {
	var n C.uint32_t
	r := C.vka_physical_devices(in, &n, nil)
	if r < 0 {
		return nil, noDeviceError("vkEnumeratePhysicalDevices", r, "the Vulkan drivers find no device", true)
	}
	if n == 0 {
		return nil, nil
	}
	list := make([]C.VkPhysicalDevice, n)
	r = C.vka_physical_devices(in, &n, &list[0])
	if r < 0 {
		return nil, noDeviceError("vkEnumeratePhysicalDevices", r, "the Vulkan drivers find no device", true)
	}
	return list[:n], nil
}
