//go:build cgo

package monitor

import (
	"golang.org/x/sys/windows"

	"vkattn/internal/driverlib"
)

func openNVML() (uintptr, error) {
	lib, err := driverlib.Open(driverlib.NVML)
	return uintptr(lib), err
}

func symbolOf(lib uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(lib), name)
}
