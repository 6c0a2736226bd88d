// Features of devices as data: the same rows probe a device and enable what it has.

package vk

// The numbers of features are those of the booleans of Caps (caps_bits.go). One list serves to ask for them and to enable them.
const (
	featureFloat16 = iota
	featureInt8
	featureInt16
	featureInt64
	featureStorage16
	featureUniformStorage16
	featureStorage8
	featureBfloat16
	featureBfloat16Dot
	featureBfloat16Coopmat
	featureScalarBlockLayout
	featureWorkgroupLayout
	featureWorkgroupLayoutScalar
	featureWorkgroupLayout8
	featureWorkgroupLayout16
	featureSubgroupSizeControl
	featureFullSubgroups
	featureSubgroupExtendedTypes
	featureTimelineSemaphore
	featureBufferDeviceAddress
	featureVulkanMemoryModel
	featureMemoryModelDeviceScope
	featureSync2
	featureMaintenance4
	featureHostQueryReset
	featureRobustBufferAccess
	featureRobustness2
	featurePipelineExecutable
	featurePipelineRobustness
	featureCoopmat
	featureCm2WorkgroupScope
	featureCm2FlexibleDimensions
	featureCm2Reductions
	featureCm2Conversions
	featureCm2PerElement
	featureCm2TensorAddressing
	featureCm2BlockLoads
	// Extensions without a feature structure.
	featureExternalMemoryFd
	featureExternalMemoryDedicated // a property: such memory must be dedicated
	featureExternalSemaphoreFd
	featureCalibratedTimestamps
	featureMemoryBudget
	featureBinaryImport
	featureDebugUtils // of the instance
	featureCount
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

var unused = featureFlag{bit: noFeature}

var featureRows = [...]featureRow{
	{"VkPhysicalDevice16BitStorageFeatures", vkStructureTypePhysicalDevice16BitStorageFeatures,
		1<<22 | 1<<12, "", "",
		[]featureFlag{
			{featureStorage16, "storageBuffer16BitAccess"},
			{featureUniformStorage16, "uniformAndStorageBuffer16BitAccess"}, unused, unused,
		}},
	{"VkPhysicalDevice8BitStorageFeatures", vkStructureTypePhysicalDevice8BitStorageFeatures,
		1<<22 | 2<<12, "VK_KHR_8bit_storage", "",
		[]featureFlag{{featureStorage8, "storageBuffer8BitAccess"}, unused, unused}},
	{"VkPhysicalDeviceShaderFloat16Int8Features", vkStructureTypePhysicalDeviceShaderFloat16Int8Features,
		1<<22 | 2<<12, "VK_KHR_shader_float16_int8", "",
		[]featureFlag{{featureFloat16, "shaderFloat16"}, {featureInt8, "shaderInt8"}}},
	{"VkPhysicalDeviceShaderBfloat16FeaturesKHR", vkStructureTypePhysicalDeviceShaderBfloat16FeaturesKHR,
		0, "VK_KHR_shader_bfloat16", "",
		[]featureFlag{
			{featureBfloat16, "shaderBFloat16Type"}, {featureBfloat16Dot, "shaderBFloat16DotProduct"},
			{featureBfloat16Coopmat, "shaderBFloat16CooperativeMatrix"},
		}},
	{"VkPhysicalDeviceScalarBlockLayoutFeatures", vkStructureTypePhysicalDeviceScalarBlockLayoutFeatures,
		1<<22 | 2<<12, "VK_EXT_scalar_block_layout", "",
		[]featureFlag{{featureScalarBlockLayout, "scalarBlockLayout"}}},
	{"VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
		vkStructureTypePhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR,
		0, "VK_KHR_workgroup_memory_explicit_layout", "",
		[]featureFlag{
			{featureWorkgroupLayout, "workgroupMemoryExplicitLayout"},
			{featureWorkgroupLayoutScalar, "workgroupMemoryExplicitLayoutScalarBlockLayout"},
			{featureWorkgroupLayout8, "workgroupMemoryExplicitLayout8BitAccess"},
			{featureWorkgroupLayout16, "workgroupMemoryExplicitLayout16BitAccess"},
		}},
	{"VkPhysicalDeviceSubgroupSizeControlFeatures", vkStructureTypePhysicalDeviceSubgroupSizeControlFeatures,
		1<<22 | 3<<12, "VK_EXT_subgroup_size_control", "",
		[]featureFlag{
			{featureSubgroupSizeControl, "subgroupSizeControl"}, {featureFullSubgroups, "computeFullSubgroups"},
		}},
	{"VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures",
		vkStructureTypePhysicalDeviceShaderSubgroupExtendedTypesFeatures,
		1<<22 | 2<<12, "VK_KHR_shader_subgroup_extended_types", "",
		[]featureFlag{{featureSubgroupExtendedTypes, "shaderSubgroupExtendedTypes"}}},
	{"VkPhysicalDeviceTimelineSemaphoreFeatures", vkStructureTypePhysicalDeviceTimelineSemaphoreFeatures,
		1<<22 | 2<<12, "VK_KHR_timeline_semaphore", "",
		[]featureFlag{{featureTimelineSemaphore, "timelineSemaphore"}}},
	{"VkPhysicalDeviceBufferDeviceAddressFeatures", vkStructureTypePhysicalDeviceBufferDeviceAddressFeatures,
		1<<22 | 2<<12, "VK_KHR_buffer_device_address", "",
		[]featureFlag{{featureBufferDeviceAddress, "bufferDeviceAddress"}, unused, unused}},
	{"VkPhysicalDeviceVulkanMemoryModelFeatures", vkStructureTypePhysicalDeviceVulkanMemoryModelFeatures,
		1<<22 | 2<<12, "VK_KHR_vulkan_memory_model", "",
		[]featureFlag{
			{featureVulkanMemoryModel, "vulkanMemoryModel"},
			{featureMemoryModelDeviceScope, "vulkanMemoryModelDeviceScope"}, unused,
		}},
	{"VkPhysicalDeviceSynchronization2Features", vkStructureTypePhysicalDeviceSynchronization2Features,
		1<<22 | 3<<12, "VK_KHR_synchronization2", "",
		[]featureFlag{{featureSync2, "synchronization2"}}},
	{"VkPhysicalDeviceMaintenance4Features", vkStructureTypePhysicalDeviceMaintenance4Features,
		1<<22 | 3<<12, "VK_KHR_maintenance4", "",
		[]featureFlag{{featureMaintenance4, "maintenance4"}}},
	{"VkPhysicalDeviceHostQueryResetFeatures", vkStructureTypePhysicalDeviceHostQueryResetFeatures,
		1<<22 | 2<<12, "VK_EXT_host_query_reset", "",
		[]featureFlag{{featureHostQueryReset, "hostQueryReset"}}},
	{"VkPhysicalDeviceRobustness2FeaturesEXT", vkStructureTypePhysicalDeviceRobustness2FeaturesEXT,
		0, "VK_KHR_robustness2", "VK_EXT_robustness2",
		[]featureFlag{{featureRobustness2, "robustBufferAccess2"}, unused, unused}},
	{"VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
		vkStructureTypePhysicalDevicePipelineExecutablePropertiesFeaturesKHR,
		0, "VK_KHR_pipeline_executable_properties", "",
		[]featureFlag{{featurePipelineExecutable, "pipelineExecutableInfo"}}},
	{"VkPhysicalDevicePipelineRobustnessFeatures", vkStructureTypePhysicalDevicePipelineRobustnessFeatures,
		1<<22 | 4<<12, "VK_EXT_pipeline_robustness", "",
		[]featureFlag{{featurePipelineRobustness, "pipelineRobustness"}}},
	{"VkPhysicalDeviceCooperativeMatrixFeaturesKHR", vkStructureTypePhysicalDeviceCooperativeMatrixFeaturesKHR,
		0, "VK_KHR_cooperative_matrix", "",
		[]featureFlag{{featureCoopmat, "cooperativeMatrix"}, unused}},
	{"VkPhysicalDeviceCooperativeMatrix2FeaturesNV", vkStructureTypePhysicalDeviceCooperativeMatrix2FeaturesNV,
		0, "VK_NV_cooperative_matrix2", "",
		[]featureFlag{
			{featureCm2WorkgroupScope, "cooperativeMatrixWorkgroupScope"},
			{featureCm2FlexibleDimensions, "cooperativeMatrixFlexibleDimensions"},
			{featureCm2Reductions, "cooperativeMatrixReductions"},
			{featureCm2Conversions, "cooperativeMatrixConversions"},
			{featureCm2PerElement, "cooperativeMatrixPerElementOperations"},
			{featureCm2TensorAddressing, "cooperativeMatrixTensorAddressing"},
			{featureCm2BlockLoads, "cooperativeMatrixBlockLoads"},
		}},
}

// Features of VkPhysicalDeviceFeatures.
var coreFeatures = [...]struct {
	featureFlag
	of func(*vkPhysicalDeviceFeatures) *uint32
}{
	{featureFlag{featureRobustBufferAccess, "robustBufferAccess"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.robustBufferAccess }},
	{featureFlag{featureInt64, "shaderInt64"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.shaderInt64 }},
	{featureFlag{featureInt16, "shaderInt16"}, func(f *vkPhysicalDeviceFeatures) *uint32 { return &f.shaderInt16 }},
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
	c := &featureChain{core: vkPhysicalDeviceFeatures2{vkHead: head(vkStructureTypePhysicalDeviceFeatures2)}}
	for _, f := range coreFeatures {
		*f.of(&c.core.features) = bool32(features>>f.bit&1 != 0)
	}
	for i := range featureRows {
		row := &featureRows[i]
		if !row.wanted(features) {
			continue
		}
		c.rows[i].vkHead = head(row.structure)
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
