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

// What host.h has numbers for. host_cgo.go compares them.
const (
	maxBindings         = 32
	maxParams           = 64
	maxSubmitSemaphores = 32

	bufferExternal = 1

	memoryMap    = 1
	memoryExport = 2

	pipelineFullSubgroups = 1
	pipelineNoRobustness  = 2
	pipelineStatistics    = 4

	instanceDebug       = 1
	instanceValidation  = 2
	instanceSync        = 4
	instanceGPUAssisted = 8

	featureSubgroupSizeControl = 15
	featureCount               = 44
)

// Numbers of Vulkan. host_cgo.go compares them with the headers of this package.
const (
	objectSemaphore = 5
	objectBuffer    = 9
	objectPipeline  = 19

	memoryDeviceLocal  = 1
	memoryHostVisible  = 2
	memoryHostCoherent = 4
	memoryHostCached   = 8
)
