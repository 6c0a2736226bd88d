//go:build cgo

package main

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"

	"vkattn/vk"
)

const apiVersion = 1<<22 | 3<<12 // Vulkan 1.3

// own is what the program made itself, through goki/vulkan.
type own struct {
	instance vulkan.Instance
	physical vulkan.PhysicalDevice
	device   vulkan.Device
	queue    vulkan.Queue
	family   uint32
	pool     vulkan.CommandPool
	commands vulkan.CommandBuffer
	fence    vulkan.Fence
	buffers  []*ownBuffer
	done     []func() error

	queueLock sync.Mutex // a queue is used by one thread at a time
}

type ownBuffer struct {
	handle vulkan.Buffer
	memory vulkan.DeviceMemory
	bytes  []byte // mapped
}

// number is the VkBuffer as a number.
func (b *ownBuffer) number() uint64 { return uint64(uintptr(unsafe.Pointer(b.handle))) }

func check(what string, r vulkan.Result) error {
	switch r {
	case vulkan.Success:
		return nil
	case vulkan.ErrorIncompatibleDriver: // the loader found no driver
		return fmt.Errorf("%w: %s: %s", vk.ErrNoDevice, what, vk.ResultName(vk.Result(r)))
	}
	return fmt.Errorf("%s: %s", what, vk.ResultName(vk.Result(r)))
}

// openOwn makes a device with one compute queue and what vkattn needs. version is the smaller of the versions
// of the device and the instance.
func openOwn(need *vk.Requirements, version uint32) (_ *own, err error) {
	// The loader that the library would take too; a program may as well load its own.
	get, err := vk.GetInstanceProcAddr()
	if err != nil {
		return nil, err
	}
	vulkan.SetGetInstanceProcAddr(get)
	if err := vulkan.Init(); err != nil {
		return nil, err
	}
	o := &own{}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	app := &vulkan.ApplicationInfo{SType: vulkan.StructureTypeApplicationInfo, ApiVersion: apiVersion}
	if err := check("vkCreateInstance", vulkan.CreateInstance(&vulkan.InstanceCreateInfo{
		SType: vulkan.StructureTypeInstanceCreateInfo, PApplicationInfo: app,
	}, nil, &o.instance)); err != nil {
		return nil, err
	}
	if err := vulkan.InitInstance(o.instance); err != nil {
		return nil, err
	}
	if err := o.choose(); err != nil {
		return nil, err
	}
	features, err := need.Chain()
	if err != nil {
		return nil, err
	}
	defer features.Close()
	extensions := need.Extensions(version)
	for i := range extensions {
		extensions[i] += "\x00"
	}
	if err := check("vkCreateDevice", vulkan.CreateDevice(o.physical, &vulkan.DeviceCreateInfo{
		SType: vulkan.StructureTypeDeviceCreateInfo, PNext: features.Pointer(), QueueCreateInfoCount: 1,
		EnabledExtensionCount: uint32(len(extensions)), PpEnabledExtensionNames: extensions,
		PQueueCreateInfos: []vulkan.DeviceQueueCreateInfo{{
			SType: vulkan.StructureTypeDeviceQueueCreateInfo, QueueFamilyIndex: o.family, QueueCount: 1, PQueuePriorities: []float32{1},
		}},
	}, nil, &o.device)); err != nil {
		return nil, err
	}
	vulkan.GetDeviceQueue(o.device, o.family, 0, &o.queue)
	if err := check("vkCreateCommandPool", vulkan.CreateCommandPool(o.device, &vulkan.CommandPoolCreateInfo{
		SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: o.family,
	}, nil, &o.pool)); err != nil {
		return nil, err
	}
	if err := check("vkCreateFence", vulkan.CreateFence(o.device, &vulkan.FenceCreateInfo{
		SType: vulkan.StructureTypeFenceCreateInfo,
	}, nil, &o.fence)); err != nil {
		return nil, err
	}
	list := make([]vulkan.CommandBuffer, 1)
	err = check("vkAllocateCommandBuffers", vulkan.AllocateCommandBuffers(o.device, &vulkan.CommandBufferAllocateInfo{
		SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: o.pool,
		Level: vulkan.CommandBufferLevelPrimary, CommandBufferCount: 1,
	}, list))
	o.commands = list[0]
	return o, err
}

// choose takes the first device, and its first queue family with compute.
func (o *own) choose() error {
	var n uint32
	if err := check("vkEnumeratePhysicalDevices", vulkan.EnumeratePhysicalDevices(o.instance, &n, nil)); err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: the loader lists none", vk.ErrNoDevice)
	}
	devices := make([]vulkan.PhysicalDevice, n)
	if err := check("vkEnumeratePhysicalDevices", vulkan.EnumeratePhysicalDevices(o.instance, &n, devices)); err != nil {
		return err
	}
	o.physical = devices[0]
	vulkan.GetPhysicalDeviceQueueFamilyProperties(o.physical, &n, nil)
	families := make([]vulkan.QueueFamilyProperties, n)
	vulkan.GetPhysicalDeviceQueueFamilyProperties(o.physical, &n, families)
	for i := range families {
		families[i].Deref()
		if families[i].QueueFlags&vulkan.QueueFlags(vulkan.QueueComputeBit) != 0 {
			o.family = uint32(i)
			return nil
		}
	}
	return fmt.Errorf("%w: no queue family has compute", vk.ErrUnsupported)
}

// newBuffer makes a storage buffer in memory that the host sees.
func (o *own) newBuffer(size int) (*ownBuffer, error) {
	b := &ownBuffer{}
	o.buffers = append(o.buffers, b)
	if err := check("vkCreateBuffer", vulkan.CreateBuffer(o.device, &vulkan.BufferCreateInfo{
		SType: vulkan.StructureTypeBufferCreateInfo, Size: vulkan.DeviceSize(size),
		Usage: vulkan.BufferUsageFlags(vulkan.BufferUsageStorageBufferBit),
	}, nil, &b.handle)); err != nil {
		return nil, err
	}
	var need vulkan.MemoryRequirements
	vulkan.GetBufferMemoryRequirements(o.device, b.handle, &need)
	need.Deref()
	var memory vulkan.PhysicalDeviceMemoryProperties
	vulkan.GetPhysicalDeviceMemoryProperties(o.physical, &memory)
	memory.Deref()
	const wanted = vulkan.MemoryPropertyFlags(vulkan.MemoryPropertyHostVisibleBit | vulkan.MemoryPropertyHostCoherentBit)
	for i := range memory.MemoryTypeCount {
		memory.MemoryTypes[i].Deref()
		if need.MemoryTypeBits&(1<<i) == 0 || memory.MemoryTypes[i].PropertyFlags&wanted != wanted {
			continue
		}
		if err := check("vkAllocateMemory", vulkan.AllocateMemory(o.device, &vulkan.MemoryAllocateInfo{
			SType: vulkan.StructureTypeMemoryAllocateInfo, AllocationSize: need.Size, MemoryTypeIndex: i,
		}, nil, &b.memory)); err != nil {
			return nil, err
		}
		if err := check("vkBindBufferMemory", vulkan.BindBufferMemory(o.device, b.handle, b.memory, 0)); err != nil {
			return nil, err
		}
		var mapped unsafe.Pointer
		if err := check("vkMapMemory", vulkan.MapMemory(o.device, b.memory, 0, need.Size, 0, &mapped)); err != nil {
			return nil, err
		}
		b.bytes = unsafe.Slice((*byte)(mapped), size)
		return b, nil
	}
	return nil, fmt.Errorf("%w: no memory type is host-visible and coherent", vk.ErrUnsupported)
}

// whenDone has f called once the commands have run.
func (o *own) whenDone(f func() error) { o.done = append(o.done, f) }

// submit records the program's command buffer, submits it and waits.
func (o *own) submit(record func() error) error {
	if err := check("vkBeginCommandBuffer", vulkan.BeginCommandBuffer(o.commands, &vulkan.CommandBufferBeginInfo{
		SType: vulkan.StructureTypeCommandBufferBeginInfo,
	})); err != nil {
		return err
	}
	if err := record(); err != nil {
		return err
	}
	// What shaders wrote is to be read by the host.
	vulkan.CmdPipelineBarrier(o.commands, vulkan.PipelineStageFlags(vulkan.PipelineStageComputeShaderBit),
		vulkan.PipelineStageFlags(vulkan.PipelineStageHostBit), 0, 1, []vulkan.MemoryBarrier{{
			SType: vulkan.StructureTypeMemoryBarrier, SrcAccessMask: vulkan.AccessFlags(vulkan.AccessShaderWriteBit),
			DstAccessMask: vulkan.AccessFlags(vulkan.AccessHostReadBit),
		}}, 0, nil, 0, nil)
	if err := check("vkEndCommandBuffer", vulkan.EndCommandBuffer(o.commands)); err != nil {
		return err
	}
	o.queueLock.Lock()
	err := check("vkQueueSubmit", vulkan.QueueSubmit(o.queue, 1, []vulkan.SubmitInfo{{
		SType: vulkan.StructureTypeSubmitInfo, CommandBufferCount: 1, PCommandBuffers: []vulkan.CommandBuffer{o.commands},
	}}, o.fence))
	o.queueLock.Unlock()
	if err == nil {
		err = check("vkWaitForFences", vulkan.WaitForFences(o.device, 1, []vulkan.Fence{o.fence}, vulkan.True, math.MaxUint64))
	}
	for _, f := range o.done {
		if e := f(); err == nil {
			err = e
		}
	}
	o.done = nil
	return err
}

func (o *own) close() {
	if o.device != nil {
		vulkan.DeviceWaitIdle(o.device)
		for _, b := range o.buffers {
			vulkan.DestroyBuffer(o.device, b.handle, nil)
			vulkan.FreeMemory(o.device, b.memory, nil)
		}
		vulkan.DestroyFence(o.device, o.fence, nil)
		vulkan.DestroyCommandPool(o.device, o.pool, nil)
		vulkan.DestroyDevice(o.device, nil)
	}
	if o.instance != nil {
		vulkan.DestroyInstance(o.instance, nil)
	}
}
