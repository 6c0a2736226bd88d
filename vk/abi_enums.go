// Numbers of Vulkan. Their names are those of the registry without underscores.

package vk

// Results are in errors.go, except this one.
const vkIncomplete = 5

// Flag bits and small enums.
const (
	vkInstanceCreateEnumeratePortabilityBitKHR            = 1
	vkQueueComputeBit                                     = 2
	vkMemoryPropertyDeviceLocalBit                        = 1
	vkMemoryPropertyHostVisibleBit                        = 2
	vkMemoryPropertyHostCoherentBit                       = 4
	vkMemoryPropertyHostCachedBit                         = 8
	vkMemoryHeapDeviceLocalBit                            = 1
	vkMemoryAllocateDeviceAddressBit                      = 2
	vkBufferUsageTransferSrcBit                           = 1
	vkBufferUsageTransferDstBit                           = 2
	vkBufferUsageStorageBufferBit                         = 0x20
	vkBufferUsageShaderDeviceAddressBit                   = 0x20000
	vkExternalMemoryHandleTypeOpaqueFdBit                 = 1
	vkExternalMemoryFeatureDedicatedOnlyBit               = 1
	vkExternalMemoryFeatureExportableBit                  = 2
	vkExternalMemoryFeatureImportableBit                  = 4
	vkExternalSemaphoreHandleTypeOpaqueFdBit              = 1
	vkExternalSemaphoreFeatureExportableBit               = 1
	vkExternalSemaphoreFeatureImportableBit               = 2
	vkSemaphoreTypeTimeline                               = 1
	vkShaderStageComputeBit                               = 0x20
	vkDescriptorTypeStorageBuffer                         = 7
	vkPipelineBindPointCompute                            = 1
	vkPipelineCreateCaptureStatisticsBitKHR               = 0x40
	vkPipelineShaderStageCreateRequireFullSubgroupsBit    = 2
	vkPipelineRobustnessBufferBehaviorDisabled            = 1
	vkPipelineExecutableStatisticFormatBool32KHR          = 0
	vkPipelineExecutableStatisticFormatInt64KHR           = 1
	vkPipelineExecutableStatisticFormatUint64KHR          = 2
	vkPipelineExecutableStatisticFormatFloat64KHR         = 3
	vkCommandPoolCreateTransientBit                       = 1
	vkCommandBufferUsageOneTimeSubmitBit                  = 1
	vkPipelineStageComputeShaderBit                       = 0x800
	vkPipelineStageTransferBit                            = 0x1000
	vkPipelineStageBottomOfPipeBit                        = 0x2000
	vkPipelineStageHostBit                                = 0x4000
	vkPipelineStageAllCommandsBit                         = 0x10000
	vkAccessShaderReadBit                                 = 0x20
	vkAccessShaderWriteBit                                = 0x40
	vkAccessTransferReadBit                               = 0x800
	vkAccessTransferWriteBit                              = 0x1000
	vkAccessHostReadBit                                   = 0x2000
	vkAccessMemoryReadBit                                 = 0x8000
	vkAccessMemoryWriteBit                                = 0x10000
	vkQueryTypeTimestamp                                  = 2
	vkQueryResult64Bit                                    = 1
	vkObjectTypeSemaphore                                 = 5
	vkObjectTypeBuffer                                    = 9
	vkObjectTypePipeline                                  = 19
	vkDebugUtilsMessageSeverityWarningBitEXT              = 0x100
	vkDebugUtilsMessageSeverityErrorBitEXT                = 0x1000
	vkDebugUtilsMessageTypeValidationBitEXT               = 2
	vkDebugUtilsMessageTypePerformanceBitEXT              = 4
	vkValidationFeatureEnableGpuAssistedEXT               = 0
	vkValidationFeatureEnableSynchronizationValidationEXT = 4
	vkTimeDomainDeviceKHR                                 = 0
	vkTimeDomainClockMonotonicKHR                         = 1
	vkTimeDomainQueryPerformanceCounterKHR                = 3
)
