// Structures of Vulkan about memory, buffers, semaphores and submission.

package vk

import "structs"

// Memory and buffers.

type vkMemoryType struct {
	_             structs.HostLayout
	propertyFlags uint32
	heapIndex     uint32
}

type vkMemoryHeap struct {
	_     structs.HostLayout
	size  uint64
	flags uint32
}

type vkPhysicalDeviceMemoryProperties struct {
	_               structs.HostLayout
	memoryTypeCount uint32
	memoryTypes     [32]vkMemoryType
	memoryHeapCount uint32
	memoryHeaps     [16]vkMemoryHeap
}

type vkPhysicalDeviceMemoryProperties2 struct {
	_                structs.HostLayout
	vkHead           `type:"1000059006"`
	memoryProperties vkPhysicalDeviceMemoryProperties
}

type vkPhysicalDeviceMemoryBudgetPropertiesEXT struct {
	_          structs.HostLayout
	vkHead     `type:"1000237000"`
	heapBudget [16]uint64
	heapUsage  [16]uint64
}

type vkMemoryAllocateInfo struct {
	_               structs.HostLayout
	vkHead          `type:"5"`
	allocationSize  uint64
	memoryTypeIndex uint32
}

type vkMemoryAllocateFlagsInfo struct {
	_          structs.HostLayout
	vkHead     `type:"1000060000"`
	flags      uint32
	deviceMask uint32
}

type vkMemoryDedicatedAllocateInfo struct {
	_      structs.HostLayout
	vkHead `type:"1000127001"`
	image  uint64
	buffer uint64
}

type vkExportMemoryAllocateInfo struct {
	_           structs.HostLayout
	vkHead      `type:"1000072002"`
	handleTypes uint32
}

type vkImportMemoryFdInfoKHR struct {
	_          structs.HostLayout
	vkHead     `type:"1000074000"`
	handleType uint32
	fd         int32
}

type vkMemoryGetFdInfoKHR struct {
	_          structs.HostLayout
	vkHead     `type:"1000074002"`
	memory     uint64
	handleType uint32
}

type vkMemoryRequirements struct {
	_              structs.HostLayout
	size           uint64
	alignment      uint64
	memoryTypeBits uint32
}

type vkBufferCreateInfo struct {
	_                     structs.HostLayout
	vkHead                `type:"12"`
	flags                 uint32
	size                  uint64
	usage                 uint32
	sharingMode           uint32
	queueFamilyIndexCount uint32
	pQueueFamilyIndices   *uint32
}

type vkExternalMemoryBufferCreateInfo struct {
	_           structs.HostLayout
	vkHead      `type:"1000072000"`
	handleTypes uint32
}

type vkBufferDeviceAddressInfo struct {
	_      structs.HostLayout
	vkHead `type:"1000244001"`
	buffer uint64
}

type vkPhysicalDeviceExternalBufferInfo struct {
	_          structs.HostLayout
	vkHead     `type:"1000071002"`
	flags      uint32
	usage      uint32
	handleType uint32
}

type vkExternalMemoryProperties struct {
	_                             structs.HostLayout
	externalMemoryFeatures        uint32
	exportFromImportedHandleTypes uint32
	compatibleHandleTypes         uint32
}

type vkExternalBufferProperties struct {
	_                        structs.HostLayout
	vkHead                   `type:"1000071003"`
	externalMemoryProperties vkExternalMemoryProperties
}

type vkBufferCopy struct {
	_         structs.HostLayout
	srcOffset uint64
	dstOffset uint64
	size      uint64
}

// Semaphores and submission.

type vkSemaphoreCreateInfo struct {
	_      structs.HostLayout
	vkHead `type:"9"`
	flags  uint32
}

type vkSemaphoreTypeCreateInfo struct {
	_             structs.HostLayout
	vkHead        `type:"1000207002"`
	semaphoreType uint32
	initialValue  uint64
}

type vkExportSemaphoreCreateInfo struct {
	_           structs.HostLayout
	vkHead      `type:"1000077000"`
	handleTypes uint32
}

type vkSemaphoreGetFdInfoKHR struct {
	_          structs.HostLayout
	vkHead     `type:"1000079001"`
	semaphore  uint64
	handleType uint32
}

type vkImportSemaphoreFdInfoKHR struct {
	_          structs.HostLayout
	vkHead     `type:"1000079000"`
	semaphore  uint64
	flags      uint32
	handleType uint32
	fd         int32
}

type vkPhysicalDeviceExternalSemaphoreInfo struct {
	_          structs.HostLayout
	vkHead     `type:"1000076000"`
	handleType uint32
}

type vkExternalSemaphoreProperties struct {
	_                             structs.HostLayout
	vkHead                        `type:"1000076001"`
	exportFromImportedHandleTypes uint32
	compatibleHandleTypes         uint32
	externalSemaphoreFeatures     uint32
}

type vkSemaphoreWaitInfo struct {
	_              structs.HostLayout
	vkHead         `type:"1000207004"`
	flags          uint32
	semaphoreCount uint32
	pSemaphores    *uint64
	pValues        *uint64
}

type vkSemaphoreSignalInfo struct {
	_         structs.HostLayout
	vkHead    `type:"1000207005"`
	semaphore uint64
	value     uint64
}

type vkSubmitInfo struct {
	_                    structs.HostLayout
	vkHead               `type:"4"`
	waitSemaphoreCount   uint32
	pWaitSemaphores      *uint64
	pWaitDstStageMask    *uint32
	commandBufferCount   uint32
	pCommandBuffers      *VkCommandBuffer
	signalSemaphoreCount uint32
	pSignalSemaphores    *uint64
}

type vkTimelineSemaphoreSubmitInfo struct {
	_                         structs.HostLayout
	vkHead                    `type:"1000207003"`
	waitSemaphoreValueCount   uint32
	pWaitSemaphoreValues      *uint64
	signalSemaphoreValueCount uint32
	pSignalSemaphoreValues    *uint64
}
