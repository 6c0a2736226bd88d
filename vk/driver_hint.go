package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// nvidiaKernel are files of NVIDIA's kernel driver, which containers with a GPU have too.
var nvidiaKernel = []string{"/proc/driver/nvidia/version", "/dev/nvidiactl"}

// eglLibrary is the library that NVIDIA's Vulkan driver opens even without a display.
var eglLibrary = "libEGL.so.1"

// DriverHint says why a machine with an NVIDIA GPU has no Vulkan device, or "" if it knows
// no reason. NVIDIA's Vulkan driver (580.159) opens libEGL.so.1 of glvnd. Without that
// library, which servers and containers often lack, it offers no device, as if there were
// no driver.
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

// unopenable says why a shared library cannot be opened, "" if it can.
func unopenable(library string) string {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	if why := C.vka_try_library(name); why != nil {
		defer C.free(unsafe.Pointer(why))
		return C.GoString(why)
	}
	return ""
}

// noDevice returns an ErrNoDevice with a detail and the hint.
func noDevice(detail string) string {
	if hint := DriverHint(); hint != "" {
		return detail + "; " + hint
	}
	return detail
}
