/* A Vulkan loader in front of another one, VKATTN_FAULTY_LOADER, with the faults that VKATTN_FAULTS names:
 *
 *   constant     timestamps stand still
 *   backwards    timestamps fall
 *   zeros        every third timestamp is 0
 *   hang=BYTES   submissions never end, from the first on after a buffer of so many bytes was made
 *
 * While the device hangs, destroying it aborts the process. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../vk/testdata/vulkan.h"

typedef void (*fn)(void);
typedef fn (*get_fn)(void *, const char *);

static get_fn real_get, real_device_get;
static VkResult (*real_results)(VkDevice, VkHandle, uint32_t, uint32_t, size_t, void *, VkDeviceSize, VkFlags);
static VkResult (*real_submit)(VkQueue, uint32_t, const VkSubmitInfo *, VkHandle);
static VkResult (*real_idle)(VkDevice);
static VkResult (*real_buffer)(VkDevice, const VkBufferCreateInfo *, const void *, VkHandle *);
static void (*real_destroy)(VkDevice, const void *);

static const char *faults;
static uint64_t hang_bytes;
static int large, hangs;

static VkResult results(VkDevice d, VkHandle pool, uint32_t first, uint32_t count, size_t size, void *data, VkDeviceSize stride, VkFlags flags)
{
	static unsigned number;
	VkResult r = real_results(d, pool, first, count, size, data, stride, flags);
	for (uint32_t i = 0; r == VK_SUCCESS && i < count; i++) {
		uint64_t *ticks = (uint64_t *)((char *)data + i * stride);
		if (!strcmp(faults, "constant"))
			*ticks = 1000;
		else if (!strcmp(faults, "backwards"))
			*ticks = ((uint64_t)1 << 62) - *ticks;
		else if (!strcmp(faults, "zeros") && number++ % 3 == 0)
			*ticks = 0;
	}
	return r;
}

static VkResult buffer(VkDevice d, const VkBufferCreateInfo *info, const void *a, VkHandle *out)
{
	large |= hang_bytes && info->size >= hang_bytes;
	return real_buffer(d, info, a, out);
}

static VkResult submit(VkQueue q, uint32_t n, const VkSubmitInfo *s, VkHandle fence)
{
	hangs |= large;
	return hangs ? VK_SUCCESS : real_submit(q, n, s, fence);
}

static VkResult idle(VkDevice d)
{
	while (hangs)
		pause();
	return real_idle(d);
}

static void destroy(VkDevice d, const void *a)
{
	if (hangs) {
		fputs("the device was destroyed while it hangs\n", stderr);
		abort();
	}
	real_destroy(d, a);
}

#define OVER(vk, real, mine) if (!strcmp(name, vk)) { real = (void *)f; return (fn)mine; }

static fn device_get(void *d, const char *name)
{
	fn f = real_device_get(d, name);
	if (!f)
		return f;
	OVER("vkGetQueryPoolResults", real_results, results)
	OVER("vkCreateBuffer", real_buffer, buffer)
	OVER("vkQueueSubmit", real_submit, submit)
	OVER("vkDeviceWaitIdle", real_idle, idle)
	OVER("vkDestroyDevice", real_destroy, destroy)
	return f;
}

fn vkGetInstanceProcAddr(void *instance, const char *name)
{
	if (!real_get) {
		faults = getenv("VKATTN_FAULTS") ?: "";
		if (!strncmp(faults, "hang=", 5))
			hang_bytes = strtoull(faults + 5, NULL, 10);
		void *loader = dlopen(getenv("VKATTN_FAULTY_LOADER"), RTLD_NOW | RTLD_LOCAL);
		real_get = loader ? (get_fn)dlsym(loader, "vkGetInstanceProcAddr") : NULL;
		if (!real_get)
			return NULL;
	}
	fn f = real_get(instance, name);
	if (!f)
		return f;
	OVER("vkGetDeviceProcAddr", real_device_get, device_get)
	return f;
}
