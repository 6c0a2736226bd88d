// Calls of Vulkan about buffers and memory.

package vk

import (
	"unsafe"

	"vkattn/internal/ccall"
)

// Flags of hostCreateBuffer and hostAllocate.
const (
	bufferExternal = 1

	memoryMap    = 1
	memoryExport = 2
)

const bufferUsage = vkBufferUsageStorageBufferBit | vkBufferUsageTransferSrcBit | vkBufferUsageTransferDstBit

func hostCreateBuffer(d *hostDevice, size uint64, flags uint32, buffer, need, alignment *uint64, types *uint32) Result {
	info := headed(vkBufferCreateInfo{size: size, usage: bufferUsage})
	if flags&bufferExternal != 0 {
		info.pNext = unsafe.Pointer(headed(vkExternalMemoryBufferCreateInfo{handleTypes: vkExternalMemoryHandleTypeOpaqueFdBit}))
	}
	if d.has(featureBufferDeviceAddress) {
		info.usage |= vkBufferUsageShaderDeviceAddressBit
	}
	r := call(d.CreateBuffer, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(buffer)))
	if r != ResultSuccess {
		return r
	}
	var m vkMemoryRequirements
	call(d.GetBufferMemoryRequirements, d.arg(), uintptr(*buffer), uintptr(unsafe.Pointer(&m)))
	*need, *alignment, *types = m.size, m.alignment, m.memoryTypeBits
	return r
}

// hostAllocate allocates memory: for one buffer if dedicated is not 0, from the file fd if that is not -1. *mapped is
// set with memoryMap. The memory takes a copy of fd: whatever fails, now or when the buffer is bound, the caller's
// stays open.
func hostAllocate(d *hostDevice, size uint64, kind, flags uint32, dedicated uint64, fd int, memory *uint64, mapped *unsafe.Pointer) Result {
	info := headed(vkMemoryAllocateInfo{allocationSize: size, memoryTypeIndex: kind})
	if d.has(featureBufferDeviceAddress) {
		info.chain(&headed(vkMemoryAllocateFlagsInfo{flags: vkMemoryAllocateDeviceAddressBit}).vkHead)
	}
	if dedicated != 0 {
		info.chain(&headed(vkMemoryDedicatedAllocateInfo{buffer: dedicated}).vkHead)
	}
	if flags&memoryExport != 0 {
		info.chain(&headed(vkExportMemoryAllocateInfo{handleTypes: vkExternalMemoryHandleTypeOpaqueFdBit}).vkHead)
	}
	var file fileCopy
	if fd >= 0 {
		var ok bool
		if file, ok = copyFile(fd); !ok {
			return ResultInvalidExternalHandle
		}
		info.chain(&headed(vkImportMemoryFdInfoKHR{
			handleType: vkExternalMemoryHandleTypeOpaqueFdBit,
			fd:         int32(file.fd),
		}).vkHead)
	}
	r := call(d.AllocateMemory, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(memory)))
	if r != ResultSuccess && fd >= 0 {
		file.closeSame() // lavapipe and SwiftShader have closed it
	}
	if r != ResultSuccess || flags&memoryMap == 0 {
		return r
	}
	r = call(d.MapMemory, d.arg(), uintptr(*memory), 0, ^uintptr(0), 0, uintptr(unsafe.Pointer(mapped)))
	if r != ResultSuccess {
		d.destroy(d.FreeMemory, *memory)
	}
	return r
}

func hostBindBuffer(d *hostDevice, buffer, memory, offset uint64, address *uint64) Result {
	*address = 0
	r := call(d.BindBufferMemory, d.arg(), uintptr(buffer), uintptr(memory), uintptr(offset))
	if r == ResultSuccess && d.has(featureBufferDeviceAddress) {
		info := headed(vkBufferDeviceAddressInfo{buffer: buffer})
		*address = uint64(ccall.Call(d.GetBufferDeviceAddress, d.arg(), uintptr(unsafe.Pointer(info))))
	}
	return r
}

func hostExportMemory(d *hostDevice, memory uint64, fd *int32) Result {
	info := headed(vkMemoryGetFdInfoKHR{memory: memory, handleType: vkExternalMemoryHandleTypeOpaqueFdBit})
	return call(d.GetMemoryFdKHR, d.arg(), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(fd)))
}

func hostHeapBudget(in *hostInstance, d VkPhysicalDevice, budget, usage *[16]uint64) {
	b := headed(vkPhysicalDeviceMemoryBudgetPropertiesEXT{})
	core := headed(vkPhysicalDeviceMemoryProperties2{})
	core.chain(&b.vkHead)
	call(in.GetPhysicalDeviceMemoryProperties2, uintptr(d), uintptr(unsafe.Pointer(core)))
	*budget, *usage = b.heapBudget, b.heapUsage
}
