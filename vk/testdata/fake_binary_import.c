/* A Vulkan loader in front of another one. It adds a VK_NVX_binary_import that launches nothing, and keeps a record of
 * its calls for the test. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan.h"

#define NAME "VK_NVX_binary_import"

typedef void (*fn)(void);
typedef fn (*get_fn)(void *, const char *);

struct record {
	int64_t enabled, modules, functions, launches, wide_before_launch, order_errors;
	uint32_t grid[3], block[3], shared, count;
	uint64_t function;
	uint8_t params[4096];
	int64_t fail; /* the next creation fails with this */
	int64_t barriers, wide;
} record;

uint32_t sizes[64]; /* of the parameters, set by the test */

static get_fn real_get, real_device_get;
static VkResult (*real_enumerate)(VkPhysicalDevice, const char *, uint32_t *, VkExtensionProperties *);
static VkResult (*real_create)(VkPhysicalDevice, const VkDeviceCreateInfo *, const void *, VkDevice *);
static void (*real_barrier)(VkCommandBuffer, VkFlags, VkFlags, VkFlags, uint32_t, const VkMemoryBarrier *, uint32_t, const void *, uint32_t, const void *);
static int last_wide;

struct record *fake_record(void) { return &record; }
uint32_t *fake_sizes(void) { return sizes; }

static VkResult enumerate(VkPhysicalDevice pd, const char *layer, uint32_t *count, VkExtensionProperties *list)
{
	uint32_t n = 0;
	VkResult r = real_enumerate(pd, layer, &n, NULL);
	if (r != VK_SUCCESS)
		return r;
	if (!list) {
		*count = n + 1;
		return VK_SUCCESS;
	}
	r = real_enumerate(pd, layer, &n, list);
	memset(&list[n], 0, sizeof list[n]);
	strcpy(list[n].extensionName, NAME);
	*count = n + 1;
	return r;
}

static VkResult create_device(VkPhysicalDevice pd, const VkDeviceCreateInfo *info, const void *a, VkDevice *out)
{
	const char *names[256];
	uint32_t n = 0;
	for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
		if (strcmp(info->ppEnabledExtensionNames[i], NAME))
			names[n++] = info->ppEnabledExtensionNames[i];
		else
			record.enabled++;
	VkDeviceCreateInfo copy = *info;
	copy.enabledExtensionCount = n;
	copy.ppEnabledExtensionNames = names;
	return real_create(pd, &copy, a, out);
}

static VkResult failing(void)
{
	VkResult r = (VkResult)record.fail;
	record.fail = 0;
	return r;
}

static VkResult create_module(VkDevice d, const VkCuModuleCreateInfoNVX *info, const void *a, VkHandle *out)
{
	if (info->sType != VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX || memcmp(info->pData, "\x7f" "ELF", 4))
		abort();
	VkResult r = failing();
	if (r == VK_SUCCESS)
		*out = 0x100 + ++record.modules;
	return r;
}

static void destroy_module(VkDevice d, VkHandle h, const void *a)
{
	record.modules--;
	if (record.functions)
		record.order_errors++;
}

static VkResult create_function(VkDevice d, const VkCuFunctionCreateInfoNVX *info, const void *a, VkHandle *out)
{
	if (info->sType != VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX || !info->module)
		abort();
	VkResult r = failing();
	if (r == VK_SUCCESS)
		*out = 0x200 + ++record.functions;
	return r;
}

static void destroy_function(VkDevice d, VkHandle h, const void *a) { record.functions--; }

static void launch(VkCommandBuffer c, const VkCuLaunchInfoNVX *l)
{
	if (l->sType != VK_STRUCTURE_TYPE_CU_LAUNCH_INFO_NVX || l->extraCount)
		abort();
	record.launches++;
	record.wide_before_launch += last_wide;
	record.grid[0] = l->gridDimX, record.grid[1] = l->gridDimY, record.grid[2] = l->gridDimZ;
	record.block[0] = l->blockDimX, record.block[1] = l->blockDimY, record.block[2] = l->blockDimZ;
	record.shared = l->sharedMemBytes;
	record.count = (uint32_t)l->paramCount;
	record.function = l->function;
	uint32_t at = 0;
	for (uint32_t i = 0; i < record.count; i++) {
		memcpy(record.params + at, l->pParams[i], sizes[i]);
		at += sizes[i];
	}
}

static void barrier(VkCommandBuffer c, VkFlags src, VkFlags dst, VkFlags f, uint32_t n, const VkMemoryBarrier *m, uint32_t bn, const void *b, uint32_t in, const void *i)
{
	last_wide = src == VK_PIPELINE_STAGE_ALL_COMMANDS_BIT && m[0].srcAccessMask == VK_ACCESS_MEMORY_WRITE_BIT;
	record.barriers++;
	record.wide += last_wide;
	real_barrier(c, src, dst, f, n, m, bn, b, in, i);
}

static fn device_get(void *d, const char *name)
{
#define FAKE(vk, f) if (!strcmp(name, vk)) return (fn)f
	FAKE("vkCreateCuModuleNVX", create_module);
	FAKE("vkDestroyCuModuleNVX", destroy_module);
	FAKE("vkCreateCuFunctionNVX", create_function);
	FAKE("vkDestroyCuFunctionNVX", destroy_function);
	FAKE("vkCmdCuLaunchKernelNVX", launch);
	fn f = real_device_get(d, name);
	if (!strcmp(name, "vkCmdPipelineBarrier")) {
		real_barrier = (void *)f;
		return (fn)barrier;
	}
	return f;
}

void fake_front(get_fn real) { real_get = real; }

fn vkGetInstanceProcAddr(void *instance, const char *name)
{
	fn f = real_get(instance, name);
	if (!f)
		return f;
#define OVER(vk, real, mine) if (!strcmp(name, vk)) { real = (void *)f; return (fn)mine; }
	OVER("vkEnumerateDeviceExtensionProperties", real_enumerate, enumerate)
	OVER("vkCreateDevice", real_create, create_device)
	OVER("vkGetDeviceProcAddr", real_device_get, device_get)
	return f;
}
