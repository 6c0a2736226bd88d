// Structures of Vulkan about instances, devices and debugging.

package vk

import (
	"structs"
	"unsafe"
)

// Instance and device.

type vkApplicationInfo struct {
	_                  structs.HostLayout
	vkHead             `type:"0"`
	pApplicationName   *byte
	applicationVersion uint32
	pEngineName        *byte
	engineVersion      uint32
	apiVersion         uint32
}

type vkInstanceCreateInfo struct {
	_                       structs.HostLayout
	vkHead                  `type:"1"`
	flags                   uint32
	pApplicationInfo        *vkApplicationInfo
	enabledLayerCount       uint32
	ppEnabledLayerNames     **byte
	enabledExtensionCount   uint32
	ppEnabledExtensionNames **byte
}

type vkExtensionProperties struct {
	_             structs.HostLayout
	extensionName [256]byte
	specVersion   uint32
}

type vkLayerProperties struct {
	_                     structs.HostLayout
	layerName             [256]byte
	specVersion           uint32
	implementationVersion uint32
	description           [256]byte
}

type vkValidationFeaturesEXT struct {
	_                              structs.HostLayout
	vkHead                         `type:"1000247000"`
	enabledValidationFeatureCount  uint32
	pEnabledValidationFeatures     *uint32
	disabledValidationFeatureCount uint32
	pDisabledValidationFeatures    *uint32
}

type vkDeviceQueueCreateInfo struct {
	_                structs.HostLayout
	vkHead           `type:"2"`
	flags            uint32
	queueFamilyIndex uint32
	queueCount       uint32
	pQueuePriorities *float32
}

type vkDeviceCreateInfo struct {
	_                       structs.HostLayout
	vkHead                  `type:"3"`
	flags                   uint32
	queueCreateInfoCount    uint32
	pQueueCreateInfos       *vkDeviceQueueCreateInfo
	enabledLayerCount       uint32
	ppEnabledLayerNames     **byte
	enabledExtensionCount   uint32
	ppEnabledExtensionNames **byte
	pEnabledFeatures        unsafe.Pointer
}

type vkQueueFamilyProperties struct {
	_                           structs.HostLayout
	queueFlags                  uint32
	queueCount                  uint32
	timestampValidBits          uint32
	minImageTransferGranularity [3]uint32
}

// Features and properties.

type vkPhysicalDeviceFeatures struct {
	_                  structs.HostLayout
	robustBufferAccess uint32
	others1            [38]uint32
	shaderFloat64      uint32
	shaderInt64        uint32
	shaderInt16        uint32
	others2            [13]uint32
}

type vkPhysicalDeviceFeatures2 struct {
	_        structs.HostLayout
	vkHead   `type:"1000059000"`
	features vkPhysicalDeviceFeatures
}

type vkPhysicalDeviceLimits struct {
	_                                   structs.HostLayout
	images                              [7]uint32
	maxStorageBufferRange               uint32
	maxPushConstantsSize                uint32
	maxMemoryAllocationCount            uint32
	maxSamplerAllocationCount           uint32
	granularities                       [2]uint64
	descriptors1                        [3]uint32
	maxPerStageDescriptorStorageBuffers uint32
	descriptors2                        [3]uint32
	maxPerStageResources                uint32
	descriptors3                        [3]uint32
	maxDescriptorSetStorageBuffers      uint32
	graphics1                           [26]uint32
	maxComputeSharedMemorySize          uint32
	maxComputeWorkGroupCount            [3]uint32
	maxComputeWorkGroupInvocations      uint32
	maxComputeWorkGroupSize             [3]uint32
	graphics2                           [13]uint32
	minMemoryMapAlignment               uint64
	minTexelBufferOffsetAlignment       uint64
	minUniformBufferOffsetAlignment     uint64
	minStorageBufferOffsetAlignment     uint64
	graphics3                           [21]uint32
	timestampComputeAndGraphics         uint32
	timestampPeriod                     float32
	graphics4                           [12]uint32
	copyAlignments                      [2]uint64
	nonCoherentAtomSize                 uint64
}

type vkPhysicalDeviceProperties struct {
	_                 structs.HostLayout
	apiVersion        uint32
	driverVersion     uint32
	vendorID          uint32
	deviceID          uint32
	deviceType        uint32
	deviceName        [256]byte
	pipelineCacheUUID [16]uint8
	limits            vkPhysicalDeviceLimits
	sparseProperties  [5]uint32
}

type vkPhysicalDeviceProperties2 struct {
	_          structs.HostLayout
	vkHead     `type:"1000059001"`
	properties vkPhysicalDeviceProperties
}

type vkPhysicalDeviceIDProperties struct {
	_               structs.HostLayout
	vkHead          `type:"1000071004"`
	deviceUUID      [16]uint8
	driverUUID      [16]uint8
	deviceLUID      [8]uint8
	deviceNodeMask  uint32
	deviceLUIDValid uint32
}

type vkPhysicalDeviceMaintenance3Properties struct {
	_                       structs.HostLayout
	vkHead                  `type:"1000168000"`
	maxPerSetDescriptors    uint32
	maxMemoryAllocationSize uint64
}

type vkPhysicalDeviceMaintenance4Properties struct {
	_             structs.HostLayout
	vkHead        `type:"1000413001"`
	maxBufferSize uint64
}

type vkPhysicalDeviceSubgroupProperties struct {
	_                         structs.HostLayout
	vkHead                    `type:"1000094000"`
	subgroupSize              uint32
	supportedStages           uint32
	supportedOperations       uint32
	quadOperationsInAllStages uint32
}

type vkPhysicalDeviceSubgroupSizeControlProperties struct {
	_                            structs.HostLayout
	vkHead                       `type:"1000225000"`
	minSubgroupSize              uint32
	maxSubgroupSize              uint32
	maxComputeWorkgroupSubgroups uint32
	requiredSubgroupSizeStages   uint32
}

type vkPhysicalDeviceDriverProperties struct {
	_                  structs.HostLayout
	vkHead             `type:"1000196000"`
	driverID           uint32
	driverName         [256]byte
	driverInfo         [256]byte
	conformanceVersion [4]uint8
}

type vkPhysicalDeviceTimelineSemaphoreProperties struct {
	_                                   structs.HostLayout
	vkHead                              `type:"1000207001"`
	maxTimelineSemaphoreValueDifference uint64
}

type vkPhysicalDeviceShaderSMBuiltinsPropertiesNV struct {
	_                structs.HostLayout
	vkHead           `type:"1000154001"`
	shaderSMCount    uint32
	shaderWarpsPerSM uint32
}

type vkPhysicalDeviceShaderCorePropertiesAMD struct {
	_                          structs.HostLayout
	vkHead                     `type:"1000185000"`
	shaderEngineCount          uint32
	shaderArraysPerEngineCount uint32
	computeUnitsPerShaderArray uint32
	others                     [11]uint32
}

type vkPhysicalDeviceShaderCoreBuiltinsPropertiesARM struct {
	_                  structs.HostLayout
	vkHead             `type:"1000497001"`
	shaderCoreMask     uint64
	shaderCoreCount    uint32
	shaderWarpsPerCore uint32
}

type vkPhysicalDeviceCooperativeMatrixPropertiesKHR struct {
	_                                structs.HostLayout
	vkHead                           `type:"1000506002"`
	cooperativeMatrixSupportedStages uint32
}

type vkCooperativeMatrixPropertiesKHR struct {
	_                      structs.HostLayout
	vkHead                 `type:"1000506001"`
	MSize                  uint32
	NSize                  uint32
	KSize                  uint32
	AType                  uint32
	BType                  uint32
	CType                  uint32
	ResultType             uint32
	saturatingAccumulation uint32
	scope                  uint32
}

type vkPhysicalDeviceCooperativeMatrix2PropertiesNV struct {
	_                                                   structs.HostLayout
	vkHead                                              `type:"1000593002"`
	cooperativeMatrixWorkgroupScopeMaxWorkgroupSize     uint32
	cooperativeMatrixFlexibleDimensionsMaxDimension     uint32
	cooperativeMatrixWorkgroupScopeReservedSharedMemory uint32
}

type vkCooperativeMatrixFlexibleDimensionsPropertiesNV struct {
	_                      structs.HostLayout
	vkHead                 `type:"1000593001"`
	MGranularity           uint32
	NGranularity           uint32
	KGranularity           uint32
	AType                  uint32
	BType                  uint32
	CType                  uint32
	ResultType             uint32
	saturatingAccumulation uint32
	scope                  uint32
	workgroupInvocations   uint32
}

// Debugging.

type vkDebugUtilsObjectNameInfoEXT struct {
	_            structs.HostLayout
	vkHead       `type:"1000128000"`
	objectType   uint32
	objectHandle uint64
	pObjectName  *byte
}

type vkDebugUtilsLabelEXT struct {
	_          structs.HostLayout
	vkHead     `type:"1000128002"`
	pLabelName *byte
	color      [4]float32
}

type vkDebugUtilsMessengerCallbackDataEXT struct {
	_                structs.HostLayout
	vkHead           `type:"1000128003"`
	flags            uint32
	pMessageIdName   *byte
	messageIdNumber  int32
	pMessage         *byte
	queueLabelCount  uint32
	pQueueLabels     *vkDebugUtilsLabelEXT
	cmdBufLabelCount uint32
	pCmdBufLabels    *vkDebugUtilsLabelEXT
	objectCount      uint32
	pObjects         *vkDebugUtilsObjectNameInfoEXT
}

type vkDebugUtilsMessengerCreateInfoEXT struct {
	_               structs.HostLayout
	vkHead          `type:"1000128004"`
	flags           uint32
	messageSeverity uint32
	messageType     uint32
	pfnUserCallback uintptr
	pUserData       uintptr
}
