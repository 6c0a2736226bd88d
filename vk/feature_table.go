// Features of devices as data: the same rows probe a device and enable what it has.

package vk

import "strings"

// Features that code names. Their numbers are those of the booleans of Caps (caps.go).
var (
	featureSubgroupSizeControl     = featureOf("SubgroupSizeControl")
	featureTimelineSemaphore       = featureOf("TimelineSemaphore")
	featureBufferDeviceAddress     = featureOf("BufferDeviceAddress")
	featureCoopmat                 = featureOf("CoopMat")
	featureExternalMemoryFd        = featureOf("ExternalMemoryFd")
	featureExternalMemoryDedicated = featureOf("ExternalMemoryDedicated")
	featureExternalSemaphoreFd     = featureOf("ExternalSemaphoreFd")
	featureCalibratedTimestamps    = featureOf("CalibratedTimestamps")
	featureMemoryBudget            = featureOf("MemoryBudget")
	featureBinaryImport            = featureOf("BinaryImport")
	featureDebugUtils              = featureOf("DebugUtils")
	featureCm2WorkgroupScope       = featureOf("WorkgroupScope")
	featureCm2FlexibleDimensions   = featureOf("FlexibleDimensions")
	featureCm2BlockLoads           = featureOf("BlockLoads")
)

// A featureRow is a feature structure of Vulkan.
type featureRow struct {
	name             string // of the structure
	structure        uint32 // its type
	core             uint32 // Vulkan version that needs no extension for it; 0: none
	extension, alias string // "" without
	flags            []featureFlag
}

// A featureFlag is a member of a feature structure.
type featureFlag struct {
	bit  int // of the feature; noFeature: the member is not used
	name string
}

const noFeature = -1

// row is the row of a structure. Before Vulkan 1.minor, or with 0 in every version, it needs the extension or its alias.
// members are those of the structure in order, as field of Caps:member, or - for one that is not used.
func row(name string, structure, minor uint32, extension, alias, members string) featureRow {
	r := featureRow{name: name, structure: structure, extension: extension, alias: alias}
	if minor != 0 {
		r.core = 1<<22 | minor<<12
	}
	for _, m := range strings.Fields(members) {
		f := featureFlag{bit: noFeature}
		if field, member, used := strings.Cut(m, ":"); used {
			f = featureFlag{featureOf(field), member}
		}
		r.flags = append(r.flags, f)
	}
	return r
}

var featureRows = [...]featureRow{
	row("VkPhysicalDevice16BitStorageFeatures", 1000083000, 1, "", "",
		"Storage16:storageBuffer16BitAccess UniformStorage16:uniformAndStorageBuffer16BitAccess - -"),
	row("VkPhysicalDevice8BitStorageFeatures", 1000177000, 2, "VK_KHR_8bit_storage", "",
		"Storage8:storageBuffer8BitAccess - -"),
	row("VkPhysicalDeviceShaderFloat16Int8Features", 1000082000, 2, "VK_KHR_shader_float16_int8", "",
		"Float16:shaderFloat16 Int8:shaderInt8"),
	row("VkPhysicalDeviceShaderBfloat16FeaturesKHR", 1000141000, 0, "VK_KHR_shader_bfloat16", "",
		"BFloat16:shaderBFloat16Type BFloat16Dot:shaderBFloat16DotProduct "+
			"BFloat16CoopMat:shaderBFloat16CooperativeMatrix"),
	row("VkPhysicalDeviceScalarBlockLayoutFeatures", 1000221000, 2, "VK_EXT_scalar_block_layout", "",
		"ScalarBlockLayout:scalarBlockLayout"),
	row("VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR", 1000336000, 0, "VK_KHR_workgroup_memory_explicit_layout", "",
		"WorkgroupLayout:workgroupMemoryExplicitLayout "+
			"WorkgroupLayoutScalar:workgroupMemoryExplicitLayoutScalarBlockLayout "+
			"WorkgroupLayout8:workgroupMemoryExplicitLayout8BitAccess "+
			"WorkgroupLayout16:workgroupMemoryExplicitLayout16BitAccess"),
	row("VkPhysicalDeviceSubgroupSizeControlFeatures", 1000225002, 3, "VK_EXT_subgroup_size_control", "",
		"SubgroupSizeControl:subgroupSizeControl FullSubgroups:computeFullSubgroups"),
	row("VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures", 1000175000, 2, "VK_KHR_shader_subgroup_extended_types", "",
		"SubgroupExtendedTypes:shaderSubgroupExtendedTypes"),
	row("VkPhysicalDeviceTimelineSemaphoreFeatures", 1000207000, 2, "VK_KHR_timeline_semaphore", "",
		"TimelineSemaphore:timelineSemaphore"),
	row("VkPhysicalDeviceBufferDeviceAddressFeatures", 1000257000, 2, "VK_KHR_buffer_device_address", "",
		"BufferDeviceAddress:bufferDeviceAddress - -"),
	row("VkPhysicalDeviceVulkanMemoryModelFeatures", 1000211000, 2, "VK_KHR_vulkan_memory_model", "",
		"VulkanMemoryModel:vulkanMemoryModel MemoryModelDeviceScope:vulkanMemoryModelDeviceScope -"),
	row("VkPhysicalDeviceSynchronization2Features", 1000314007, 3, "VK_KHR_synchronization2", "",
		"Sync2:synchronization2"),
	row("VkPhysicalDeviceMaintenance4Features", 1000413000, 3, "VK_KHR_maintenance4", "",
		"Maintenance4:maintenance4"),
	row("VkPhysicalDeviceHostQueryResetFeatures", 1000261000, 2, "VK_EXT_host_query_reset", "",
		"HostQueryReset:hostQueryReset"),
	row("VkPhysicalDeviceRobustness2FeaturesEXT", 1000286000, 0, "VK_KHR_robustness2", "VK_EXT_robustness2",
		"Robustness2:robustBufferAccess2 - -"),
	row("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", 1000269000, 0, "VK_KHR_pipeline_executable_properties", "",
		"PipelineExecutable:pipelineExecutableInfo"),
	row("VkPhysicalDevicePipelineRobustnessFeatures", 1000068001, 4, "VK_EXT_pipeline_robustness", "",
		"PipelineRobustness:pipelineRobustness"),
	row("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000, 0, "VK_KHR_cooperative_matrix", "",
		"CoopMat:cooperativeMatrix -"),
	row("VkPhysicalDeviceCooperativeMatrix2FeaturesNV", 1000593000, 0, "VK_NV_cooperative_matrix2", "",
		"WorkgroupScope:cooperativeMatrixWorkgroupScope "+
			"FlexibleDimensions:cooperativeMatrixFlexibleDimensions Reductions:cooperativeMatrixReductions "+
			"Conversions:cooperativeMatrixConversions PerElement:cooperativeMatrixPerElementOperations "+
			"TensorAddressing:cooperativeMatrixTensorAddressing BlockLoads:cooperativeMatrixBlockLoads"),
}

// Features of VkPhysicalDeviceFeatures.
var coreFeatures = [...]struct {
	featureFlag
	of func(*vkPhysicalDeviceFeatures) *uint32
}{
	{featureFlag{featureOf("RobustBufferAccess"), "robustBufferAccess"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.robustBufferAccess }},
	{featureFlag{featureOf("Int64"), "shaderInt64"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.shaderInt64 }},
	{featureFlag{featureOf("Int16"), "shaderInt16"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.shaderInt16 }},
}

// Extensions without a feature structure.
var extensionFeatures = [...]struct {
	bit              int
	extension, alias string
}{
	{featureExternalMemoryFd, "VK_KHR_external_memory_fd", ""},
	{featureExternalSemaphoreFd, "VK_KHR_external_semaphore_fd", ""},
	{featureCalibratedTimestamps, "VK_KHR_calibrated_timestamps", "VK_EXT_calibrated_timestamps"},
	{featureMemoryBudget, "VK_EXT_memory_budget", ""},
	{featureBinaryImport, "VK_NVX_binary_import", ""},
}

// extensions are those of a device, a layer or the loader.
type extensions []vkExtensionProperties

func (e extensions) has(name string) bool {
	for i := range e {
		if gotext(e[i].extensionName[:]) == name {
			return true
		}
	}
	return false
}

// extensionFor is the extension that a row needs on a device of this version, "" for none. It is not ok if the device
// does not have the structure: drivers may write past, or trip over, what they do not know.
func (r *featureRow) extensionFor(api uint32, have extensions) (extension string, ok bool) {
	switch {
	case r.core != 0 && api >= r.core:
		return "", true
	case r.extension != "" && have.has(r.extension):
		return r.extension, true
	case r.alias != "" && have.has(r.alias):
		return r.alias, true
	}
	return "", false
}

// wanted reports whether one of the features is a flag of the row.
func (r *featureRow) wanted(features uint64) bool {
	for _, f := range r.flags {
		if f.bit != noFeature && features>>f.bit&1 != 0 {
			return true
		}
	}
	return false
}

// featureStruct is any of the feature structures, which are a head and a run of VkBool32 each.
type featureStruct struct {
	vkHead
	flags [8]uint32
}

// featureChain is what VkDeviceCreateInfo.pNext takes to enable features. The structures point at each other.
type featureChain struct {
	core vkPhysicalDeviceFeatures2
	rows [len(featureRows)]featureStruct
}

func newFeatureChain(features uint64) *featureChain {
	c := &featureChain{core: *headed(vkPhysicalDeviceFeatures2{})}
	for _, f := range coreFeatures {
		*f.of(&c.core.features) = bool32(features>>f.bit&1 != 0)
	}
	for i := range featureRows {
		row := &featureRows[i]
		if !row.wanted(features) {
			continue
		}
		c.rows[i].sType = row.structure
		for j, f := range row.flags {
			c.rows[i].flags[j] = bool32(f.bit != noFeature && features>>f.bit&1 != 0)
		}
		c.core.chain(&c.rows[i].vkHead)
	}
	return c
}

// hostFeature describes the feature of a bit.
func hostFeature(bit int) Feature {
	for _, f := range coreFeatures {
		if f.bit == bit {
			return Feature{Name: f.name, Struct: "VkPhysicalDeviceFeatures", Core: 1 << 22}
		}
	}
	for i := range featureRows {
		row := &featureRows[i]
		for _, f := range row.flags {
			if f.bit == bit {
				return Feature{Name: f.name, Struct: row.name, Extension: row.extension, Core: row.core}
			}
		}
	}
	for _, f := range extensionFeatures {
		if f.bit == bit {
			return Feature{Extension: f.extension}
		}
	}
	return Feature{}
}
