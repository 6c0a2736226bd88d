package vk

import (
	"os"
	"strings"
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
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
	path := os.Getenv("VKATTN_LIBVULKAN")
	if path == "" {
		path = DefaultLibrary
	}
	library, err := ccall.Open(path)
	if err != nil {
		return nil, refuse("open the Vulkan loader", ErrNoDevice, "%s: %s", path, strings.TrimPrefix(err.Error(), path+": "))
	}
	get, err := library.Symbol("vkGetInstanceProcAddr")
	if err != nil {
		return nil, refuse("open the Vulkan loader", ErrNoDevice, "%s: no vkGetInstanceProcAddr in it", path)
	}
	loader.get = *(*unsafe.Pointer)(unsafe.Pointer(&get))
	return loader.get, nil
}
