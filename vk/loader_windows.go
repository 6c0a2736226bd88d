//go:build cgo

package vk

import (
	"unsafe"

	"vkattn/internal/ccall"
)

// hostOpenLoader returns vkGetInstanceProcAddr, or nil and the reason. The DLL stays open.
func hostOpenLoader(path string) (get unsafe.Pointer, why string) {
	library, err := ccall.Open(path)
	if err != nil {
		return nil, err.Error()
	}
	address, err := library.Symbol("vkGetInstanceProcAddr")
	if err != nil {
		return nil, "no vkGetInstanceProcAddr in it"
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&address)), ""
}

// hostTryLibrary says why a DLL cannot be opened, "" if it can.
func hostTryLibrary(library string) string {
	if _, err := ccall.Open(library); err != nil {
		return err.Error()
	}
	return ""
}
