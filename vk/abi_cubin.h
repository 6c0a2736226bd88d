/* Structures of VK_NVX_binary_import. Included by abi.h. */
#ifndef VKATTN_ABI_CUBIN_H
#define VKATTN_ABI_CUBIN_H

typedef struct VkCuModuleCreateInfoNVX {
	VKA_HEAD
	size_t dataSize;
	const void *pData;
} VkCuModuleCreateInfoNVX;

typedef struct VkCuFunctionCreateInfoNVX {
	VKA_HEAD
	VkHandle module;
	const char *pName;
} VkCuFunctionCreateInfoNVX;

typedef struct VkCuLaunchInfoNVX {
	VKA_HEAD
	VkHandle function;
	uint32_t gridDimX;
	uint32_t gridDimY;
	uint32_t gridDimZ;
	uint32_t blockDimX;
	uint32_t blockDimY;
	uint32_t blockDimZ;
	uint32_t sharedMemBytes;
	size_t paramCount;
	const void *const *pParams;
	size_t extraCount;
	const void *const *pExtras;
} VkCuLaunchInfoNVX;

#endif
