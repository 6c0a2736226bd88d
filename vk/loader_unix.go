//go:build cgo && !windows

package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import "unsafe"

// hostOpenLoader returns vkGetInstanceProcAddr, or nil and the reason.
func hostOpenLoader(path string) (get unsafe.Pointer, why string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var c *C.char
	get = C.vka_open_loader(name, &c)
	if c != nil {
		return nil, taken(c)
	}
	return get, ""
}

// hostTryLibrary says why a shared library cannot be opened, "" if it can.
func hostTryLibrary(library string) string {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	if why := C.vka_try_library(name); why != nil {
		return taken(why)
	}
	return ""
}
