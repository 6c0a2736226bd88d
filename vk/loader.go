package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import (
	"os"
	"strings"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// DefaultLibrary is the file name of the Vulkan loader; the environment variable
// VKATTN_LIBVULKAN names another.
const DefaultLibrary = "libvulkan.so.1"

var loader struct {
	sync.Mutex
	get  unsafe.Pointer // vkGetInstanceProcAddr, once it is found
	goki bool
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
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	get := C.vka_open_loader(name, &why)
	if why != nil {
		defer C.free(unsafe.Pointer(why))
		return nil, refuse("open the Vulkan loader", ErrNoDevice, "%s: %s", path, strings.TrimPrefix(C.GoString(why), path+": "))
	}
	loader.get = get
	return get, nil
}

// hookGoki passes the loader and a new instance to goki/vulkan, so that a program can call
// its functions. By itself goki/vulkan opens libvulkan.so, which only development packages
// have.
func hookGoki(get unsafe.Pointer, instance vulkan.Instance) error {
	loader.Lock()
	defer loader.Unlock()
	if !loader.goki {
		vulkan.SetGetInstanceProcAddr(get)
		if err := vulkan.Init(); err != nil {
			return err
		}
		loader.goki = true
	}
	return vulkan.InitInstance(instance)
}
