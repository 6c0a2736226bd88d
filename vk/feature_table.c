#include "feature_table.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

enum { NO = VKA_NO_FEATURE, END = VKA_NO_FLAG };

const vka_feature_row vka_feature_rows[] = {
	{"VkPhysicalDevice16BitStorageFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
		VKA_VERSION(1, 1), NULL, NULL,
		{{VKA_STORAGE16, "storageBuffer16BitAccess"},
			{VKA_UNIFORM_STORAGE16, "uniformAndStorageBuffer16BitAccess"}, {NO}, {NO}, {END}}},
	{"VkPhysicalDevice8BitStorageFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_8bit_storage", NULL,
		{{VKA_STORAGE8, "storageBuffer8BitAccess"}, {NO}, {NO}, {END}}},
	{"VkPhysicalDeviceShaderFloat16Int8Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_shader_float16_int8", NULL,
		{{VKA_FLOAT16, "shaderFloat16"}, {VKA_INT8, "shaderInt8"}, {END}}},
	{"VkPhysicalDeviceShaderBfloat16FeaturesKHR", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
		0, "VK_KHR_shader_bfloat16", NULL,
		{{VKA_BFLOAT16, "shaderBFloat16Type"}, {VKA_BFLOAT16_DOT, "shaderBFloat16DotProduct"},
			{VKA_BFLOAT16_COOPMAT, "shaderBFloat16CooperativeMatrix"}, {END}}},
	{"VkPhysicalDeviceScalarBlockLayoutFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SCALAR_BLOCK_LAYOUT_FEATURES,
		VKA_VERSION(1, 2), "VK_EXT_scalar_block_layout", NULL,
		{{VKA_SCALAR_BLOCK_LAYOUT, "scalarBlockLayout"}, {END}}},
	{"VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_FEATURES_KHR,
		0, "VK_KHR_workgroup_memory_explicit_layout", NULL,
		{{VKA_WORKGROUP_LAYOUT, "workgroupMemoryExplicitLayout"},
			{VKA_WORKGROUP_LAYOUT_SCALAR, "workgroupMemoryExplicitLayoutScalarBlockLayout"},
			{VKA_WORKGROUP_LAYOUT_8, "workgroupMemoryExplicitLayout8BitAccess"},
			{VKA_WORKGROUP_LAYOUT_16, "workgroupMemoryExplicitLayout16BitAccess"}, {END}}},
	{"VkPhysicalDeviceSubgroupSizeControlFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
		VKA_VERSION(1, 3), "VK_EXT_subgroup_size_control", NULL,
		{{VKA_SUBGROUP_SIZE_CONTROL, "subgroupSizeControl"}, {VKA_FULL_SUBGROUPS, "computeFullSubgroups"},
			{END}}},
	{"VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_shader_subgroup_extended_types", NULL,
		{{VKA_SUBGROUP_EXTENDED_TYPES, "shaderSubgroupExtendedTypes"}, {END}}},
	{"VkPhysicalDeviceTimelineSemaphoreFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_timeline_semaphore", NULL,
		{{VKA_TIMELINE_SEMAPHORE, "timelineSemaphore"}, {END}}},
	{"VkPhysicalDeviceBufferDeviceAddressFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_buffer_device_address", NULL,
		{{VKA_BUFFER_DEVICE_ADDRESS, "bufferDeviceAddress"}, {NO}, {NO}, {END}}},
	{"VkPhysicalDeviceVulkanMemoryModelFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES,
		VKA_VERSION(1, 2), "VK_KHR_vulkan_memory_model", NULL,
		{{VKA_VULKAN_MEMORY_MODEL, "vulkanMemoryModel"},
			{VKA_MEMORY_MODEL_DEVICE_SCOPE, "vulkanMemoryModelDeviceScope"}, {NO}, {END}}},
	{"VkPhysicalDeviceSynchronization2Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SYNCHRONIZATION_2_FEATURES,
		VKA_VERSION(1, 3), "VK_KHR_synchronization2", NULL,
		{{VKA_SYNC2, "synchronization2"}, {END}}},
	{"VkPhysicalDeviceMaintenance4Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
		VKA_VERSION(1, 3), "VK_KHR_maintenance4", NULL,
		{{VKA_MAINTENANCE4, "maintenance4"}, {END}}},
	{"VkPhysicalDeviceHostQueryResetFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_HOST_QUERY_RESET_FEATURES,
		VKA_VERSION(1, 2), "VK_EXT_host_query_reset", NULL,
		{{VKA_HOST_QUERY_RESET, "hostQueryReset"}, {END}}},
	{"VkPhysicalDeviceRobustness2FeaturesEXT", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT,
		0, "VK_KHR_robustness2", "VK_EXT_robustness2",
		{{VKA_ROBUSTNESS2, "robustBufferAccess2"}, {NO}, {NO}, {END}}},
	{"VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
		0, "VK_KHR_pipeline_executable_properties", NULL,
		{{VKA_PIPELINE_EXECUTABLE, "pipelineExecutableInfo"}, {END}}},
	{"VkPhysicalDevicePipelineRobustnessFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES,
		VKA_VERSION(1, 4), "VK_EXT_pipeline_robustness", NULL,
		{{VKA_PIPELINE_ROBUSTNESS, "pipelineRobustness"}, {END}}},
	{"VkPhysicalDeviceCooperativeMatrixFeaturesKHR", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
		0, "VK_KHR_cooperative_matrix", NULL,
		{{VKA_COOPMAT, "cooperativeMatrix"}, {NO}, {END}}},
	{"VkPhysicalDeviceCooperativeMatrix2FeaturesNV", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV,
		0, "VK_NV_cooperative_matrix2", NULL,
		{{VKA_CM2_WORKGROUP_SCOPE, "cooperativeMatrixWorkgroupScope"},
			{VKA_CM2_FLEXIBLE_DIMENSIONS, "cooperativeMatrixFlexibleDimensions"},
			{VKA_CM2_REDUCTIONS, "cooperativeMatrixReductions"},
			{VKA_CM2_CONVERSIONS, "cooperativeMatrixConversions"},
			{VKA_CM2_PER_ELEMENT, "cooperativeMatrixPerElementOperations"},
			{VKA_CM2_TENSOR_ADDRESSING, "cooperativeMatrixTensorAddressing"},
			{VKA_CM2_BLOCK_LOADS, "cooperativeMatrixBlockLoads"}, {END}}},
};
const uint32_t vka_feature_row_count = sizeof vka_feature_rows / sizeof *vka_feature_rows;
_Static_assert(sizeof vka_feature_rows / sizeof *vka_feature_rows <= VKA_FEATURE_ROWS, "raise VKA_FEATURE_ROWS");

const vka_core_feature vka_core_features[] = {
	{VKA_ROBUST_BUFFER_ACCESS, offsetof(VkPhysicalDeviceFeatures, robustBufferAccess), "robustBufferAccess"},
	{VKA_INT64, offsetof(VkPhysicalDeviceFeatures, shaderInt64), "shaderInt64"},
	{VKA_INT16, offsetof(VkPhysicalDeviceFeatures, shaderInt16), "shaderInt16"},
};
const uint32_t vka_core_feature_count = sizeof vka_core_features / sizeof *vka_core_features;

const vka_extension_feature vka_extension_features[] = {
	{VKA_EXTERNAL_MEMORY_FD, "VK_KHR_external_memory_fd", NULL},
	{VKA_EXTERNAL_SEMAPHORE_FD, "VK_KHR_external_semaphore_fd", NULL},
	{VKA_CALIBRATED_TIMESTAMPS, "VK_KHR_calibrated_timestamps", "VK_EXT_calibrated_timestamps"},
	{VKA_MEMORY_BUDGET, "VK_EXT_memory_budget", NULL},
	{VKA_BINARY_IMPORT, "VK_NVX_binary_import", NULL},
};
const uint32_t vka_extension_feature_count = sizeof vka_extension_features / sizeof *vka_extension_features;

int vka_has_extension(const vka_extensions *e, const char *name)
{
	for (uint32_t i = 0; i < e->count; i++)
		if (!strcmp(e->list[i].extensionName, name))
			return 1;
	return 0;
}

const char *vka_row_extension(const vka_feature_row *row, uint32_t api, const vka_extensions *e)
{
	if (row->core && api >= row->core)
		return "";
	if (row->extension && vka_has_extension(e, row->extension))
		return row->extension;
	if (row->alias && vka_has_extension(e, row->alias))
		return row->alias;
	return NULL;
}

VkBool32 *vka_core_flag(VkPhysicalDeviceFeatures *f, uint32_t i)
{
	return (VkBool32 *)((char *)f + vka_core_features[i].offset);
}

int vka_row_wanted(const vka_feature_row *row, uint64_t features)
{
	for (int j = 0; j < VKA_MAX_FLAGS && row->flags[j].bit != END; j++)
		if (row->flags[j].bit != NO && (features & VKA_BIT(row->flags[j].bit)))
			return 1;
	return 0;
}

void vka_fill_chain(vka_feature_chain *chain, uint64_t features)
{
	memset(chain, 0, sizeof *chain);
	chain->core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
	for (uint32_t i = 0; i < vka_core_feature_count; i++)
		*vka_core_flag(&chain->core.features, i) = !!(features & VKA_BIT(vka_core_features[i].bit));
	for (uint32_t i = 0; i < vka_feature_row_count; i++) {
		const vka_feature_row *row = &vka_feature_rows[i];
		if (!vka_row_wanted(row, features))
			continue;
		for (int j = 0; j < VKA_MAX_FLAGS && row->flags[j].bit != END; j++)
			chain->rows[i].flags[j] = row->flags[j].bit != NO && (features & VKA_BIT(row->flags[j].bit));
		chain->rows[i].sType = row->type;
		chain->rows[i].pNext = chain->core.pNext;
		chain->core.pNext = &chain->rows[i];
	}
}

void *vka_new_chain(uint64_t features)
{
	vka_feature_chain *chain = malloc(sizeof *chain);
	if (chain)
		vka_fill_chain(chain, features);
	return chain;
}

vka_feature_info vka_describe_feature(int bit)
{
	vka_feature_info info = {NULL, NULL, NULL, 0};
	for (uint32_t i = 0; i < vka_core_feature_count; i++)
		if (vka_core_features[i].bit == bit)
			return (vka_feature_info){vka_core_features[i].name, "VkPhysicalDeviceFeatures", NULL, VKA_VERSION(1, 0)};
	for (uint32_t i = 0; i < vka_extension_feature_count; i++)
		if (vka_extension_features[i].bit == bit)
			info.extension = vka_extension_features[i].extension;
	for (uint32_t i = 0; i < vka_feature_row_count; i++) {
		const vka_feature_row *row = &vka_feature_rows[i];
		for (int j = 0; j < VKA_MAX_FLAGS && row->flags[j].bit != END; j++)
			if (row->flags[j].bit == bit)
				return (vka_feature_info){row->flags[j].name, row->name, row->extension, row->core};
	}
	return info;
}
