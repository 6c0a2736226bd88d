//go:build cgo

package vk

import (
	"unsafe"

	"golang.org/x/sys/windows"

	"vkattn/internal/driverlib"
)

// hostOpenLoader returns vkGetInstanceProcAddr, or nil and the reason. The DLL stays open.
func hostOpenLoader(path string) (get unsafe.Pointer, why string) {
	library, err := driverlib.Open(path)
	if err != nil {
		return nil, err.Error()
	}
	address, err := windows.GetProcAddress(library, "vkGetInstanceProcAddr")
	if err != nil {
		return nil, "no vkGetInstanceProcAddr in it"
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&address)), ""
}

// hostTryLibrary says why a DLL cannot be opened, "" if it can.
func hostTryLibrary(library string) string {
	if _, err := driverlib.Open(library); err != nil {
		return err.Error()
	}
	return ""
}
