package vk

// Dispatchable handles of Vulkan as numbers. 0 is VK_NULL_HANDLE. Package vk/goki converts them from and
// to the types of github.com/goki/vulkan.
type (
	VkInstance       uintptr
	VkPhysicalDevice uintptr
	VkDevice         uintptr
	VkQueue          uintptr
	VkCommandBuffer  uintptr
)

// deviceHandles are the handles of a Device.
type deviceHandles struct {
	physical VkPhysicalDevice
	device   VkDevice
	queue    VkQueue
}

// Kinds of objects that have names for tools, and properties of memory, by other names than Vulkan's.
const (
	objectSemaphore = vkObjectTypeSemaphore
	objectBuffer    = vkObjectTypeBuffer
	objectPipeline  = vkObjectTypePipeline

	memoryDeviceLocal  = vkMemoryPropertyDeviceLocalBit
	memoryHostVisible  = vkMemoryPropertyHostVisibleBit
	memoryHostCoherent = vkMemoryPropertyHostCoherentBit
	memoryHostCached   = vkMemoryPropertyHostCachedBit
)
