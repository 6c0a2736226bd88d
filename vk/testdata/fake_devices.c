/* A Vulkan loader of fake devices, alone or in front of another loader. The environment says what there is and what fails:
 *
 *   FAKE_DEVICES    devices that come before the real ones, separated by semicolons: the VkPhysicalDeviceType; what fails:
 *                   extensions, create or nothing; minSubgroupSize, maxSubgroupSize and requiredSubgroupSizeStages
 *   FAKE_ENUMERATE  the result of vkEnumeratePhysicalDevices
 *   FAKE_HIDE       functions that are not there, each with a comma behind it
 *   FAKE_REAL       the file of the loader behind this one, unless the test calls fake_front
 *
 * A fake device takes calls and computes nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan.h"

typedef void (*fn)(void);
typedef fn (*get_fn)(void *, const char *);

enum { MAX = 8, COMPUTE_STAGE = 0x20, COMPUTE_QUEUE = 2 };
static struct fake {
	uint32_t type, min, max, stages;
	char fail[16];
} fakes[MAX];
static uint32_t count;
static get_fn real_get;
static uint32_t required; /* the subgroup size that the last pipeline required; 0: none */

uint32_t *fake_required(void) { return &required; }
void fake_front(get_fn real) { real_get = real; }

static struct fake *fake_of(const void *handle)
{
	const struct fake *f = handle;
	return f >= fakes && f < fakes + MAX ? (struct fake *)f : NULL;
}

static void read_environment(void)
{
	const char *text = getenv("FAKE_DEVICES"), *file = getenv("FAKE_REAL");
	for (count = 0; text && *text && count < MAX; count++) {
		struct fake *f = &fakes[count];
		memset(f, 0, sizeof *f);
		if (sscanf(text, " %u %15[a-z] %u %u %u", &f->type, f->fail, &f->min, &f->max, &f->stages) < 2)
			abort();
		text = strchr(text, ';');
		text += text != NULL;
	}
	if (file && !real_get) {
		void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		real_get = library ? (get_fn)dlsym(library, "vkGetInstanceProcAddr") : NULL;
		if (!real_get)
			abort();
	}
}

/* Of a loader that stands alone. */
static VkResult version(uint32_t *v) { return *v = 1u << 22 | 3u << 12, VK_SUCCESS; }
static VkResult none(const char *layer, uint32_t *n, void *list) { return *n = 0, VK_SUCCESS; }
static VkResult create_instance(const VkInstanceCreateInfo *info, const void *a, VkInstance *out)
{
	static int instance;
	return *out = (VkInstance)&instance, VK_SUCCESS;
}
static void nothing(void) {}
static VkResult success(void) { return VK_SUCCESS; }

static VkResult enumerate(VkInstance in, uint32_t *n, VkPhysicalDevice *list)
{
	const char *fail = getenv("FAKE_ENUMERATE");
	if (fail)
		return atoi(fail);
	VkResult (*real)(VkInstance, uint32_t *, VkPhysicalDevice *) = real_get ? (void *)real_get(in, "vkEnumeratePhysicalDevices") : NULL;
	uint32_t behind = 0;
	VkResult r = real ? real(in, &behind, NULL) : VK_SUCCESS;
	if (r == VK_SUCCESS && list && behind)
		r = real(in, &behind, list + count);
	for (uint32_t i = 0; list && i < count; i++)
		list[i] = (VkPhysicalDevice)&fakes[i];
	*n = count + behind;
	return r;
}

static void (*real_properties)(VkPhysicalDevice, VkPhysicalDeviceProperties *);
static void properties(VkPhysicalDevice pd, VkPhysicalDeviceProperties *p)
{
	struct fake *f = fake_of(pd);
	if (!f) {
		real_properties(pd, p);
		return;
	}
	memset(p, 0, sizeof *p);
	p->apiVersion = 1u << 22 | 3u << 12;
	p->deviceType = f->type;
	snprintf(p->deviceName, sizeof p->deviceName, "fake %d", (int)(f - fakes));
	p->limits.maxComputeWorkGroupInvocations = 1024;
	for (int i = 0; i < 3; i++)
		p->limits.maxComputeWorkGroupSize[i] = p->limits.maxComputeWorkGroupCount[i] = 1024;
	p->limits.maxComputeSharedMemorySize = 32 << 10;
	p->limits.maxPushConstantsSize = 128;
	p->limits.maxPerStageDescriptorStorageBuffers = p->limits.maxDescriptorSetStorageBuffers = p->limits.maxPerStageResources = 16;
}

static void (*real_properties2)(VkPhysicalDevice, VkPhysicalDeviceProperties2 *);
static void properties2(VkPhysicalDevice pd, VkPhysicalDeviceProperties2 *p)
{
	struct fake *f = fake_of(pd);
	if (!f) {
		real_properties2(pd, p);
		return;
	}
	properties(pd, &p->properties);
	for (VkBaseOutStructure *s = (void *)p->pNext; s; s = (void *)s->pNext)
		if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES) {
			VkPhysicalDeviceSubgroupProperties *g = (void *)s;
			g->subgroupSize = f->max;
			g->supportedStages = COMPUTE_STAGE;
		} else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES) {
			VkPhysicalDeviceSubgroupSizeControlProperties *g = (void *)s;
			g->minSubgroupSize = f->min, g->maxSubgroupSize = f->max, g->requiredSubgroupSizeStages = f->stages;
		}
}

static void (*real_features2)(VkPhysicalDevice, VkPhysicalDeviceFeatures2 *);
static void features2(VkPhysicalDevice pd, VkPhysicalDeviceFeatures2 *p)
{
	if (!fake_of(pd)) {
		real_features2(pd, p);
		return;
	}
	for (VkBaseOutStructure *s = (void *)p->pNext; s; s = (void *)s->pNext) {
		VkBool32 *flags = (VkBool32 *)(s + 1);
		if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES ||
			s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES ||
			s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR)
			flags[0] = 1;
		else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES)
			flags[0] = flags[1] = 1;
	}
}

static void (*real_memory)(VkPhysicalDevice, void *);
static void memory(VkPhysicalDevice pd, void *p)
{
	if (!fake_of(pd))
		real_memory(pd, p); /* a fake one has no memory */
}

static void (*real_queues)(VkPhysicalDevice, uint32_t *, VkQueueFamilyProperties *);
static void queues(VkPhysicalDevice pd, uint32_t *n, VkQueueFamilyProperties *list)
{
	if (!fake_of(pd)) {
		real_queues(pd, n, list);
		return;
	}
	*n = 1;
	if (list)
		list[0] = (VkQueueFamilyProperties){.queueFlags = COMPUTE_QUEUE, .queueCount = 1};
}

static VkResult (*real_extensions)(VkPhysicalDevice, const char *, uint32_t *, VkExtensionProperties *);
static VkResult extensions(VkPhysicalDevice pd, const char *layer, uint32_t *n, VkExtensionProperties *list)
{
	struct fake *f = fake_of(pd);
	if (!f)
		return real_extensions(pd, layer, n, list);
	*n = 1;
	if (list)
		memcpy(list, &(VkExtensionProperties){"VK_KHR_pipeline_executable_properties", 1}, sizeof *list);
	return strcmp(f->fail, "extensions") ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED;
}

static VkResult (*real_create)(VkPhysicalDevice, const VkDeviceCreateInfo *, const void *, VkDevice *);
static VkResult create_device(VkPhysicalDevice pd, const VkDeviceCreateInfo *info, const void *a, VkDevice *out)
{
	struct fake *f = fake_of(pd);
	if (!f)
		return real_create(pd, info, a, out);
	*out = (VkDevice)f;
	return strcmp(f->fail, "create") ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED;
}

static VkResult (*real_pipelines)(VkDevice, VkHandle, uint32_t, const VkComputePipelineCreateInfo *, const void *, VkHandle *);
static VkResult pipelines(VkDevice d, VkHandle cache, uint32_t n, const VkComputePipelineCreateInfo *info, const void *a, VkHandle *out)
{
	required = 0;
	for (const VkBaseOutStructure *s = info->stage.pNext; s; s = s->pNext)
		if (s->sType == VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO)
			required = ((const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *)s)->requiredSubgroupSize;
	if (!fake_of(d))
		return real_pipelines(d, cache, n, info, a, out);
	return *out = 1, VK_SUCCESS;
}

static void get_queue(VkDevice d, uint32_t family, uint32_t index, VkQueue *out) { *out = (VkQueue)d; }

static int hidden(const char *name)
{
	const char *list = getenv("FAKE_HIDE");
	const char *at = list ? strstr(list, name) : NULL;
	return at && at[strlen(name)] == ',';
}

static get_fn real_device_get;
static fn device_get(void *d, const char *name)
{
	fn f = fake_of(d) ? (fn)success : real_device_get(d, name);
	if (hidden(name))
		return NULL;
	if (fake_of(d) && !strcmp(name, "vkGetDeviceQueue"))
		return (fn)get_queue;
	if (f && !strcmp(name, "vkCreateComputePipelines")) {
		real_pipelines = (void *)f;
		return (fn)pipelines;
	}
	return f;
}

fn vkGetInstanceProcAddr(void *instance, const char *name)
{
	static int read;
	if (!read++)
		read_environment();
	fn f = real_get ? real_get(instance, name) : NULL;
	if (hidden(name))
		return NULL;
#define MINE(vk, mine) if (!strcmp(name, vk)) return (fn)mine
#define OVER(vk, real, mine) if (!strcmp(name, vk)) { real = (void *)f; return (fn)mine; }
	OVER("vkGetPhysicalDeviceProperties", real_properties, properties)
	OVER("vkGetPhysicalDeviceProperties2", real_properties2, properties2)
	OVER("vkGetPhysicalDeviceFeatures2", real_features2, features2)
	OVER("vkGetPhysicalDeviceMemoryProperties2", real_memory, memory)
	OVER("vkGetPhysicalDeviceQueueFamilyProperties", real_queues, queues)
	OVER("vkEnumerateDeviceExtensionProperties", real_extensions, extensions)
	OVER("vkCreateDevice", real_create, create_device)
	OVER("vkGetDeviceProcAddr", real_device_get, device_get)
	MINE("vkEnumeratePhysicalDevices", enumerate);
	if (f)
		return f;
	MINE("vkEnumerateInstanceVersion", version);
	MINE("vkEnumerateInstanceExtensionProperties", none);
	MINE("vkEnumerateInstanceLayerProperties", none);
	MINE("vkCreateInstance", create_instance);
	MINE("vkDestroyInstance", nothing);
	MINE("vkGetPhysicalDeviceExternalBufferProperties", nothing);
	MINE("vkGetPhysicalDeviceExternalSemaphoreProperties", nothing);
	return NULL;
}
