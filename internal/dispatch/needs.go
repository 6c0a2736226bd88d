package dispatch

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Capabilities that several kernels need, by Vulkan's names.
var (
	NeedAddresses = vk.Need{Name: "bufferDeviceAddress", Have: func(c *vk.Caps) bool { return c.BufferDeviceAddress }}
	NeedInt16     = vk.Need{Name: "shaderInt16", Have: func(c *vk.Caps) bool { return c.Int16 }}
	NeedFloat16   = vk.Need{Name: "shaderFloat16", Have: func(c *vk.Caps) bool { return c.Float16 }}
)

// MatrixNeeds lists what kernels need that multiply cooperative matrices of f16 or bf16.
func MatrixNeeds(t problem.DType) []vk.Need {
	needs := []vk.Need{
		{Name: "VK_KHR_cooperative_matrix", Have: func(c *vk.Caps) bool { return c.CoopMat }},
		{Name: "vulkanMemoryModel", Have: func(c *vk.Caps) bool { return c.VulkanMemoryModel }},
		NeedFloat16,
		{Name: "subgroupSizeControl", Have: func(c *vk.Caps) bool { return c.SubgroupSizeControl }},
		{Name: "computeFullSubgroups", Have: func(c *vk.Caps) bool { return c.FullSubgroups }},
	}
	if t == problem.BF16 {
		needs[2] = vk.Need{Name: "shaderBFloat16CooperativeMatrix", Have: func(c *vk.Caps) bool { return c.BFloat16CoopMat }}
	}
	return needs
}
