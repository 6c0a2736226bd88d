package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// nvidiaKernel are files that NVIDIA's kernel driver makes, and containers that were
// given a GPU have.
var nvidiaKernel = []string{"/proc/driver/nvidia/version", "/dev/nvidiactl"}

// eglLibrary is what NVIDIA's Vulkan driver opens on a machine without a display.
var eglLibrary = "libEGL.so.1"

// DriverHint says why a machine that has a GPU may offer none, where that shows; "" else.
// NVIDIA's Vulkan driver (580.159) opens libEGL.so.1 of glvnd and without it gives the
// loader nothing, which looks like a machine without a driver: servers and containers
// often have the one and not the other.
func DriverHint() string {
	for _, file := range nvidiaKernel {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if why := unopenable(eglLibrary); why != "" {
			return fmt.Sprintf("NVIDIA's kernel driver is here, and its Vulkan driver needs %s: install the package libegl1 (%s)", eglLibrary, why)
		}
		return ""
	}
	return ""
}

// unopenable says why a shared library cannot be opened; "" where it can.
func unopenable(library string) string {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	if why := C.vka_try_library(name); why != nil {
		defer C.free(unsafe.Pointer(why))
		return C.GoString(why)
	}
	return ""
}

// noDevice adds the hint to what was found wrong.
func noDevice(detail string) string {
	if hint := DriverHint(); hint != "" {
		return detail + "; " + hint
	}
	return detail
}
