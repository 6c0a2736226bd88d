package vk

import (
	"os"
	"strings"
	"sync"
	"unsafe"

	"vkattn/internal/driverlib"
)

// DefaultLibrary is the file name of the Vulkan loader, "vulkan-1.dll" on Windows; the environment
// variable VKATTN_LIBVULKAN names another.
const DefaultLibrary = driverlib.Vulkan

var loader struct {
	sync.Mutex
	get unsafe.Pointer // vkGetInstanceProcAddr, once it is found
}

// GetInstanceProcAddr returns the vkGetInstanceProcAddr of the Vulkan loader, a C function
// pointer that stays valid. It opens the loader if needed. Without a loader the error
// matches ErrNoDevice.
func GetInstanceProcAddr() (unsafe.Pointer, error) {
	loader.Lock()
	defer loader.Unlock()
	if loader.get != nil {
		return loader.get, nil
	}
	if !hasVulkan {
		return nil, refuse("open the Vulkan loader", ErrNoDevice, "%s", noVulkan)
	}
	path := os.Getenv("VKATTN_LIBVULKAN")
	if path == "" {
		path = DefaultLibrary
	}
	get, why := hostOpenLoader(path)
	if get == nil {
		return nil, refuse("open the Vulkan loader", ErrNoDevice, "%s: %s", path, strings.TrimPrefix(why, path+": "))
	}
	loader.get = get
	return get, nil
}
