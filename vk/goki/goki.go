//go:build cgo

// Package goki converts handles between package vk and github.com/goki/vulkan, for programs that use both.
// It exists in builds with cgo, which goki/vulkan needs.
//
// Results are numbers in both packages: vulkan.Result(r) and vk.Result(r) convert them.
package goki

import (
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"

	"vkattn/vk"
)

// pointer is a handle as the C pointer that goki/vulkan has. The memory behind it is the driver's.
func pointer[H ~uintptr](h H) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&h)) }

// Instance returns the handle in the type of goki/vulkan.
func Instance(h vk.VkInstance) vulkan.Instance { return vulkan.Instance(pointer(h)) }

// PhysicalDevice returns the handle in the type of goki/vulkan.
func PhysicalDevice(h vk.VkPhysicalDevice) vulkan.PhysicalDevice {
	return vulkan.PhysicalDevice(pointer(h))
}

// Device returns the handle in the type of goki/vulkan.
func Device(h vk.VkDevice) vulkan.Device { return vulkan.Device(pointer(h)) }

// Queue returns the handle in the type of goki/vulkan.
func Queue(h vk.VkQueue) vulkan.Queue { return vulkan.Queue(pointer(h)) }

// CommandBuffer returns the handle in the type of goki/vulkan.
func CommandBuffer(h vk.VkCommandBuffer) vulkan.CommandBuffer {
	return vulkan.CommandBuffer(pointer(h))
}

// FromInstance returns the handle in the type of package vk.
func FromInstance(h vulkan.Instance) vk.VkInstance { return vk.VkInstance(unsafe.Pointer(h)) }

// FromPhysicalDevice returns the handle in the type of package vk.
func FromPhysicalDevice(h vulkan.PhysicalDevice) vk.VkPhysicalDevice {
	return vk.VkPhysicalDevice(unsafe.Pointer(h))
}

// FromDevice returns the handle in the type of package vk.
func FromDevice(h vulkan.Device) vk.VkDevice { return vk.VkDevice(unsafe.Pointer(h)) }

// FromQueue returns the handle in the type of package vk.
func FromQueue(h vulkan.Queue) vk.VkQueue { return vk.VkQueue(unsafe.Pointer(h)) }

// FromCommandBuffer returns the handle in the type of package vk.
func FromCommandBuffer(h vulkan.CommandBuffer) vk.VkCommandBuffer {
	return vk.VkCommandBuffer(unsafe.Pointer(h))
}

var loader struct {
	sync.Mutex
	set bool
}

// Init gives goki/vulkan the loader of package vk, and the instance of a device, so that a program can call
// its functions with the handles of that device. By itself goki/vulkan opens libvulkan.so, which only
// development packages have. Call it once for each device.
func Init(d *vk.Device) error {
	instance := Instance(d.VulkanInstance())
	if instance == nil {
		return &vk.Error{Op: "goki.Init", Detail: "no open device", Err: vk.ErrInvalid}
	}
	get, err := vk.GetInstanceProcAddr()
	if err != nil {
		return err
	}
	loader.Lock()
	defer loader.Unlock()
	if !loader.set {
		vulkan.SetGetInstanceProcAddr(get)
		if err := vulkan.Init(); err != nil {
			return err
		}
		loader.set = true
	}
	return vulkan.InitInstance(instance)
}
