#include "feature_table.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

VkResult vka_list_extensions(vka_instance *in, VkPhysicalDevice pd, vka_extensions *e)
{
	e->count = 0;
	e->list = NULL;
	VkResult r = in->EnumerateDeviceExtensionProperties(pd, NULL, &e->count, NULL);
	if (r != VK_SUCCESS || !e->count)
		return r;
	e->list = calloc(e->count, sizeof *e->list);
	if (!e->list)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	r = in->EnumerateDeviceExtensionProperties(pd, NULL, &e->count, e->list);
	return r == VK_INCOMPLETE ? VK_SUCCESS : r;
}

/* A structure is chained only when the device has its version or extension:
 * drivers may write past, or trip over, what they do not know. */
static void chain(void *head, void *s)
{
	((VkBaseOutStructure *)s)->pNext = ((VkBaseOutStructure *)head)->pNext;
	((VkBaseOutStructure *)head)->pNext = s;
}

static void probe_features(vka_instance *in, VkPhysicalDevice pd, const vka_extensions *e, vka_probe *p)
{
	VkPhysicalDeviceFeatures2 core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
	vka_feature_struct rows[VKA_FEATURE_ROWS];
	memset(rows, 0, sizeof rows);
	for (uint32_t i = 0; i < vka_feature_row_count; i++) {
		if (!vka_row_extension(&vka_feature_rows[i], p->effective_api, e))
			continue;
		rows[i].sType = vka_feature_rows[i].type;
		chain(&core, &rows[i]);
	}
	in->GetPhysicalDeviceFeatures2(pd, &core);
	uint64_t f = 0;
	for (uint32_t i = 0; i < vka_core_feature_count; i++)
		if (*vka_core_flag(&core.features, i))
			f |= VKA_BIT(vka_core_features[i].bit);
	for (uint32_t i = 0; i < vka_feature_row_count; i++)
		for (int j = 0; j < VKA_MAX_FLAGS && vka_feature_rows[i].flags[j].bit != VKA_NO_FLAG; j++)
			if (vka_feature_rows[i].flags[j].bit != VKA_NO_FEATURE && rows[i].flags[j])
				f |= VKA_BIT(vka_feature_rows[i].flags[j].bit);
	p->features |= f;
}

static void probe_properties(vka_instance *in, VkPhysicalDevice pd, const vka_extensions *e, vka_probe *p)
{
	VkPhysicalDeviceProperties2 core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
	VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
	VkPhysicalDeviceMaintenance3Properties m3 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
	VkPhysicalDeviceMaintenance4Properties m4 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES};
	VkPhysicalDeviceSubgroupProperties sg = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
	VkPhysicalDeviceSubgroupSizeControlProperties sc = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
	VkPhysicalDeviceDriverProperties dr = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
	VkPhysicalDeviceTimelineSemaphoreProperties tl = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_PROPERTIES};
	VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
	VkPhysicalDeviceShaderCorePropertiesAMD amd = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
	VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM arm = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM};
	VkPhysicalDeviceCooperativeMatrixPropertiesKHR cm = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
	VkPhysicalDeviceCooperativeMatrix2PropertiesNV cm2 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_PROPERTIES_NV};
	uint32_t api = p->effective_api;
	chain(&core, &id);
	chain(&core, &m3);
	chain(&core, &sg);
	if (api >= VKA_VERSION(1, 3) || vka_has_extension(e, "VK_KHR_maintenance4"))
		chain(&core, &m4);
	if (api >= VKA_VERSION(1, 3) || vka_has_extension(e, "VK_EXT_subgroup_size_control"))
		chain(&core, &sc);
	if (api >= VKA_VERSION(1, 2) || vka_has_extension(e, "VK_KHR_driver_properties"))
		chain(&core, &dr);
	if (api >= VKA_VERSION(1, 2) || vka_has_extension(e, "VK_KHR_timeline_semaphore"))
		chain(&core, &tl);
	if (vka_has_extension(e, "VK_NV_shader_sm_builtins"))
		chain(&core, &nv);
	if (vka_has_extension(e, "VK_AMD_shader_core_properties"))
		chain(&core, &amd);
	if (vka_has_extension(e, "VK_ARM_shader_core_builtins"))
		chain(&core, &arm);
	if (vka_has_extension(e, "VK_KHR_cooperative_matrix"))
		chain(&core, &cm);
	if (vka_has_extension(e, "VK_NV_cooperative_matrix2"))
		chain(&core, &cm2);
	in->GetPhysicalDeviceProperties2(pd, &core);

	memcpy(p->uuid, id.deviceUUID, 16);
	memcpy(p->driver_uuid, id.driverUUID, 16);
	memcpy(p->driver_name, dr.driverName, sizeof p->driver_name);
	memcpy(p->driver_info, dr.driverInfo, sizeof p->driver_info);
	const VkPhysicalDeviceLimits *l = &core.properties.limits;
	p->max_shared = l->maxComputeSharedMemorySize;
	p->max_invocations = l->maxComputeWorkGroupInvocations;
	memcpy(p->max_size, l->maxComputeWorkGroupSize, sizeof p->max_size);
	memcpy(p->max_count, l->maxComputeWorkGroupCount, sizeof p->max_count);
	p->max_push = l->maxPushConstantsSize;
	p->max_allocations = l->maxMemoryAllocationCount;
	p->max_storage_range = l->maxStorageBufferRange;
	p->max_storage_buffers = l->maxPerStageDescriptorStorageBuffers;
	if (l->maxDescriptorSetStorageBuffers < p->max_storage_buffers)
		p->max_storage_buffers = l->maxDescriptorSetStorageBuffers;
	if (l->maxPerStageResources < p->max_storage_buffers)
		p->max_storage_buffers = l->maxPerStageResources;
	if (m3.maxPerSetDescriptors && m3.maxPerSetDescriptors < p->max_storage_buffers)
		p->max_storage_buffers = m3.maxPerSetDescriptors;
	p->min_storage_alignment = l->minStorageBufferOffsetAlignment;
	p->atom_size = l->nonCoherentAtomSize;
	p->max_allocation = m3.maxMemoryAllocationSize;
	p->max_buffer = m4.maxBufferSize;
	p->max_timeline_difference = tl.maxTimelineSemaphoreValueDifference;
	p->timestamp_period = l->timestampPeriod;
	p->subgroup_size = sg.subgroupSize;
	p->subgroup_ops = sg.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT ? sg.supportedOperations : 0;
	p->min_subgroup = sc.minSubgroupSize;
	p->max_subgroup = sc.maxSubgroupSize;
	p->max_subgroups = sc.maxComputeWorkgroupSubgroups;
	p->required_size_in_compute = !!(sc.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
	if (nv.shaderSMCount)
		p->cores = nv.shaderSMCount;
	else if (amd.shaderEngineCount)
		p->cores = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
	else
		p->cores = arm.shaderCoreCount;
	if (!(cm.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT))
		p->features &= ~VKA_BIT(VKA_COOPMAT);
	p->cm2_max_invocations = cm2.cooperativeMatrixWorkgroupScopeMaxWorkgroupSize;
	p->cm2_max_dimension = cm2.cooperativeMatrixFlexibleDimensionsMaxDimension;
	p->cm2_reserved_shared = cm2.cooperativeMatrixWorkgroupScopeReservedSharedMemory;
}

enum { MAX_FAMILIES = 64 };

/* The count is asked for first: SwiftShader fills as many as it is given room for. */
static uint32_t queue_families(vka_instance *in, VkPhysicalDevice pd, VkQueueFamilyProperties *list)
{
	uint32_t n = 0;
	in->GetPhysicalDeviceQueueFamilyProperties(pd, &n, NULL);
	if (n > MAX_FAMILIES)
		n = MAX_FAMILIES;
	in->GetPhysicalDeviceQueueFamilyProperties(pd, &n, list);
	return n;
}

static void probe_queues(vka_instance *in, VkPhysicalDevice pd, vka_probe *p)
{
	VkQueueFamilyProperties list[MAX_FAMILIES];
	uint32_t n = queue_families(in, pd, list);
	p->queue_family = UINT32_MAX;
	for (uint32_t i = 0; i < n; i++)
		if ((list[i].queueFlags & VK_QUEUE_COMPUTE_BIT) && list[i].queueCount) {
			p->queue_family = i;
			p->timestamp_bits = list[i].timestampValidBits;
			return;
		}
}

uint32_t vka_timestamp_bits(vka_instance *in, VkPhysicalDevice pd, uint32_t family, int *compute)
{
	VkQueueFamilyProperties list[MAX_FAMILIES];
	uint32_t n = queue_families(in, pd, list);
	*compute = family < n && (list[family].queueFlags & VK_QUEUE_COMPUTE_BIT);
	return *compute ? list[family].timestampValidBits : 0;
}

static void probe_memory(vka_instance *in, VkPhysicalDevice pd, vka_probe *p)
{
	VkPhysicalDeviceMemoryProperties2 core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
	in->GetPhysicalDeviceMemoryProperties2(pd, &core);
	const VkPhysicalDeviceMemoryProperties *m = &core.memoryProperties;
	p->heap_count = m->memoryHeapCount;
	p->type_count = m->memoryTypeCount;
	for (uint32_t i = 0; i < m->memoryHeapCount; i++) {
		p->heap_size[i] = m->memoryHeaps[i].size;
		p->heap_flags[i] = m->memoryHeaps[i].flags;
	}
	for (uint32_t i = 0; i < m->memoryTypeCount; i++) {
		p->type_flags[i] = m->memoryTypes[i].propertyFlags;
		p->type_heap[i] = m->memoryTypes[i].heapIndex;
	}
	if (p->features & VKA_BIT(VKA_MEMORY_BUDGET))
		vka_heap_budget(in, pd, p->heap_budget, p->heap_usage);
}

void vka_heap_budget(vka_instance *in, VkPhysicalDevice pd, uint64_t *budget, uint64_t *usage)
{
	VkPhysicalDeviceMemoryBudgetPropertiesEXT b = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
	VkPhysicalDeviceMemoryProperties2 core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &b};
	in->GetPhysicalDeviceMemoryProperties2(pd, &core);
	memcpy(budget, b.heapBudget, sizeof b.heapBudget);
	memcpy(usage, b.heapUsage, sizeof b.heapUsage);
}

static void probe_shapes(vka_instance *in, VkPhysicalDevice pd, vka_probe *p)
{
	uint32_t n = 0;
	if ((p->features & VKA_BIT(VKA_COOPMAT)) && in->GetPhysicalDeviceCooperativeMatrixPropertiesKHR &&
		in->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(pd, &n, NULL) == VK_SUCCESS && n) {
		VkCooperativeMatrixPropertiesKHR *list = calloc(n, sizeof *list);
		for (uint32_t i = 0; list && i < n; i++)
			list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
		if (list && in->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(pd, &n, list) >= 0)
			for (uint32_t i = 0; i < n && p->shape_count < VKA_MAX_SHAPES; i++) {
				const VkCooperativeMatrixPropertiesKHR *s = &list[i];
				p->shapes[p->shape_count++] = (vka_shape){s->MSize, s->NSize, s->KSize, s->AType, s->BType, s->CType,
					s->ResultType, s->saturatingAccumulation, s->scope, 0};
			}
		free(list);
	}
	n = 0;
	if ((p->features & VKA_BIT(VKA_CM2_FLEXIBLE_DIMENSIONS)) && in->GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV &&
		in->GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV(pd, &n, NULL) == VK_SUCCESS && n) {
		VkCooperativeMatrixFlexibleDimensionsPropertiesNV *list = calloc(n, sizeof *list);
		for (uint32_t i = 0; list && i < n; i++)
			list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV;
		if (list && in->GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV(pd, &n, list) >= 0)
			for (uint32_t i = 0; i < n && p->flexible_count < VKA_MAX_SHAPES; i++) {
				const VkCooperativeMatrixFlexibleDimensionsPropertiesNV *s = &list[i];
				p->flexible[p->flexible_count++] = (vka_shape){s->MGranularity, s->NGranularity, s->KGranularity, s->AType, s->BType,
					s->CType, s->ResultType, s->saturatingAccumulation, s->scope, s->workgroupInvocations};
			}
		free(list);
	}
}

/* Being listed does not make file descriptors work: ask for this kind of object. */
static void probe_sharing(vka_instance *in, VkPhysicalDevice pd, const vka_extensions *e, vka_probe *p)
{
	if (vka_has_extension(e, "VK_KHR_external_memory_fd")) {
		VkPhysicalDeviceExternalBufferInfo info = {
			.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
			.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
			.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
		};
		if (p->features & VKA_BIT(VKA_BUFFER_DEVICE_ADDRESS))
			info.usage |= VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
		VkExternalBufferProperties out = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
		in->GetPhysicalDeviceExternalBufferProperties(pd, &info, &out);
		VkFlags have = out.externalMemoryProperties.externalMemoryFeatures;
		VkFlags want = VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
		if ((have & want) == want) {
			p->features |= VKA_BIT(VKA_EXTERNAL_MEMORY_FD);
			if (have & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT)
				p->features |= VKA_BIT(VKA_EXTERNAL_MEMORY_DEDICATED);
		}
	}
	if (vka_has_extension(e, "VK_KHR_external_semaphore_fd") && (p->features & VKA_BIT(VKA_TIMELINE_SEMAPHORE))) {
		VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
		VkPhysicalDeviceExternalSemaphoreInfo info = {
			.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO,
			.pNext = &type,
			.handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
		};
		VkExternalSemaphoreProperties out = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES};
		in->GetPhysicalDeviceExternalSemaphoreProperties(pd, &info, &out);
		VkFlags want = VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT;
		if ((out.externalSemaphoreFeatures & want) == want)
			p->features |= VKA_BIT(VKA_EXTERNAL_SEMAPHORE_FD);
	}
	if (in->GetPhysicalDeviceCalibrateableTimeDomains &&
		(vka_has_extension(e, "VK_KHR_calibrated_timestamps") || vka_has_extension(e, "VK_EXT_calibrated_timestamps"))) {
		uint32_t domains[16], n = 16, seen = 0;
		if (in->GetPhysicalDeviceCalibrateableTimeDomains(pd, &n, domains) >= 0)
			for (uint32_t i = 0; i < n; i++)
				seen |= domains[i] < 32 ? 1u << domains[i] : 0;
		uint32_t want = 1u << VK_TIME_DOMAIN_DEVICE_KHR | 1u << VKA_HOST_TIME_DOMAIN;
		if ((seen & want) == want)
			p->features |= VKA_BIT(VKA_CALIBRATED_TIMESTAMPS);
	}
}

VkResult vka_probe_device(vka_instance *in, VkPhysicalDevice pd, vka_probe *p)
{
	memset(p, 0, sizeof *p);
	VkPhysicalDeviceProperties basic;
	memset(&basic, 0, sizeof basic);
	in->GetPhysicalDeviceProperties(pd, &basic);
	memcpy(p->name, basic.deviceName, sizeof p->name);
	memcpy(p->cache_uuid, basic.pipelineCacheUUID, 16);
	p->vendor = basic.vendorID;
	p->device = basic.deviceID;
	p->type = basic.deviceType;
	p->api = basic.apiVersion;
	p->driver_version = basic.driverVersion;
	p->effective_api = basic.apiVersion < in->api ? basic.apiVersion : in->api;
	p->queue_family = UINT32_MAX;
	if (p->effective_api < VKA_VERSION(1, 1))
		return VK_SUCCESS; /* the queries below are not there */
	vka_extensions e;
	VkResult r = vka_list_extensions(in, pd, &e);
	if (r == VK_SUCCESS) {
		if (in->debug_utils)
			p->features |= VKA_BIT(VKA_DEBUG_UTILS);
		if (vka_has_extension(&e, "VK_EXT_memory_budget"))
			p->features |= VKA_BIT(VKA_MEMORY_BUDGET);
		if (vka_has_extension(&e, "VK_NVX_binary_import"))
			p->features |= VKA_BIT(VKA_BINARY_IMPORT);
		probe_features(in, pd, &e, p);
		probe_properties(in, pd, &e, p);
		if (!(p->features & VKA_BIT(VKA_COOPMAT)))
			for (int f = VKA_CM2_WORKGROUP_SCOPE; f <= VKA_CM2_BLOCK_LOADS; f++)
				p->features &= ~VKA_BIT(f);
		probe_queues(in, pd, p);
		probe_memory(in, pd, p);
		probe_shapes(in, pd, p);
		probe_sharing(in, pd, &e, p);
	}
	free(e.list);
	return r;
}
