package vk

// #include "host.h"
import "C"

// featureBits maps each feature bit of the C side to its field in Caps, for probing,
// enabling and the caller's claims in Wrap.
var featureBits = []struct {
	bit   uint
	field func(*Caps) *bool
}{
	{C.VKA_FLOAT16, func(c *Caps) *bool { return &c.Float16 }},
	{C.VKA_INT8, func(c *Caps) *bool { return &c.Int8 }},
	{C.VKA_INT16, func(c *Caps) *bool { return &c.Int16 }},
	{C.VKA_INT64, func(c *Caps) *bool { return &c.Int64 }},
	{C.VKA_STORAGE16, func(c *Caps) *bool { return &c.Storage16 }},
	{C.VKA_UNIFORM_STORAGE16, func(c *Caps) *bool { return &c.UniformStorage16 }},
	{C.VKA_STORAGE8, func(c *Caps) *bool { return &c.Storage8 }},
	{C.VKA_BFLOAT16, func(c *Caps) *bool { return &c.BFloat16 }},
	{C.VKA_BFLOAT16_DOT, func(c *Caps) *bool { return &c.BFloat16Dot }},
	{C.VKA_BFLOAT16_COOPMAT, func(c *Caps) *bool { return &c.BFloat16CoopMat }},
	{C.VKA_SCALAR_BLOCK_LAYOUT, func(c *Caps) *bool { return &c.ScalarBlockLayout }},
	{C.VKA_WORKGROUP_LAYOUT, func(c *Caps) *bool { return &c.WorkgroupLayout }},
	{C.VKA_WORKGROUP_LAYOUT_SCALAR, func(c *Caps) *bool { return &c.WorkgroupLayoutScalar }},
	{C.VKA_WORKGROUP_LAYOUT_8, func(c *Caps) *bool { return &c.WorkgroupLayout8 }},
	{C.VKA_WORKGROUP_LAYOUT_16, func(c *Caps) *bool { return &c.WorkgroupLayout16 }},
	{C.VKA_SUBGROUP_SIZE_CONTROL, func(c *Caps) *bool { return &c.SubgroupSizeControl }},
	{C.VKA_FULL_SUBGROUPS, func(c *Caps) *bool { return &c.FullSubgroups }},
	{C.VKA_SUBGROUP_EXTENDED_TYPES, func(c *Caps) *bool { return &c.SubgroupExtendedTypes }},
	{C.VKA_TIMELINE_SEMAPHORE, func(c *Caps) *bool { return &c.TimelineSemaphore }},
	{C.VKA_BUFFER_DEVICE_ADDRESS, func(c *Caps) *bool { return &c.BufferDeviceAddress }},
	{C.VKA_VULKAN_MEMORY_MODEL, func(c *Caps) *bool { return &c.VulkanMemoryModel }},
	{C.VKA_MEMORY_MODEL_DEVICE_SCOPE, func(c *Caps) *bool { return &c.MemoryModelDeviceScope }},
	{C.VKA_SYNC2, func(c *Caps) *bool { return &c.Sync2 }},
	{C.VKA_MAINTENANCE4, func(c *Caps) *bool { return &c.Maintenance4 }},
	{C.VKA_HOST_QUERY_RESET, func(c *Caps) *bool { return &c.HostQueryReset }},
	{C.VKA_ROBUST_BUFFER_ACCESS, func(c *Caps) *bool { return &c.RobustBufferAccess }},
	{C.VKA_ROBUSTNESS2, func(c *Caps) *bool { return &c.Robustness2 }},
	{C.VKA_PIPELINE_EXECUTABLE, func(c *Caps) *bool { return &c.PipelineExecutable }},
	{C.VKA_PIPELINE_ROBUSTNESS, func(c *Caps) *bool { return &c.PipelineRobustness }},
	{C.VKA_COOPMAT, func(c *Caps) *bool { return &c.CoopMat }},
	{C.VKA_CM2_WORKGROUP_SCOPE, func(c *Caps) *bool { return &c.CoopMat2.WorkgroupScope }},
	{C.VKA_CM2_FLEXIBLE_DIMENSIONS, func(c *Caps) *bool { return &c.CoopMat2.FlexibleDimensions }},
	{C.VKA_CM2_REDUCTIONS, func(c *Caps) *bool { return &c.CoopMat2.Reductions }},
	{C.VKA_CM2_CONVERSIONS, func(c *Caps) *bool { return &c.CoopMat2.Conversions }},
	{C.VKA_CM2_PER_ELEMENT, func(c *Caps) *bool { return &c.CoopMat2.PerElement }},
	{C.VKA_CM2_TENSOR_ADDRESSING, func(c *Caps) *bool { return &c.CoopMat2.TensorAddressing }},
	{C.VKA_CM2_BLOCK_LOADS, func(c *Caps) *bool { return &c.CoopMat2.BlockLoads }},
	{C.VKA_EXTERNAL_MEMORY_FD, func(c *Caps) *bool { return &c.ExternalMemoryFd }},
	{C.VKA_EXTERNAL_MEMORY_DEDICATED, func(c *Caps) *bool { return &c.ExternalMemoryDedicated }},
	{C.VKA_EXTERNAL_SEMAPHORE_FD, func(c *Caps) *bool { return &c.ExternalSemaphoreFd }},
	{C.VKA_CALIBRATED_TIMESTAMPS, func(c *Caps) *bool { return &c.CalibratedTimestamps }},
	{C.VKA_MEMORY_BUDGET, func(c *Caps) *bool { return &c.MemoryBudget }},
	{C.VKA_BINARY_IMPORT, func(c *Caps) *bool { return &c.BinaryImport }},
	{C.VKA_DEBUG_UTILS, func(c *Caps) *bool { return &c.DebugUtils }},
}

func (c *Caps) bits() (b uint64) {
	for _, f := range featureBits {
		if *f.field(c) {
			b |= 1 << f.bit
		}
	}
	return b
}

// setBits sets the booleans from the bits of b and clears what depends on a false one.
func (c *Caps) setBits(b uint64) {
	for _, f := range featureBits {
		*f.field(c) = b>>f.bit&1 != 0
	}
	if !c.CoopMat {
		c.CoopMatShapes = nil
	}
	if !c.CoopMat2.FlexibleDimensions {
		c.CoopMat2.Flexible = nil
	}
	if !c.SubgroupSizeControl {
		c.MinSubgroupSize, c.MaxSubgroupSize = c.SubgroupSize, c.SubgroupSize
	}
}
