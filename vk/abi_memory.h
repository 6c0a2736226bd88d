/* Structures about memory, buffers, semaphores and submission. Included by abi.h. */
#ifndef VKATTN_ABI_MEMORY_H
#define VKATTN_ABI_MEMORY_H

/* Memory and buffers. */

typedef struct VkMemoryType {
	VkFlags propertyFlags;
	uint32_t heapIndex;
} VkMemoryType;

typedef struct VkMemoryHeap {
	VkDeviceSize size;
	VkFlags flags;
} VkMemoryHeap;

typedef struct VkPhysicalDeviceMemoryProperties {
	uint32_t memoryTypeCount;
	VkMemoryType memoryTypes[32];
	uint32_t memoryHeapCount;
	VkMemoryHeap memoryHeaps[16];
} VkPhysicalDeviceMemoryProperties;

typedef struct VkPhysicalDeviceMemoryProperties2 {
	VKA_HEAD
	VkPhysicalDeviceMemoryProperties memoryProperties;
} VkPhysicalDeviceMemoryProperties2;

typedef struct VkPhysicalDeviceMemoryBudgetPropertiesEXT {
	VKA_HEAD
	VkDeviceSize heapBudget[16];
	VkDeviceSize heapUsage[16];
} VkPhysicalDeviceMemoryBudgetPropertiesEXT;

typedef struct VkMemoryAllocateInfo {
	VKA_HEAD
	VkDeviceSize allocationSize;
	uint32_t memoryTypeIndex;
} VkMemoryAllocateInfo;

typedef struct VkMemoryAllocateFlagsInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t deviceMask;
} VkMemoryAllocateFlagsInfo;

typedef struct VkMemoryDedicatedAllocateInfo {
	VKA_HEAD
	VkHandle image;
	VkHandle buffer;
} VkMemoryDedicatedAllocateInfo;

typedef struct VkExportMemoryAllocateInfo {
	VKA_HEAD
	VkFlags handleTypes;
} VkExportMemoryAllocateInfo;

typedef struct VkImportMemoryFdInfoKHR {
	VKA_HEAD
	VkFlags handleType;
	int fd;
} VkImportMemoryFdInfoKHR;

typedef struct VkMemoryGetFdInfoKHR {
	VKA_HEAD
	VkHandle memory;
	VkFlags handleType;
} VkMemoryGetFdInfoKHR;

typedef struct VkMemoryRequirements {
	VkDeviceSize size;
	VkDeviceSize alignment;
	uint32_t memoryTypeBits;
} VkMemoryRequirements;

typedef struct VkBufferCreateInfo {
	VKA_HEAD
	VkFlags flags;
	VkDeviceSize size;
	VkFlags usage;
	uint32_t sharingMode;
	uint32_t queueFamilyIndexCount;
	const uint32_t *pQueueFamilyIndices;
} VkBufferCreateInfo;

typedef struct VkExternalMemoryBufferCreateInfo {
	VKA_HEAD
	VkFlags handleTypes;
} VkExternalMemoryBufferCreateInfo;

typedef struct VkBufferDeviceAddressInfo {
	VKA_HEAD
	VkHandle buffer;
} VkBufferDeviceAddressInfo;

typedef struct VkPhysicalDeviceExternalBufferInfo {
	VKA_HEAD
	VkFlags flags;
	VkFlags usage;
	VkFlags handleType;
} VkPhysicalDeviceExternalBufferInfo;

typedef struct VkExternalMemoryProperties {
	VkFlags externalMemoryFeatures;
	VkFlags exportFromImportedHandleTypes;
	VkFlags compatibleHandleTypes;
} VkExternalMemoryProperties;

typedef struct VkExternalBufferProperties {
	VKA_HEAD
	VkExternalMemoryProperties externalMemoryProperties;
} VkExternalBufferProperties;

typedef struct VkBufferCopy {
	VkDeviceSize srcOffset;
	VkDeviceSize dstOffset;
	VkDeviceSize size;
} VkBufferCopy;

/* Semaphores and submission. */

typedef struct VkSemaphoreCreateInfo {
	VKA_HEAD
	VkFlags flags;
} VkSemaphoreCreateInfo;

typedef struct VkSemaphoreTypeCreateInfo {
	VKA_HEAD
	uint32_t semaphoreType;
	uint64_t initialValue;
} VkSemaphoreTypeCreateInfo;

typedef struct VkExportSemaphoreCreateInfo {
	VKA_HEAD
	VkFlags handleTypes;
} VkExportSemaphoreCreateInfo;

typedef struct VkSemaphoreGetFdInfoKHR {
	VKA_HEAD
	VkHandle semaphore;
	VkFlags handleType;
} VkSemaphoreGetFdInfoKHR;

typedef struct VkImportSemaphoreFdInfoKHR {
	VKA_HEAD
	VkHandle semaphore;
	VkFlags flags;
	VkFlags handleType;
	int fd;
} VkImportSemaphoreFdInfoKHR;

typedef struct VkPhysicalDeviceExternalSemaphoreInfo {
	VKA_HEAD
	VkFlags handleType;
} VkPhysicalDeviceExternalSemaphoreInfo;

typedef struct VkExternalSemaphoreProperties {
	VKA_HEAD
	VkFlags exportFromImportedHandleTypes;
	VkFlags compatibleHandleTypes;
	VkFlags externalSemaphoreFeatures;
} VkExternalSemaphoreProperties;

typedef struct VkSemaphoreWaitInfo {
	VKA_HEAD
	VkFlags flags;
	uint32_t semaphoreCount;
	const VkHandle *pSemaphores;
	const uint64_t *pValues;
} VkSemaphoreWaitInfo;

typedef struct VkSemaphoreSignalInfo {
	VKA_HEAD
	VkHandle semaphore;
	uint64_t value;
} VkSemaphoreSignalInfo;

typedef struct VkSubmitInfo {
	VKA_HEAD
	uint32_t waitSemaphoreCount;
	const VkHandle *pWaitSemaphores;
	const VkFlags *pWaitDstStageMask;
	uint32_t commandBufferCount;
	const VkCommandBuffer *pCommandBuffers;
	uint32_t signalSemaphoreCount;
	const VkHandle *pSignalSemaphores;
} VkSubmitInfo;

typedef struct VkTimelineSemaphoreSubmitInfo {
	VKA_HEAD
	uint32_t waitSemaphoreValueCount;
	const uint64_t *pWaitSemaphoreValues;
	uint32_t signalSemaphoreValueCount;
	const uint64_t *pSignalSemaphoreValues;
} VkTimelineSemaphoreSubmitInfo;

#endif
