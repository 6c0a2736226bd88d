#include "feature_table.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

static vka_fn device_proc(vka_instance *in, VkDevice d, const char *name, const char *alias)
{
	vka_fn f = in->GetDeviceProcAddr(d, name);
	if (!f && alias)
		f = in->GetDeviceProcAddr(d, alias);
	return f;
}

static VkResult load(vka_device *d, vka_missing *missing)
{
	vka_instance *in = d->instance;
	const char *field = ""; /* of Caps, that needs the functions which follow */
#define PUT(name, vk, alias) vka_need(missing, field, vk, (d->name = (__typeof__(d->name))device_proc(in, d->handle, vk, alias)) != NULL)
#define NEED(name) PUT(name, "vk" #name, NULL)
#define NEED_KHR(name) PUT(name, "vk" #name, "vk" #name "KHR")
#define IF(feature, name) \
	field = name; \
	if (d->features & VKA_BIT(feature))
	NEED(DestroyDevice);
	NEED(GetDeviceQueue);
	NEED(DeviceWaitIdle);
	NEED(QueueSubmit);
	NEED(AllocateMemory);
	NEED(FreeMemory);
	NEED(MapMemory);
	NEED(CreateBuffer);
	NEED(DestroyBuffer);
	NEED(GetBufferMemoryRequirements);
	NEED(BindBufferMemory);
	NEED(CreateSemaphore);
	NEED(DestroySemaphore);
	NEED_KHR(GetSemaphoreCounterValue);
	NEED_KHR(WaitSemaphores);
	NEED_KHR(SignalSemaphore);
	NEED(CreateShaderModule);
	NEED(DestroyShaderModule);
	NEED(CreatePipelineCache);
	NEED(DestroyPipelineCache);
	NEED(GetPipelineCacheData);
	NEED(CreatePipelineLayout);
	NEED(DestroyPipelineLayout);
	NEED(CreateComputePipelines);
	NEED(DestroyPipeline);
	NEED(CreateDescriptorSetLayout);
	NEED(DestroyDescriptorSetLayout);
	NEED(CreateDescriptorPool);
	NEED(DestroyDescriptorPool);
	NEED(ResetDescriptorPool);
	NEED(AllocateDescriptorSets);
	NEED(UpdateDescriptorSets);
	NEED(CreateCommandPool);
	NEED(DestroyCommandPool);
	NEED(ResetCommandPool);
	NEED(AllocateCommandBuffers);
	NEED(BeginCommandBuffer);
	NEED(EndCommandBuffer);
	NEED(CreateQueryPool);
	NEED(DestroyQueryPool);
	NEED(GetQueryPoolResults);
	NEED(CmdBindPipeline);
	NEED(CmdBindDescriptorSets);
	NEED(CmdPushConstants);
	NEED(CmdDispatch);
	NEED(CmdPipelineBarrier);
	NEED(CmdCopyBuffer);
	NEED(CmdFillBuffer);
	NEED(CmdResetQueryPool);
	NEED(CmdWriteTimestamp);
	IF(VKA_BUFFER_DEVICE_ADDRESS, "BufferDeviceAddress")
	NEED_KHR(GetBufferDeviceAddress);
	IF(VKA_EXTERNAL_MEMORY_FD, "ExternalMemoryFd")
	NEED(GetMemoryFdKHR);
	IF(VKA_EXTERNAL_SEMAPHORE_FD, "ExternalSemaphoreFd") {
		NEED(GetSemaphoreFdKHR);
		NEED(ImportSemaphoreFdKHR);
	}
	IF(VKA_PIPELINE_EXECUTABLE, "PipelineExecutable") {
		NEED(GetPipelineExecutablePropertiesKHR);
		NEED(GetPipelineExecutableStatisticsKHR);
	}
	IF(VKA_CALIBRATED_TIMESTAMPS, "CalibratedTimestamps")
	PUT(GetCalibratedTimestamps, "vkGetCalibratedTimestampsKHR", "vkGetCalibratedTimestampsEXT");
	IF(VKA_BINARY_IMPORT, "BinaryImport") {
		NEED(CreateCuModuleNVX);
		NEED(DestroyCuModuleNVX);
		NEED(CreateCuFunctionNVX);
		NEED(DestroyCuFunctionNVX);
		NEED(CmdCuLaunchKernelNVX);
	}
	IF(VKA_DEBUG_UTILS, "DebugUtils") {
		NEED(SetDebugUtilsObjectNameEXT);
		NEED(CmdBeginDebugUtilsLabelEXT);
		NEED(CmdEndDebugUtilsLabelEXT);
	}
	return missing->count ? VK_ERROR_INITIALIZATION_FAILED : VK_SUCCESS;
#undef IF
#undef NEED_KHR
#undef NEED
#undef PUT
}

VkResult vka_wrap_device(vka_instance *in, VkPhysicalDevice pd, VkDevice handle, VkQueue queue, uint64_t features, vka_missing *missing, vka_device **out)
{
	vka_device *d = calloc(1, sizeof *d);
	if (!d)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	d->handle = handle;
	d->physical = pd;
	d->queue = queue;
	d->instance = in;
	d->features = features;
	VkResult r = load(d, missing);
	if (r != VK_SUCCESS) {
		free(d);
		return r;
	}
	*out = d;
	return VK_SUCCESS;
}

/* Names of extensions to enable, without repetition. */
enum { MAX_ENABLED = 96 };
typedef struct names {
	const char *list[MAX_ENABLED];
	uint32_t count;
} names;

static void add(names *n, const char *name)
{
	for (uint32_t i = 0; i < n->count; i++)
		if (!strcmp(n->list[i], name))
			return;
	if (n->count < MAX_ENABLED)
		n->list[n->count++] = name;
}

VkResult vka_create_device(vka_instance *in, VkPhysicalDevice pd, const vka_probe *p, uint64_t features, const char *extra, vka_missing *missing, vka_device **out)
{
	vka_extensions e = {0, NULL};
	VkResult r = vka_list_extensions(in, pd, &e);
	if (r != VK_SUCCESS) {
		free(e.list);
		return r;
	}
	names enabled = {.count = 0};
	vka_feature_chain chain;
	vka_fill_chain(&chain, features);
	for (uint32_t i = 0; i < vka_feature_row_count; i++) {
		const vka_feature_row *row = &vka_feature_rows[i];
		const char *extension = vka_row_wanted(row, features) ? vka_row_extension(row, p->effective_api, &e) : NULL;
		if (extension && *extension)
			add(&enabled, extension);
	}
	for (uint32_t i = 0; i < vka_extension_feature_count; i++) {
		const vka_extension_feature *f = &vka_extension_features[i];
		if (features & VKA_BIT(f->bit))
			add(&enabled, f->alias && !vka_has_extension(&e, f->extension) ? f->alias : f->extension);
	}
	if (vka_has_extension(&e, "VK_KHR_portability_subset"))
		add(&enabled, "VK_KHR_portability_subset"); /* required where it is listed */
	for (; extra && *extra; extra += strlen(extra) + 1) {
		if (!vka_has_extension(&e, extra)) {
			free(e.list);
			return VK_ERROR_EXTENSION_NOT_PRESENT;
		}
		add(&enabled, extra);
	}

	float priority = 1;
	VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueFamilyIndex = p->queue_family,
		.queueCount = 1,
		.pQueuePriorities = &priority,
	};
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.pNext = &chain.core,
		.queueCreateInfoCount = 1,
		.pQueueCreateInfos = &queue,
		.enabledExtensionCount = enabled.count,
		.ppEnabledExtensionNames = enabled.list,
	};
	VkDevice handle = NULL;
	r = in->CreateDevice(pd, &info, NULL, &handle);
	free(e.list);
	if (r != VK_SUCCESS)
		return r;
	vka_device *d = NULL;
	r = vka_wrap_device(in, pd, handle, NULL, features, missing, &d);
	if (r != VK_SUCCESS) {
		void (*destroy)(VkDevice, const void *) = (void (*)(VkDevice, const void *))in->GetDeviceProcAddr(handle, "vkDestroyDevice");
		if (destroy)
			destroy(handle, NULL);
		return r;
	}
	d->owned = 1;
	d->GetDeviceQueue(handle, p->queue_family, 0, &d->queue);
	*out = d;
	return VK_SUCCESS;
}

void vka_destroy_device(vka_device *d)
{
	if (!d)
		return;
	if (d->owned)
		d->DestroyDevice(d->handle, NULL);
	free(d);
}

VkResult vka_wait_idle(vka_device *d)
{
	return d->DeviceWaitIdle(d->handle);
}

void vka_set_name(vka_device *d, uint32_t type, uint64_t handle, const char *name)
{
	VkDebugUtilsObjectNameInfoEXT info = {
		.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT,
		.objectType = type,
		.objectHandle = handle,
		.pObjectName = name,
	};
	if (d->SetDebugUtilsObjectNameEXT)
		d->SetDebugUtilsObjectNameEXT(d->handle, &info);
}
