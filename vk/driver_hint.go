package vk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"vkattn/internal/ccall"
)

// nvidiaKernel are files of NVIDIA's kernel driver, which containers with a GPU have too.
var nvidiaKernel = []string{"/proc/driver/nvidia/version", "/dev/nvidiactl"}

// eglLibrary is the library that NVIDIA's Vulkan driver opens even without a display.
var eglLibrary = "libEGL.so.1"

// Files that drivers of other GPUs open, and where the kernel lists them whether or not a
// container has them.
var renderNodes, kernelNodes = "/dev/dri/renderD*", "/sys/class/drm/renderD*"

// DriverHint says why a machine with a GPU has no Vulkan device for it, or "" if it knows no
// reason. NVIDIA's Vulkan driver (580.159) opens libEGL.so.1 of glvnd. Without that library,
// which servers and containers often lack, it offers no device, as if there were no driver.
// Drivers of Mesa open /dev/dri/renderD*, which containers often lack, and which belongs to
// the group render. On Windows it knows no reason.
func DriverHint() string { return driverHint(false) }

// driverHint is DriverHint. failed: a driver is installed and finds no device.
func driverHint(failed bool) string {
	if runtime.GOOS == "windows" {
		return ""
	}
	for _, file := range nvidiaKernel {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if _, err := ccall.Open(eglLibrary); err != nil {
			return fmt.Sprintf("NVIDIA's kernel driver is here, and its Vulkan driver needs %s: install the package libegl1 (%v)", eglLibrary, err)
		}
		return ""
	}
	nodes, _ := filepath.Glob(renderNodes)
	var denied error
	for _, node := range nodes {
		f, err := os.OpenFile(node, os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
			return ""
		}
		denied = err
	}
	known, _ := filepath.Glob(kernelNodes)
	switch {
	case denied != nil:
		return fmt.Sprintf("drivers of GPUs need %s: add the user to the group render (%v)", renderNodes, denied)
	case len(known) > 0:
		return fmt.Sprintf("the kernel has a GPU (%s), and there is no %s: give the container the devices of /dev/dri", filepath.Base(known[0]), renderNodes)
	case failed:
		return fmt.Sprintf("drivers of GPUs need %s, and there is none: load the kernel's driver, or give the container the devices of /dev/dri", renderNodes)
	}
	return ""
}

// noDevice is a detail with the hint.
func noDevice(detail string, failed bool) string {
	return strings.TrimPrefix(strings.TrimSuffix(detail+"; "+driverHint(failed), "; "), "; ")
}

// noDeviceError is the error of a call without which there is no device. Memory may be there
// for the next call.
func noDeviceError(op string, r Result, detail string, failed bool) error {
	err := &Error{Op: op, Result: r}
	if !errors.Is(err, ErrOutOfMemory) {
		err.Detail, err.Err = noDevice(detail, failed), ErrNoDevice
	}
	return err
}
