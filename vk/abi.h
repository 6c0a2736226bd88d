/* The part of the Vulkan ABI this package uses, so that no Vulkan headers are
 * needed to build it. Names, numbers and layouts are the registry's; members
 * nobody reads are counted rather than named. abi_test.go compares every layout
 * and number here with real headers.
 *
 * Non-dispatchable handles are uint64_t on every platform (see doc.go). */
#ifndef VKATTN_ABI_H
#define VKATTN_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct VkInstance_T *VkInstance;
typedef struct VkPhysicalDevice_T *VkPhysicalDevice;
typedef struct VkDevice_T *VkDevice;
typedef struct VkQueue_T *VkQueue;
typedef struct VkCommandBuffer_T *VkCommandBuffer;

typedef int32_t VkResult;
typedef uint32_t VkBool32;
typedef uint32_t VkFlags;
typedef uint64_t VkDeviceSize;
typedef uint64_t VkHandle; /* any non-dispatchable handle */

/* Every extensible structure starts like this. */
#define VKA_HEAD \
	uint32_t sType; \
	const void *pNext;

typedef struct VkBaseOutStructure {
	VKA_HEAD
} VkBaseOutStructure;

#include "abi_enums.h"

#include "abi_device.h"
#include "abi_memory.h"
#include "abi_pipeline.h"
#include "abi_cubin.h"

#endif
