// Structures of Vulkan about pipelines, descriptors and command buffers.

package vk

import (
	"structs"
	"unsafe"
)

// Pipelines and descriptors.

type vkShaderModuleCreateInfo struct {
	_        structs.HostLayout
	vkHead   `type:"16"`
	flags    uint32
	codeSize uint64
	pCode    *uint32
}

type vkSpecializationMapEntry struct {
	_          structs.HostLayout
	constantID uint32
	offset     uint32
	size       uint64
}

type vkSpecializationInfo struct {
	_             structs.HostLayout
	mapEntryCount uint32
	pMapEntries   *vkSpecializationMapEntry
	dataSize      uint64
	pData         unsafe.Pointer
}

type vkPipelineShaderStageCreateInfo struct {
	_                   structs.HostLayout
	vkHead              `type:"18"`
	flags               uint32
	stage               uint32
	module              uint64
	pName               *byte
	pSpecializationInfo *vkSpecializationInfo
}

type vkPipelineShaderStageRequiredSubgroupSizeCreateInfo struct {
	_                    structs.HostLayout
	vkHead               `type:"1000225001"`
	requiredSubgroupSize uint32
}

type vkPipelineRobustnessCreateInfo struct {
	_              structs.HostLayout
	vkHead         `type:"1000068000"`
	storageBuffers uint32
	uniformBuffers uint32
	vertexInputs   uint32
	images         uint32
}

type vkComputePipelineCreateInfo struct {
	_                  structs.HostLayout
	vkHead             `type:"29"`
	flags              uint32
	stage              vkPipelineShaderStageCreateInfo
	layout             uint64
	basePipelineHandle uint64
	basePipelineIndex  int32
}

type vkPipelineCacheCreateInfo struct {
	_               structs.HostLayout
	vkHead          `type:"17"`
	flags           uint32
	initialDataSize uint64
	pInitialData    unsafe.Pointer
}

type vkPushConstantRange struct {
	_          structs.HostLayout
	stageFlags uint32
	offset     uint32
	size       uint32
}

type vkPipelineLayoutCreateInfo struct {
	_                      structs.HostLayout
	vkHead                 `type:"30"`
	flags                  uint32
	setLayoutCount         uint32
	pSetLayouts            *uint64
	pushConstantRangeCount uint32
	pPushConstantRanges    *vkPushConstantRange
}

type vkDescriptorSetLayoutBinding struct {
	_                  structs.HostLayout
	binding            uint32
	descriptorType     uint32
	descriptorCount    uint32
	stageFlags         uint32
	pImmutableSamplers *uint64
}

type vkDescriptorSetLayoutCreateInfo struct {
	_            structs.HostLayout
	vkHead       `type:"32"`
	flags        uint32
	bindingCount uint32
	pBindings    *vkDescriptorSetLayoutBinding
}

type vkDescriptorPoolSize struct {
	_               structs.HostLayout
	typ             uint32
	descriptorCount uint32
}

type vkDescriptorPoolCreateInfo struct {
	_             structs.HostLayout
	vkHead        `type:"33"`
	flags         uint32
	maxSets       uint32
	poolSizeCount uint32
	pPoolSizes    *vkDescriptorPoolSize
}

type vkDescriptorSetAllocateInfo struct {
	_                  structs.HostLayout
	vkHead             `type:"34"`
	descriptorPool     uint64
	descriptorSetCount uint32
	pSetLayouts        *uint64
}

type vkDescriptorBufferInfo struct {
	_      structs.HostLayout
	buffer uint64
	offset uint64
	rang   uint64
}

type vkWriteDescriptorSet struct {
	_                structs.HostLayout
	vkHead           `type:"35"`
	dstSet           uint64
	dstBinding       uint32
	dstArrayElement  uint32
	descriptorCount  uint32
	descriptorType   uint32
	pImageInfo       unsafe.Pointer
	pBufferInfo      *vkDescriptorBufferInfo
	pTexelBufferView *uint64
}

type vkPipelineInfoKHR struct {
	_        structs.HostLayout
	vkHead   `type:"1000269001"`
	pipeline uint64
}

type vkPipelineExecutablePropertiesKHR struct {
	_            structs.HostLayout
	vkHead       `type:"1000269002"`
	stages       uint32
	name         [256]byte
	description  [256]byte
	subgroupSize uint32
}

type vkPipelineExecutableInfoKHR struct {
	_               structs.HostLayout
	vkHead          `type:"1000269003"`
	pipeline        uint64
	executableIndex uint32
}

type vkPipelineExecutableStatisticKHR struct {
	_           structs.HostLayout
	vkHead      `type:"1000269004"`
	name        [256]byte
	description [256]byte
	format      uint32
	value       uint64
}

// Command buffers and queries.

type vkCommandPoolCreateInfo struct {
	_                structs.HostLayout
	vkHead           `type:"39"`
	flags            uint32
	queueFamilyIndex uint32
}

type vkCommandBufferAllocateInfo struct {
	_                  structs.HostLayout
	vkHead             `type:"40"`
	commandPool        uint64
	level              uint32
	commandBufferCount uint32
}

type vkCommandBufferBeginInfo struct {
	_                structs.HostLayout
	vkHead           `type:"42"`
	flags            uint32
	pInheritanceInfo unsafe.Pointer
}

type vkMemoryBarrier struct {
	_             structs.HostLayout
	vkHead        `type:"46"`
	srcAccessMask uint32
	dstAccessMask uint32
}

type vkQueryPoolCreateInfo struct {
	_                  structs.HostLayout
	vkHead             `type:"11"`
	flags              uint32
	queryType          uint32
	queryCount         uint32
	pipelineStatistics uint32
}

type vkCalibratedTimestampInfoKHR struct {
	_          structs.HostLayout
	vkHead     `type:"1000184000"`
	timeDomain uint32
}

// Structures of VK_NVX_binary_import.

type vkCuModuleCreateInfoNVX struct {
	_        structs.HostLayout
	vkHead   `type:"1000029000"`
	dataSize uint64
	pData    unsafe.Pointer
}

type vkCuFunctionCreateInfoNVX struct {
	_      structs.HostLayout
	vkHead `type:"1000029001"`
	module uint64
	pName  *byte
}

type vkCuLaunchInfoNVX struct {
	_              structs.HostLayout
	vkHead         `type:"1000029002"`
	function       uint64
	gridDimX       uint32
	gridDimY       uint32
	gridDimZ       uint32
	blockDimX      uint32
	blockDimY      uint32
	blockDimZ      uint32
	sharedMemBytes uint32
	paramCount     uint64
	pParams        *unsafe.Pointer
	extraCount     uint64
	pExtras        *unsafe.Pointer
}
