#include "host.h"

/* Modules, functions and launches of VK_NVX_binary_import. */

VkResult vka_create_cubin(vka_device *d, const uint8_t *cubin, size_t bytes, uint64_t *module)
{
	VkCuModuleCreateInfoNVX info = {
		.sType = VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX,
		.dataSize = bytes,
		.pData = cubin,
	};
	return d->CreateCuModuleNVX(d->handle, &info, NULL, module);
}

void vka_destroy_cubin(vka_device *d, uint64_t module)
{
	d->DestroyCuModuleNVX(d->handle, module, NULL);
}

VkResult vka_create_function(vka_device *d, uint64_t module, const char *name, uint64_t *function)
{
	VkCuFunctionCreateInfoNVX info = {
		.sType = VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX,
		.module = module,
		.pName = name,
	};
	return d->CreateCuFunctionNVX(d->handle, &info, NULL, function);
}

void vka_destroy_function(vka_device *d, uint64_t function)
{
	d->DestroyCuFunctionNVX(d->handle, function, NULL);
}

void vka_cmd_launch(vka_device *d, VkCommandBuffer c, uint64_t function, const uint32_t *grid, const uint32_t *block,
	uint32_t shared_bytes, const uint8_t *params, uint32_t count, const uint32_t *offsets)
{
	const void *list[VKA_MAX_PARAMS];
	for (uint32_t i = 0; i < count; i++)
		list[i] = params + offsets[i];
	VkCuLaunchInfoNVX info = {
		.sType = VK_STRUCTURE_TYPE_CU_LAUNCH_INFO_NVX,
		.function = function,
		.gridDimX = grid[0],
		.gridDimY = grid[1],
		.gridDimZ = grid[2],
		.blockDimX = block[0],
		.blockDimY = block[1],
		.blockDimZ = block[2],
		.sharedMemBytes = shared_bytes,
		.paramCount = count,
		.pParams = list,
	};
	d->CmdCuLaunchKernelNVX(c, &info);
}
