/* C side of package vk: tables of function pointers and flat functions around
 * them. Every function builds its structures on its own stack, calls Vulkan and
 * keeps nothing. Pointers given to them are read during the call only. */
#ifndef VKATTN_HOST_H
#define VKATTN_HOST_H

#include "abi.h"
#include "feature_bits.h"

typedef void (*vka_fn)(void);
typedef vka_fn (*vka_get_instance_proc)(VkInstance, const char *);
typedef vka_fn (*vka_get_device_proc)(VkDevice, const char *);

/* loader.c, not for Windows */

/* Opens the Vulkan loader; NULL with a malloc'ed text in *error on failure. */
void *vka_open_loader(const char *path, char **error);
/* Opens a library; a malloc'ed text on failure, else NULL. */
char *vka_try_library(const char *path);

/* messages.c: validation messages, written by any thread, read by Go. */
typedef struct vka_messages vka_messages;
vka_messages *vka_messages_new(void);
void vka_messages_free(vka_messages *);
/* Address of a counter of unread messages, for a cheap look without a call. */
uint32_t *vka_messages_unread(vka_messages *);
/* Takes the oldest message; 0 when there is none. *id and *text are malloc'ed. */
int vka_messages_take(vka_messages *, uint32_t *severity, int32_t *number, char **id, char **text);
VkBool32 vka_on_message(uint32_t, VkFlags, const VkDebugUtilsMessengerCallbackDataEXT *, void *);

/* instance.c */

/* Functions that a driver does not have, each with the field of Caps that needs it; "": every device needs it. */
enum { VKA_MAX_MISSING = 96 };
typedef struct vka_missing {
	uint32_t count;
	const char *function[VKA_MAX_MISSING], *field[VKA_MAX_MISSING];
} vka_missing;
void vka_need(vka_missing *, const char *field, const char *name, int found);

/* An instance and its functions. */
typedef struct vka_instance {
	VkInstance handle;
	vka_get_instance_proc get;
	uint32_t api; /* version the instance was made for */
	int owned;
	VkHandle messenger;
	vka_messages *messages;
	int debug_utils;

	void (*DestroyInstance)(VkInstance, const void *);
	VkResult (*EnumeratePhysicalDevices)(VkInstance, uint32_t *, VkPhysicalDevice *);
	void (*GetPhysicalDeviceProperties)(VkPhysicalDevice, VkPhysicalDeviceProperties *);
	void (*GetPhysicalDeviceProperties2)(VkPhysicalDevice, VkPhysicalDeviceProperties2 *);
	void (*GetPhysicalDeviceFeatures2)(VkPhysicalDevice, VkPhysicalDeviceFeatures2 *);
	void (*GetPhysicalDeviceMemoryProperties2)(VkPhysicalDevice, VkPhysicalDeviceMemoryProperties2 *);
	void (*GetPhysicalDeviceQueueFamilyProperties)(VkPhysicalDevice, uint32_t *, VkQueueFamilyProperties *);
	VkResult (*EnumerateDeviceExtensionProperties)(VkPhysicalDevice, const char *, uint32_t *, VkExtensionProperties *);
	void (*GetPhysicalDeviceExternalBufferProperties)(VkPhysicalDevice, const VkPhysicalDeviceExternalBufferInfo *, VkExternalBufferProperties *);
	void (*GetPhysicalDeviceExternalSemaphoreProperties)(VkPhysicalDevice, const VkPhysicalDeviceExternalSemaphoreInfo *, VkExternalSemaphoreProperties *);
	VkResult (*GetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);
	VkResult (*GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV)(VkPhysicalDevice, uint32_t *, VkCooperativeMatrixFlexibleDimensionsPropertiesNV *);
	VkResult (*GetPhysicalDeviceCalibrateableTimeDomains)(VkPhysicalDevice, uint32_t *, uint32_t *);
	VkResult (*CreateDevice)(VkPhysicalDevice, const VkDeviceCreateInfo *, const void *, VkDevice *);
	vka_get_device_proc GetDeviceProcAddr;
	VkResult (*CreateDebugUtilsMessengerEXT)(VkInstance, const VkDebugUtilsMessengerCreateInfoEXT *, const void *, VkHandle *);
	void (*DestroyDebugUtilsMessengerEXT)(VkInstance, VkHandle, const void *);
} vka_instance;

enum vka_instance_flags {
	VKA_INSTANCE_DEBUG = 1,       /* VK_EXT_debug_utils where there is one */
	VKA_INSTANCE_VALIDATION = 2,  /* the validation layer, or VK_ERROR_LAYER_NOT_PRESENT */
	VKA_INSTANCE_SYNC = 4,        /* with synchronization validation */
	VKA_INSTANCE_GPU_ASSISTED = 8 /* with GPU-assisted validation */
};
/* What the loader offers: 0 when it knows Vulkan 1.0 only. */
uint32_t vka_loader_version(void *get);
VkResult vka_create_instance(void *get, uint32_t api, uint32_t flags, vka_messages *, vka_missing *, vka_instance **);
/* A table for an instance that somebody else made. */
VkResult vka_wrap_instance(void *get, VkInstance, uint32_t api, int debug_utils, vka_missing *, vka_instance **);
void vka_destroy_instance(vka_instance *);
VkResult vka_physical_devices(vka_instance *, uint32_t *count, VkPhysicalDevice *list);

/* feature_table.c */

/* A feature by Vulkan's names: the member and its structure, NULL for an extension without one; the
 * extension, NULL without one; and the version that needs no extension. */
typedef struct vka_feature_info {
	const char *name, *structure, *extension;
	uint32_t core;
} vka_feature_info;
vka_feature_info vka_describe_feature(int bit);
/* A VkPhysicalDeviceFeatures2 and what its chain points at, in one malloc'ed block; NULL without memory. */
void *vka_new_chain(uint64_t features);

/* probe.c */

enum { VKA_MAX_SHAPES = 512 };

/* One row of either cooperative matrix list. */
typedef struct vka_shape {
	uint32_t m, n, k, a, b, c, result, saturating, scope, invocations;
} vka_shape;

/* Everything asked of a physical device. */
typedef struct vka_probe {
	char name[256], driver_name[256], driver_info[256];
	uint8_t uuid[16], driver_uuid[16], cache_uuid[16];
	uint32_t vendor, device, type, api, driver_version;
	uint32_t effective_api; /* the smaller of the device's and the instance's */
	uint64_t features;      /* VKA_BIT of each feature that is there */
	uint32_t queue_family;  /* the first with compute; UINT32_MAX: none */
	uint32_t timestamp_bits;
	float timestamp_period;
	uint32_t subgroup_size, min_subgroup, max_subgroup, max_subgroups, subgroup_ops;
	int required_size_in_compute;
	uint32_t max_shared, max_invocations, max_size[3], max_count[3], max_push, max_allocations;
	uint32_t max_storage_range, max_storage_buffers, max_sets;
	uint64_t min_storage_alignment, atom_size, max_allocation, max_buffer, max_timeline_difference;
	uint32_t cores;
	uint32_t cm2_max_invocations, cm2_max_dimension, cm2_reserved_shared;
	uint32_t shape_count, flexible_count;
	vka_shape shapes[VKA_MAX_SHAPES], flexible[VKA_MAX_SHAPES];
	uint32_t heap_count, type_count;
	uint64_t heap_size[16], heap_budget[16], heap_usage[16];
	uint32_t heap_flags[16];
	uint32_t type_flags[32], type_heap[32];
} vka_probe;
/* Timestamp bits of a queue family that has compute; 0 in *compute where it has not. */
uint32_t vka_timestamp_bits(vka_instance *, VkPhysicalDevice, uint32_t family, int *compute);
VkResult vka_probe_device(vka_instance *, VkPhysicalDevice, vka_probe *);
void vka_heap_budget(vka_instance *, VkPhysicalDevice, uint64_t *budget, uint64_t *usage);

/* device.c */

/* A device and its functions. */
typedef struct vka_device {
	VkDevice handle;
	VkPhysicalDevice physical;
	VkQueue queue;
	vka_instance *instance;
	uint64_t features;
	int owned;

	void (*DestroyDevice)(VkDevice, const void *);
	void (*GetDeviceQueue)(VkDevice, uint32_t, uint32_t, VkQueue *);
	VkResult (*DeviceWaitIdle)(VkDevice);
	VkResult (*QueueSubmit)(VkQueue, uint32_t, const VkSubmitInfo *, VkHandle);

	VkResult (*AllocateMemory)(VkDevice, const VkMemoryAllocateInfo *, const void *, VkHandle *);
	void (*FreeMemory)(VkDevice, VkHandle, const void *);
	VkResult (*MapMemory)(VkDevice, VkHandle, VkDeviceSize, VkDeviceSize, VkFlags, void **);
	VkResult (*CreateBuffer)(VkDevice, const VkBufferCreateInfo *, const void *, VkHandle *);
	void (*DestroyBuffer)(VkDevice, VkHandle, const void *);
	void (*GetBufferMemoryRequirements)(VkDevice, VkHandle, VkMemoryRequirements *);
	VkResult (*BindBufferMemory)(VkDevice, VkHandle, VkHandle, VkDeviceSize);
	uint64_t (*GetBufferDeviceAddress)(VkDevice, const VkBufferDeviceAddressInfo *);
	VkResult (*GetMemoryFdKHR)(VkDevice, const VkMemoryGetFdInfoKHR *, int *);

	VkResult (*CreateSemaphore)(VkDevice, const VkSemaphoreCreateInfo *, const void *, VkHandle *);
	void (*DestroySemaphore)(VkDevice, VkHandle, const void *);
	VkResult (*GetSemaphoreCounterValue)(VkDevice, VkHandle, uint64_t *);
	VkResult (*WaitSemaphores)(VkDevice, const VkSemaphoreWaitInfo *, uint64_t);
	VkResult (*SignalSemaphore)(VkDevice, const VkSemaphoreSignalInfo *);
	VkResult (*GetSemaphoreFdKHR)(VkDevice, const VkSemaphoreGetFdInfoKHR *, int *);
	VkResult (*ImportSemaphoreFdKHR)(VkDevice, const VkImportSemaphoreFdInfoKHR *);

	VkResult (*CreateShaderModule)(VkDevice, const VkShaderModuleCreateInfo *, const void *, VkHandle *);
	void (*DestroyShaderModule)(VkDevice, VkHandle, const void *);
	VkResult (*CreatePipelineCache)(VkDevice, const VkPipelineCacheCreateInfo *, const void *, VkHandle *);
	void (*DestroyPipelineCache)(VkDevice, VkHandle, const void *);
	VkResult (*GetPipelineCacheData)(VkDevice, VkHandle, size_t *, void *);
	VkResult (*CreatePipelineLayout)(VkDevice, const VkPipelineLayoutCreateInfo *, const void *, VkHandle *);
	void (*DestroyPipelineLayout)(VkDevice, VkHandle, const void *);
	VkResult (*CreateComputePipelines)(VkDevice, VkHandle, uint32_t, const VkComputePipelineCreateInfo *, const void *, VkHandle *);
	void (*DestroyPipeline)(VkDevice, VkHandle, const void *);
	VkResult (*GetPipelineExecutablePropertiesKHR)(VkDevice, const VkPipelineInfoKHR *, uint32_t *, VkPipelineExecutablePropertiesKHR *);
	VkResult (*GetPipelineExecutableStatisticsKHR)(VkDevice, const VkPipelineExecutableInfoKHR *, uint32_t *, VkPipelineExecutableStatisticKHR *);

	VkResult (*CreateDescriptorSetLayout)(VkDevice, const VkDescriptorSetLayoutCreateInfo *, const void *, VkHandle *);
	void (*DestroyDescriptorSetLayout)(VkDevice, VkHandle, const void *);
	VkResult (*CreateDescriptorPool)(VkDevice, const VkDescriptorPoolCreateInfo *, const void *, VkHandle *);
	void (*DestroyDescriptorPool)(VkDevice, VkHandle, const void *);
	VkResult (*ResetDescriptorPool)(VkDevice, VkHandle, VkFlags);
	VkResult (*AllocateDescriptorSets)(VkDevice, const VkDescriptorSetAllocateInfo *, VkHandle *);
	void (*UpdateDescriptorSets)(VkDevice, uint32_t, const VkWriteDescriptorSet *, uint32_t, const void *);

	VkResult (*CreateCommandPool)(VkDevice, const VkCommandPoolCreateInfo *, const void *, VkHandle *);
	void (*DestroyCommandPool)(VkDevice, VkHandle, const void *);
	VkResult (*ResetCommandPool)(VkDevice, VkHandle, VkFlags);
	VkResult (*AllocateCommandBuffers)(VkDevice, const VkCommandBufferAllocateInfo *, VkCommandBuffer *);
	VkResult (*BeginCommandBuffer)(VkCommandBuffer, const VkCommandBufferBeginInfo *);
	VkResult (*EndCommandBuffer)(VkCommandBuffer);
	VkResult (*CreateQueryPool)(VkDevice, const VkQueryPoolCreateInfo *, const void *, VkHandle *);
	void (*DestroyQueryPool)(VkDevice, VkHandle, const void *);
	VkResult (*GetQueryPoolResults)(VkDevice, VkHandle, uint32_t, uint32_t, size_t, void *, VkDeviceSize, VkFlags);

	void (*CmdBindPipeline)(VkCommandBuffer, uint32_t, VkHandle);
	void (*CmdBindDescriptorSets)(VkCommandBuffer, uint32_t, VkHandle, uint32_t, uint32_t, const VkHandle *, uint32_t, const uint32_t *);
	void (*CmdPushConstants)(VkCommandBuffer, VkHandle, VkFlags, uint32_t, uint32_t, const void *);
	void (*CmdDispatch)(VkCommandBuffer, uint32_t, uint32_t, uint32_t);
	void (*CmdPipelineBarrier)(VkCommandBuffer, VkFlags, VkFlags, VkFlags, uint32_t, const VkMemoryBarrier *, uint32_t, const void *, uint32_t, const void *);
	void (*CmdCopyBuffer)(VkCommandBuffer, VkHandle, VkHandle, uint32_t, const VkBufferCopy *);
	void (*CmdFillBuffer)(VkCommandBuffer, VkHandle, VkDeviceSize, VkDeviceSize, uint32_t);
	void (*CmdResetQueryPool)(VkCommandBuffer, VkHandle, uint32_t, uint32_t);
	void (*CmdWriteTimestamp)(VkCommandBuffer, VkFlags, VkHandle, uint32_t);

	VkResult (*CreateCuModuleNVX)(VkDevice, const VkCuModuleCreateInfoNVX *, const void *, VkHandle *);
	void (*DestroyCuModuleNVX)(VkDevice, VkHandle, const void *);
	VkResult (*CreateCuFunctionNVX)(VkDevice, const VkCuFunctionCreateInfoNVX *, const void *, VkHandle *);
	void (*DestroyCuFunctionNVX)(VkDevice, VkHandle, const void *);
	void (*CmdCuLaunchKernelNVX)(VkCommandBuffer, const VkCuLaunchInfoNVX *);

	VkResult (*SetDebugUtilsObjectNameEXT)(VkDevice, const VkDebugUtilsObjectNameInfoEXT *);
	void (*CmdBeginDebugUtilsLabelEXT)(VkCommandBuffer, const VkDebugUtilsLabelEXT *);
	void (*CmdEndDebugUtilsLabelEXT)(VkCommandBuffer);
	VkResult (*GetCalibratedTimestamps)(VkDevice, uint32_t, const VkCalibratedTimestampInfoKHR *, uint64_t *, uint64_t *);
} vka_device;

/* extensions: names one after the other, each ended by a NUL, then an empty one;
 * those the device lacks give VK_ERROR_EXTENSION_NOT_PRESENT. */
VkResult vka_create_device(vka_instance *, VkPhysicalDevice, const vka_probe *, uint64_t features, const char *extensions, vka_missing *, vka_device **);
VkResult vka_wrap_device(vka_instance *, VkPhysicalDevice, VkDevice, VkQueue, uint64_t features, vka_missing *, vka_device **);
void vka_destroy_device(vka_device *);
VkResult vka_wait_idle(vka_device *);
void vka_set_name(vka_device *, uint32_t type, uint64_t handle, const char *name);
/* *before and *after are the host's time, of the clock that *host_ns is of, around the call. */
/* clock.c: the domain of the host's clock, and both clocks at once. */
#ifdef _WIN32
enum { VKA_HOST_TIME_DOMAIN = VK_TIME_DOMAIN_QUERY_PERFORMANCE_COUNTER_KHR };
#else
enum { VKA_HOST_TIME_DOMAIN = VK_TIME_DOMAIN_CLOCK_MONOTONIC_KHR };
#endif
uint64_t vka_now(void);
VkResult vka_calibrate(vka_device *, uint64_t *device_ticks, uint64_t *host_ns, uint64_t *deviation_ns, uint64_t *before, uint64_t *after);

/* memory.c */

enum vka_buffer_flags { VKA_BUFFER_EXTERNAL = 1 };
VkResult vka_create_buffer(vka_device *, uint64_t size, uint32_t flags, uint64_t *buffer, uint64_t *need, uint64_t *alignment, uint32_t *types);
void vka_destroy_buffer(vka_device *, uint64_t buffer);
enum vka_memory_flags { VKA_MEMORY_MAP = 1, VKA_MEMORY_EXPORT = 2 };
/* dedicated: the buffer the allocation is for, or 0; fd: the file to import, or -1.
 * *mapped is set with VKA_MEMORY_MAP. */
VkResult vka_allocate(vka_device *, uint64_t size, uint32_t type, uint32_t flags, uint64_t dedicated, int fd, uint64_t *memory, void **mapped);
void vka_free(vka_device *, uint64_t memory);
VkResult vka_bind_buffer(vka_device *, uint64_t buffer, uint64_t memory, uint64_t offset, uint64_t *address);
VkResult vka_export_memory(vka_device *, uint64_t memory, int *fd);

/* sync.c */

VkResult vka_create_timeline(vka_device *, int exportable, uint64_t *semaphore);
void vka_destroy_semaphore(vka_device *, uint64_t semaphore);
VkResult vka_timeline_value(vka_device *, uint64_t semaphore, uint64_t *value);
VkResult vka_timeline_wait(vka_device *, uint64_t semaphore, uint64_t value, uint64_t timeout_ns);
VkResult vka_timeline_signal(vka_device *, uint64_t semaphore, uint64_t value);
VkResult vka_export_semaphore(vka_device *, uint64_t semaphore, int *fd);
VkResult vka_import_semaphore(vka_device *, uint64_t semaphore, int fd);
enum { VKA_MAX_SUBMIT_SEMAPHORES = 32 };
VkResult vka_submit(vka_device *, uint32_t count, const VkCommandBuffer *, uint32_t waits, const uint64_t *wait, const uint64_t *wait_values,
	uint32_t signals, const uint64_t *signal, const uint64_t *signal_values);

/* pipeline.c */

VkResult vka_create_layouts(vka_device *, uint32_t bindings, uint32_t push_bytes, uint64_t *set_layout, uint64_t *layout);
void vka_destroy_layouts(vka_device *, uint64_t set_layout, uint64_t layout);
enum vka_pipeline_flags { VKA_PIPELINE_FULL_SUBGROUPS = 1, VKA_PIPELINE_NO_ROBUSTNESS = 2, VKA_PIPELINE_STATISTICS = 4 };
/* ids and values are the specialization constants; size is the subgroup size or 0. */
VkResult vka_create_pipeline(vka_device *, uint64_t cache, uint64_t layout, const uint8_t *code, size_t bytes,
	uint32_t constants, const uint32_t *ids, const uint32_t *values, uint32_t size, uint32_t flags, uint64_t *pipeline);
void vka_destroy_pipeline(vka_device *, uint64_t pipeline);
VkResult vka_create_cache(vka_device *, const uint8_t *data, size_t bytes, uint64_t *cache);
void vka_destroy_cache(vka_device *, uint64_t cache);
/* *bytes: in, the room at data; out, the size. data NULL asks for the size. */
VkResult vka_cache_data(vka_device *, uint64_t cache, size_t *bytes, uint8_t *data);
typedef struct vka_statistic {
	char executable[256], name[256], description[256];
	double value;
} vka_statistic;
/* *list is malloc'ed. */
VkResult vka_statistics(vka_device *, uint64_t pipeline, uint32_t *count, vka_statistic **list);

/* dispatch.c */

enum { VKA_MAX_BINDINGS = 32 };
VkResult vka_create_descriptor_pool(vka_device *, uint32_t sets, uint32_t buffers, uint64_t *pool);
void vka_destroy_descriptor_pool(vka_device *, uint64_t pool);
VkResult vka_reset_descriptor_pool(vka_device *, uint64_t pool);
VkResult vka_descriptor_set(vka_device *, uint64_t pool, uint64_t set_layout, uint32_t count,
	const uint64_t *buffers, const uint64_t *offsets, const uint64_t *ranges, uint64_t *set);

VkResult vka_create_commands(vka_device *, uint32_t family, uint64_t *pool, VkCommandBuffer *);
void vka_destroy_commands(vka_device *, uint64_t pool);
VkResult vka_begin(vka_device *, uint64_t pool, VkCommandBuffer, int once);
VkResult vka_end(vka_device *, VkCommandBuffer);
/* set 0: none. */
void vka_cmd_dispatch(vka_device *, VkCommandBuffer, uint64_t pipeline, uint64_t layout, uint64_t set,
	const uint8_t *push, uint32_t push_bytes, uint32_t x, uint32_t y, uint32_t z);
/* all: order all commands, not only the commands of compute and transfer stages. */
void vka_cmd_barrier(vka_device *, VkCommandBuffer, int all);
void vka_cmd_host_barrier(vka_device *, VkCommandBuffer, int all);
void vka_cmd_copy(vka_device *, VkCommandBuffer, uint64_t src, uint64_t src_offset, uint64_t dst, uint64_t dst_offset, uint64_t size);
void vka_cmd_fill(vka_device *, VkCommandBuffer, uint64_t buffer, uint64_t offset, uint64_t size, uint32_t word);
VkResult vka_create_queries(vka_device *, uint32_t count, uint64_t *pool);
void vka_destroy_queries(vka_device *, uint64_t pool);
void vka_cmd_reset_queries(vka_device *, VkCommandBuffer, uint64_t pool, uint32_t count);
void vka_cmd_timestamp(vka_device *, VkCommandBuffer, uint64_t pool, uint32_t index);
VkResult vka_query_results(vka_device *, uint64_t pool, uint32_t count, uint64_t *ticks);
void vka_cmd_label(vka_device *, VkCommandBuffer, const char *name);
void vka_cmd_label_end(vka_device *, VkCommandBuffer);

/* cubin.c */

VkResult vka_create_cubin(vka_device *, const uint8_t *cubin, size_t bytes, uint64_t *module);
void vka_destroy_cubin(vka_device *, uint64_t module);
VkResult vka_create_function(vka_device *, uint64_t module, const char *name, uint64_t *function);
void vka_destroy_function(vka_device *, uint64_t function);
enum { VKA_MAX_PARAMS = 64 };
/* offsets: of each parameter in params, as the kernel declares them. */
void vka_cmd_launch(vka_device *, VkCommandBuffer, uint64_t function, const uint32_t *grid, const uint32_t *block,
	uint32_t shared_bytes, const uint8_t *params, uint32_t count, const uint32_t *offsets);

#endif
