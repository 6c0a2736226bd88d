package vk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
	"vkattn/internal/driverlib"
)

// instanceVersions are tried from the newest on. A 1.1 driver must accept all of them, but
// some refuse versions that they do not know.
var instanceVersions = []uint32{1<<22 | 4<<12, 1<<22 | 3<<12, 1<<22 | 2<<12, 1<<22 | 1<<12}

func newInstance(flags uint32, log *messageLog) (*hostInstance, error) {
	get, err := GetInstanceProcAddr()
	if err != nil {
		return nil, err
	}
	have := hostLoaderVersion(get)
	if have < 1<<22|1<<12 {
		return nil, refuse("vkCreateInstance", errors.Join(ErrNoDevice, ErrUnsupported), "the Vulkan loader knows 1.0 only; 1.1 is the least")
	}
	var messages *hostMessages
	if log != nil {
		messages = log.c
	}
	var in *hostInstance
	var missing []missingFunction
	r := ResultIncompatibleDriver
	for _, v := range instanceVersions {
		if v>>12 > have>>12 {
			continue
		}
		in, missing, r = hostCreateInstance(get, v, flags, messages)
		if r != ResultIncompatibleDriver {
			break
		}
	}
	err = &Error{Op: "vkCreateInstance", Result: r}
	validates := flags&instanceValidation != 0
	switch {
	case r == ResultSuccess:
		return in, nil
	case len(missing) > 0:
		err = functionsError("vkGetInstanceProcAddr", missing, false)
	case r == ResultIncompatibleDriver:
		err = noDeviceError("vkCreateInstance", r, "no usable driver", false)
	case r == ResultLayerNotPresent && validates:
		err.(*Error).Detail = "validation was asked for and VK_LAYER_KHRONOS_validation is not installed"
	case !validates:
		err = noDeviceError("vkCreateInstance", r, "", false)
	}
	return nil, err
}

var driversLoaded sync.Once

// closeInstance destroys an instance unless it is the first of this process. The loader
// unloads a driver with the last instance that uses it, and NVIDIA's driver (580.159)
// cannot be loaded more than about ten times in one process. With validation layers the
// first instance is destroyed too, as only then they report leaks, and one without layers
// replaces it.
func closeInstance(in *hostInstance) {
	stays := false
	if owned, debugs, get := in.owned, in.messages != nil || in.debugUtils, in.get; owned {
		driversLoaded.Do(func() {
			stays = !debugs
			if !stays {
				hostCreateInstance(get, 1<<22|1<<12, 0, nil)
			}
		})
	}
	if !stays {
		hostDestroyInstance(in)
	}
}

// physicalDevices lists the handles in the loader's order.
func physicalDevices(in *hostInstance) ([]VkPhysicalDevice, error) {
	list, r := hostPhysicalDevices(in)
	if r < 0 {
		return nil, noDeviceError("vkEnumeratePhysicalDevices", r, "the Vulkan drivers find no device", true)
	}
	return list, nil
}

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
