/* Structures about pipelines, descriptors and command buffers. Included by abi.h. */
#ifndef VKATTN_ABI_PIPELINE_H
#define VKATTN_ABI_PIPELINE_H

/* Pipelines and descriptors. */

typedef struct VkShaderModuleCreateInfo {
	VKA_HEAD
	VkFlags flags;
	size_t codeSize;
	const uint32_t *pCode;
} VkShaderModuleCreateInfo;

typedef struct VkSpecializationMapEntry {
	uint32_t constantID;
	uint32_t offset;
	size_t size;
} VkSpecializationMapEntry;

typedef struct VkSpecializationInfo {
	uint32_t mapEntryCount;
	const VkSpecializationMapEntry *pMapEntries;
	size_t dataSize;
	const void *pData;
} VkSpecializationInfo;

typedef struct VkPipelineShaderStageCreateInfo {
	VKA_HEAD
	VkFlags flags;
	VkFlags stage;
	VkHandle module;
	const char *pName;
	const VkSpecializationInfo *pSpecializationInfo;
} VkPipelineShaderStageCreateInfo;

typedef struct VkPipelineShaderStageRequiredSubgroupSizeCreateInfo {
	VKA_HEAD
	uint32_t requiredSubgroupSize;
} VkPipelineShaderStageRequiredSubgroupSizeCreateInfo;

typedef struct VkPipelineRobustnessCreateInfo {
	VKA_HEAD
	uint32_t storageBuffers;
	uint32_t uniformBuffers;
	uint32_t vertexInputs;
	uint32_t images;
} VkPipelineRobustnessCreateInfo;

typedef struct VkComputePipelineCreateInfo {
	VKA_HEAD
	VkFlags flags;
	VkPipelineShaderStageCreateInfo stage;
	VkHandle layout;
	VkHandle basePipelineHandle;
	int32_t basePipelineIndex;
} VkComputePipelineCreateInfo;

typedef struct VkPipelineCacheCreateInfo {
	VKA_HEAD
	VkFlags flags;
	size_t initialDataSize;
	const void *pInitialData;
} VkPipelineCacheCreateInfo;

typedef struct VkPushConstantRange {
	VkFlags stageFlags;
	uint32_t offset;
	uint32_t size;
} VkPushConstantRange;

typedef struct VkPipelineLayoutCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t setLayoutCount;
	const VkHandle *pSetLayouts;
	uint32_t pushConstantRangeCount;
	const VkPushConstantRange *pPushConstantRanges;
} VkPipelineLayoutCreateInfo;

typedef struct VkDescriptorSetLayoutBinding {
	uint32_t binding;
	uint32_t descriptorType;
	uint32_t descriptorCount;
	VkFlags stageFlags;
	const VkHandle *pImmutableSamplers;
} VkDescriptorSetLayoutBinding;

typedef struct VkDescriptorSetLayoutCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t bindingCount;
	const VkDescriptorSetLayoutBinding *pBindings;
} VkDescriptorSetLayoutCreateInfo;

typedef struct VkDescriptorPoolSize {
	uint32_t type;
	uint32_t descriptorCount;
} VkDescriptorPoolSize;

typedef struct VkDescriptorPoolCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t maxSets;
	uint32_t poolSizeCount;
	const VkDescriptorPoolSize *pPoolSizes;
} VkDescriptorPoolCreateInfo;

typedef struct VkDescriptorSetAllocateInfo {
	VKA_HEAD
	VkHandle descriptorPool;
	uint32_t descriptorSetCount;
	const VkHandle *pSetLayouts;
} VkDescriptorSetAllocateInfo;

typedef struct VkDescriptorBufferInfo {
	VkHandle buffer;
	VkDeviceSize offset;
	VkDeviceSize range;
} VkDescriptorBufferInfo;

typedef struct VkWriteDescriptorSet {
	VKA_HEAD
	VkHandle dstSet;
	uint32_t dstBinding;
	uint32_t dstArrayElement;
	uint32_t descriptorCount;
	uint32_t descriptorType;
	const void *pImageInfo;
	const VkDescriptorBufferInfo *pBufferInfo;
	const VkHandle *pTexelBufferView;
} VkWriteDescriptorSet;

typedef struct VkPipelineInfoKHR {
	VKA_HEAD
	VkHandle pipeline;
} VkPipelineInfoKHR;

typedef struct VkPipelineExecutablePropertiesKHR {
	VKA_HEAD
	VkFlags stages;
	char name[256];
	char description[256];
	uint32_t subgroupSize;
} VkPipelineExecutablePropertiesKHR;

typedef struct VkPipelineExecutableInfoKHR {
	VKA_HEAD
	VkHandle pipeline;
	uint32_t executableIndex;
} VkPipelineExecutableInfoKHR;

typedef struct VkPipelineExecutableStatisticKHR {
	VKA_HEAD
	char name[256];
	char description[256];
	uint32_t format;
	union {
		VkBool32 b32;
		int64_t i64;
		uint64_t u64;
		double f64;
	} value;
} VkPipelineExecutableStatisticKHR;

/* Command buffers and queries. */

typedef struct VkCommandPoolCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t queueFamilyIndex;
} VkCommandPoolCreateInfo;

typedef struct VkCommandBufferAllocateInfo {
	VKA_HEAD
	VkHandle commandPool;
	uint32_t level;
	uint32_t commandBufferCount;
} VkCommandBufferAllocateInfo;

typedef struct VkCommandBufferBeginInfo {
	VKA_HEAD
	VkFlags flags;
	const void *pInheritanceInfo;
} VkCommandBufferBeginInfo;

typedef struct VkMemoryBarrier {
	VKA_HEAD
	VkFlags srcAccessMask;
	VkFlags dstAccessMask;
} VkMemoryBarrier;

typedef struct VkQueryPoolCreateInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t queryType;
	uint32_t queryCount;
	VkFlags pipelineStatistics;
} VkQueryPoolCreateInfo;

typedef struct VkCalibratedTimestampInfoKHR {
	VKA_HEAD
	uint32_t timeDomain;
} VkCalibratedTimestampInfoKHR;

#endif
