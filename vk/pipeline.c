#include "host.h"

#include <stdlib.h>
#include <string.h>

VkResult vka_create_layouts(vka_device *d, uint32_t bindings, uint32_t push_bytes, uint64_t *set_layout, uint64_t *layout)
{
	VkDescriptorSetLayoutBinding list[VKA_MAX_BINDINGS];
	*set_layout = 0;
	if (bindings) {
		for (uint32_t i = 0; i < bindings; i++)
			list[i] = (VkDescriptorSetLayoutBinding){
				.binding = i,
				.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
				.descriptorCount = 1,
				.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
			};
		VkDescriptorSetLayoutCreateInfo set = {
			.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
			.bindingCount = bindings,
			.pBindings = list,
		};
		VkResult r = d->CreateDescriptorSetLayout(d->handle, &set, NULL, set_layout);
		if (r != VK_SUCCESS)
			return r;
	}
	VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = push_bytes};
	VkPipelineLayoutCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
		.setLayoutCount = bindings ? 1 : 0,
		.pSetLayouts = set_layout,
		.pushConstantRangeCount = push_bytes ? 1 : 0,
		.pPushConstantRanges = &push,
	};
	VkResult r = d->CreatePipelineLayout(d->handle, &info, NULL, layout);
	if (r != VK_SUCCESS && *set_layout)
		d->DestroyDescriptorSetLayout(d->handle, *set_layout, NULL);
	return r;
}

void vka_destroy_layouts(vka_device *d, uint64_t set_layout, uint64_t layout)
{
	d->DestroyPipelineLayout(d->handle, layout, NULL);
	if (set_layout)
		d->DestroyDescriptorSetLayout(d->handle, set_layout, NULL);
}

VkResult vka_create_pipeline(vka_device *d, uint64_t cache, uint64_t layout, const uint8_t *code, size_t bytes,
	uint32_t constants, const uint32_t *ids, const uint32_t *values, uint32_t size, uint32_t flags, uint64_t *pipeline)
{
	VkResult r = VK_ERROR_OUT_OF_HOST_MEMORY;
	VkHandle module = 0;
	*pipeline = 0;
	/* The code is copied: Go promises no alignment for a byte slice. */
	uint32_t *words = malloc(bytes);
	VkSpecializationMapEntry *map = calloc(constants ? constants : 1, sizeof *map);
	if (!words || !map)
		goto done;
	memcpy(words, code, bytes);
	for (uint32_t i = 0; i < constants; i++)
		map[i] = (VkSpecializationMapEntry){.constantID = ids[i], .offset = 4 * i, .size = 4};
	VkShaderModuleCreateInfo shader = {
		.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
		.codeSize = bytes,
		.pCode = words,
	};
	r = d->CreateShaderModule(d->handle, &shader, NULL, &module);
	if (r != VK_SUCCESS)
		goto done;
	VkSpecializationInfo special = {
		.mapEntryCount = constants,
		.pMapEntries = map,
		.dataSize = 4 * (size_t)constants,
		.pData = values,
	};
	VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
		.requiredSubgroupSize = size,
	};
	VkPipelineRobustnessCreateInfo robustness = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO,
		.storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED,
		.uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED,
	};
	VkComputePipelineCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
		.pNext = flags & VKA_PIPELINE_NO_ROBUSTNESS ? &robustness : NULL,
		.flags = flags & VKA_PIPELINE_STATISTICS ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0,
		.stage = {
			.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
			.pNext = size ? &subgroup : NULL,
			.flags = flags & VKA_PIPELINE_FULL_SUBGROUPS ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
			.stage = VK_SHADER_STAGE_COMPUTE_BIT,
			.module = module,
			.pName = "main",
			.pSpecializationInfo = constants ? &special : NULL,
		},
		.layout = layout,
		.basePipelineIndex = -1,
	};
	r = d->CreateComputePipelines(d->handle, cache, 1, &info, NULL, pipeline);
done:
	if (module)
		d->DestroyShaderModule(d->handle, module, NULL);
	free(map);
	free(words);
	return r;
}

void vka_destroy_pipeline(vka_device *d, uint64_t pipeline)
{
	d->DestroyPipeline(d->handle, pipeline, NULL);
}

VkResult vka_create_cache(vka_device *d, const uint8_t *data, size_t bytes, uint64_t *cache)
{
	VkPipelineCacheCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
		.initialDataSize = bytes,
		.pInitialData = bytes ? data : NULL,
	};
	return d->CreatePipelineCache(d->handle, &info, NULL, cache);
}

void vka_destroy_cache(vka_device *d, uint64_t cache)
{
	d->DestroyPipelineCache(d->handle, cache, NULL);
}

VkResult vka_cache_data(vka_device *d, uint64_t cache, size_t *bytes, uint8_t *data)
{
	return d->GetPipelineCacheData(d->handle, cache, bytes, data);
}

/* Statistics of one executable of a pipeline, appended to the list. */
static VkResult executable_statistics(vka_device *d, uint64_t pipeline, uint32_t index, const char *executable, uint32_t *count, vka_statistic **list)
{
	VkPipelineExecutableInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
		.pipeline = pipeline,
		.executableIndex = index,
	};
	uint32_t n = 0;
	VkResult r = d->GetPipelineExecutableStatisticsKHR(d->handle, &info, &n, NULL);
	if (r != VK_SUCCESS || !n)
		return r;
	VkPipelineExecutableStatisticKHR *stats = calloc(n, sizeof *stats);
	vka_statistic *grown = realloc(*list, (*count + n) * sizeof *grown);
	if (grown)
		*list = grown;
	if (!stats || !grown) {
		free(stats);
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	}
	for (uint32_t i = 0; i < n; i++)
		stats[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
	r = d->GetPipelineExecutableStatisticsKHR(d->handle, &info, &n, stats);
	for (uint32_t i = 0; r >= 0 && i < n; i++) {
		vka_statistic *s = &grown[(*count)++];
		memcpy(s->executable, executable, sizeof s->executable);
		memcpy(s->name, stats[i].name, sizeof s->name);
		memcpy(s->description, stats[i].description, sizeof s->description);
		switch (stats[i].format) {
		case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: s->value = stats[i].value.b32; break;
		case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: s->value = (double)stats[i].value.i64; break;
		case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: s->value = (double)stats[i].value.u64; break;
		default: s->value = stats[i].value.f64;
		}
	}
	free(stats);
	return r < 0 ? r : VK_SUCCESS;
}

VkResult vka_statistics(vka_device *d, uint64_t pipeline, uint32_t *count, vka_statistic **list)
{
	*count = 0;
	*list = NULL;
	VkPipelineInfoKHR info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline};
	uint32_t n = 0;
	VkResult r = d->GetPipelineExecutablePropertiesKHR(d->handle, &info, &n, NULL);
	if (r != VK_SUCCESS || !n)
		return r;
	VkPipelineExecutablePropertiesKHR *executables = calloc(n, sizeof *executables);
	if (!executables)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		executables[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
	r = d->GetPipelineExecutablePropertiesKHR(d->handle, &info, &n, executables);
	for (uint32_t i = 0; r >= 0 && i < n; i++)
		r = executable_statistics(d, pipeline, i, executables[i].name, count, list);
	free(executables);
	if (r < 0) {
		free(*list);
		*list = NULL;
	}
	return r < 0 ? r : VK_SUCCESS;
}
