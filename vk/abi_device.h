/* Structures about instances, devices and debugging. Included by abi.h. */
#ifndef VKATTN_ABI_DEVICE_H
#define VKATTN_ABI_DEVICE_H

/* Instance and device. */

typedef struct VkApplicationInfo {
	VKA_HEAD
	const char *pApplicationName;
	uint32_t applicationVersion;
	const char *pEngineName;
	uint32_t engineVersion;
	uint32_t apiVersion;
} VkApplicationInfo;

typedef struct VkInstanceCreateInfo {
	VKA_HEAD
	VkFlags flags;
	const VkApplicationInfo *pApplicationInfo;
	uint32_t enabledLayerCount;
	const char *const *ppEnabledLayerNames;
	uint32_t enabledExtensionCount;
	const char *const *ppEnabledExtensionNames;
} VkInstanceCreateInfo;

typedef struct VkExtensionProperties {
	char extensionName[256];
	uint32_t specVersion;
} VkExtensionProperties;

typedef struct VkLayerProperties {
	char layerName[256];
	uint32_t specVersion, implementationVersion;
	char description[256];
} VkLayerProperties;

typedef struct VkValidationFeaturesEXT {
	VKA_HEAD
	uint32_t enabledValidationFeatureCount;
	const uint32_t *pEnabledValidationFeatures;
	uint32_t disabledValidationFeatureCount;
	const uint32_t *pDisabledValidationFeatures;
} VkValidationFeaturesEXT;

typedef struct VkDeviceQueueCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t queueFamilyIndex;
	uint32_t queueCount;
	const float *pQueuePriorities;
} VkDeviceQueueCreateInfo;

typedef struct VkDeviceCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t queueCreateInfoCount;
	const VkDeviceQueueCreateInfo *pQueueCreateInfos;
	uint32_t enabledLayerCount;
	const char *const *ppEnabledLayerNames;
	uint32_t enabledExtensionCount;
	const char *const *ppEnabledExtensionNames;
	const void *pEnabledFeatures;
} VkDeviceCreateInfo;

typedef struct VkQueueFamilyProperties {
	VkFlags queueFlags;
	uint32_t queueCount;
	uint32_t timestampValidBits;
	uint32_t minImageTransferGranularity[3];
} VkQueueFamilyProperties;

/* Features and properties. */

typedef struct VkPhysicalDeviceFeatures {
	VkBool32 robustBufferAccess;
	VkBool32 others1[38];
	VkBool32 shaderFloat64, shaderInt64, shaderInt16;
	VkBool32 others2[13];
} VkPhysicalDeviceFeatures;

typedef struct VkPhysicalDeviceFeatures2 {
	VKA_HEAD
	VkPhysicalDeviceFeatures features;
} VkPhysicalDeviceFeatures2;

typedef struct VkPhysicalDeviceLimits {
	uint32_t images[7];
	uint32_t maxStorageBufferRange;
	uint32_t maxPushConstantsSize;
	uint32_t maxMemoryAllocationCount;
	uint32_t maxSamplerAllocationCount;
	VkDeviceSize granularities[2];
	uint32_t descriptors1[3];
	uint32_t maxPerStageDescriptorStorageBuffers;
	uint32_t descriptors2[3];
	uint32_t maxPerStageResources;
	uint32_t descriptors3[3];
	uint32_t maxDescriptorSetStorageBuffers;
	uint32_t graphics1[26];
	uint32_t maxComputeSharedMemorySize;
	uint32_t maxComputeWorkGroupCount[3];
	uint32_t maxComputeWorkGroupInvocations;
	uint32_t maxComputeWorkGroupSize[3];
	uint32_t graphics2[13];
	size_t minMemoryMapAlignment;
	VkDeviceSize minTexelBufferOffsetAlignment;
	VkDeviceSize minUniformBufferOffsetAlignment;
	VkDeviceSize minStorageBufferOffsetAlignment;
	uint32_t graphics3[21];
	VkBool32 timestampComputeAndGraphics;
	float timestampPeriod;
	uint32_t graphics4[12];
	VkDeviceSize copyAlignments[2];
	VkDeviceSize nonCoherentAtomSize;
} VkPhysicalDeviceLimits;

typedef struct VkPhysicalDeviceProperties {
	uint32_t apiVersion;
	uint32_t driverVersion;
	uint32_t vendorID;
	uint32_t deviceID;
	uint32_t deviceType;
	char deviceName[256];
	uint8_t pipelineCacheUUID[16];
	VkPhysicalDeviceLimits limits;
	VkBool32 sparseProperties[5];
} VkPhysicalDeviceProperties;

typedef struct VkPhysicalDeviceProperties2 {
	VKA_HEAD
	VkPhysicalDeviceProperties properties;
} VkPhysicalDeviceProperties2;

typedef struct VkPhysicalDeviceIDProperties {
	VKA_HEAD
	uint8_t deviceUUID[16];
	uint8_t driverUUID[16];
	uint8_t deviceLUID[8];
	uint32_t deviceNodeMask;
	VkBool32 deviceLUIDValid;
} VkPhysicalDeviceIDProperties;

typedef struct VkPhysicalDeviceMaintenance3Properties {
	VKA_HEAD
	uint32_t maxPerSetDescriptors;
	VkDeviceSize maxMemoryAllocationSize;
} VkPhysicalDeviceMaintenance3Properties;

typedef struct VkPhysicalDeviceMaintenance4Properties {
	VKA_HEAD
	VkDeviceSize maxBufferSize;
} VkPhysicalDeviceMaintenance4Properties;

typedef struct VkPhysicalDeviceSubgroupProperties {
	VKA_HEAD
	uint32_t subgroupSize;
	VkFlags supportedStages;
	VkFlags supportedOperations;
	VkBool32 quadOperationsInAllStages;
} VkPhysicalDeviceSubgroupProperties;

typedef struct VkPhysicalDeviceSubgroupSizeControlProperties {
	VKA_HEAD
	uint32_t minSubgroupSize;
	uint32_t maxSubgroupSize;
	uint32_t maxComputeWorkgroupSubgroups;
	VkFlags requiredSubgroupSizeStages;
} VkPhysicalDeviceSubgroupSizeControlProperties;

typedef struct VkPhysicalDeviceDriverProperties {
	VKA_HEAD
	uint32_t driverID;
	char driverName[256];
	char driverInfo[256];
	uint8_t conformanceVersion[4];
} VkPhysicalDeviceDriverProperties;

typedef struct VkPhysicalDeviceTimelineSemaphoreProperties {
	VKA_HEAD
	uint64_t maxTimelineSemaphoreValueDifference;
} VkPhysicalDeviceTimelineSemaphoreProperties;

typedef struct VkPhysicalDeviceShaderSMBuiltinsPropertiesNV {
	VKA_HEAD
	uint32_t shaderSMCount;
	uint32_t shaderWarpsPerSM;
} VkPhysicalDeviceShaderSMBuiltinsPropertiesNV;

typedef struct VkPhysicalDeviceShaderCorePropertiesAMD {
	VKA_HEAD
	uint32_t shaderEngineCount;
	uint32_t shaderArraysPerEngineCount;
	uint32_t computeUnitsPerShaderArray;
	uint32_t others[11];
} VkPhysicalDeviceShaderCorePropertiesAMD;

typedef struct VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM {
	VKA_HEAD
	uint64_t shaderCoreMask;
	uint32_t shaderCoreCount;
	uint32_t shaderWarpsPerCore;
} VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM;

typedef struct VkPhysicalDeviceCooperativeMatrixPropertiesKHR {
	VKA_HEAD
	VkFlags cooperativeMatrixSupportedStages;
} VkPhysicalDeviceCooperativeMatrixPropertiesKHR;

typedef struct VkCooperativeMatrixPropertiesKHR {
	VKA_HEAD
	uint32_t MSize, NSize, KSize;
	uint32_t AType, BType, CType, ResultType;
	VkBool32 saturatingAccumulation;
	uint32_t scope;
} VkCooperativeMatrixPropertiesKHR;

typedef struct VkPhysicalDeviceCooperativeMatrix2PropertiesNV {
	VKA_HEAD
	uint32_t cooperativeMatrixWorkgroupScopeMaxWorkgroupSize;
	uint32_t cooperativeMatrixFlexibleDimensionsMaxDimension;
	uint32_t cooperativeMatrixWorkgroupScopeReservedSharedMemory;
} VkPhysicalDeviceCooperativeMatrix2PropertiesNV;

typedef struct VkCooperativeMatrixFlexibleDimensionsPropertiesNV {
	VKA_HEAD
	uint32_t MGranularity, NGranularity, KGranularity;
	uint32_t AType, BType, CType, ResultType;
	VkBool32 saturatingAccumulation;
	uint32_t scope;
	uint32_t workgroupInvocations;
} VkCooperativeMatrixFlexibleDimensionsPropertiesNV;

/* Debugging. */

typedef struct VkDebugUtilsObjectNameInfoEXT {
	VKA_HEAD
	uint32_t objectType;
	uint64_t objectHandle;
	const char *pObjectName;
} VkDebugUtilsObjectNameInfoEXT;

typedef struct VkDebugUtilsLabelEXT {
	VKA_HEAD
	const char *pLabelName;
	float color[4];
} VkDebugUtilsLabelEXT;

typedef struct VkDebugUtilsMessengerCallbackDataEXT {
	VKA_HEAD
	VkFlags flags;
	const char *pMessageIdName;
	int32_t messageIdNumber;
	const char *pMessage;
	uint32_t queueLabelCount;
	const VkDebugUtilsLabelEXT *pQueueLabels;
	uint32_t cmdBufLabelCount;
	const VkDebugUtilsLabelEXT *pCmdBufLabels;
	uint32_t objectCount;
	const VkDebugUtilsObjectNameInfoEXT *pObjects;
} VkDebugUtilsMessengerCallbackDataEXT;

typedef VkBool32 (*PFN_vkDebugUtilsMessengerCallbackEXT)(uint32_t, VkFlags, const VkDebugUtilsMessengerCallbackDataEXT *, void *);

typedef struct VkDebugUtilsMessengerCreateInfoEXT {
	VKA_HEAD
	VkFlags flags;
	VkFlags messageSeverity;
	VkFlags messageType;
	PFN_vkDebugUtilsMessengerCallbackEXT pfnUserCallback;
	void *pUserData;
} VkDebugUtilsMessengerCreateInfoEXT;

#endif
