#include "host.h"

/* Recording. The barrier orders everything a compute queue does with buffers. */

enum {
	WORK_STAGES = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
	WORK_READS = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT,
	WORK_WRITES = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
};

void vka_cmd_dispatch(vka_device *d, VkCommandBuffer c, uint64_t pipeline, uint64_t layout, uint64_t set,
	const uint8_t *push, uint32_t push_bytes, uint32_t x, uint32_t y, uint32_t z)
{
	d->CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
	if (set)
		d->CmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
	if (push_bytes)
		d->CmdPushConstants(c, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, push);
	d->CmdDispatch(c, x, y, z);
}

/* The specification names no stage for launches of cubins: with `all` the barriers cover every stage. */
void vka_cmd_barrier(vka_device *d, VkCommandBuffer c, int all)
{
	VkMemoryBarrier b = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
		.srcAccessMask = WORK_WRITES,
		.dstAccessMask = WORK_READS | WORK_WRITES,
	};
	if (all) {
		b.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
		b.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
	}
	VkFlags stages = all ? VK_PIPELINE_STAGE_ALL_COMMANDS_BIT : WORK_STAGES;
	d->CmdPipelineBarrier(c, stages, stages, 0, 1, &b, 0, NULL, 0, NULL);
}

/* Makes results visible to the host through mapped memory. */
void vka_cmd_host_barrier(vka_device *d, VkCommandBuffer c, int all)
{
	VkMemoryBarrier b = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
		.srcAccessMask = all ? VK_ACCESS_MEMORY_WRITE_BIT : WORK_WRITES,
		.dstAccessMask = VK_ACCESS_HOST_READ_BIT,
	};
	d->CmdPipelineBarrier(c, all ? VK_PIPELINE_STAGE_ALL_COMMANDS_BIT : WORK_STAGES, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &b, 0, NULL, 0, NULL);
}

void vka_cmd_copy(vka_device *d, VkCommandBuffer c, uint64_t src, uint64_t src_offset, uint64_t dst, uint64_t dst_offset, uint64_t size)
{
	VkBufferCopy region = {.srcOffset = src_offset, .dstOffset = dst_offset, .size = size};
	d->CmdCopyBuffer(c, src, dst, 1, &region);
}

void vka_cmd_fill(vka_device *d, VkCommandBuffer c, uint64_t buffer, uint64_t offset, uint64_t size, uint32_t word)
{
	d->CmdFillBuffer(c, buffer, offset, size, word);
}

void vka_cmd_label(vka_device *d, VkCommandBuffer c, const char *name)
{
	VkDebugUtilsLabelEXT label = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT, .pLabelName = name};
	d->CmdBeginDebugUtilsLabelEXT(c, &label);
}

void vka_cmd_label_end(vka_device *d, VkCommandBuffer c)
{
	d->CmdEndDebugUtilsLabelEXT(c);
}

/* Command buffers: one of its own pool each, so that a batch is reset whole. */

VkResult vka_create_commands(vka_device *d, uint32_t family, uint64_t *pool, VkCommandBuffer *commands)
{
	VkCommandPoolCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
		.flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
		.queueFamilyIndex = family,
	};
	VkResult r = d->CreateCommandPool(d->handle, &info, NULL, pool);
	if (r != VK_SUCCESS)
		return r;
	VkCommandBufferAllocateInfo one = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
		.commandPool = *pool,
		.commandBufferCount = 1,
	};
	r = d->AllocateCommandBuffers(d->handle, &one, commands);
	if (r != VK_SUCCESS)
		d->DestroyCommandPool(d->handle, *pool, NULL);
	return r;
}

void vka_destroy_commands(vka_device *d, uint64_t pool)
{
	d->DestroyCommandPool(d->handle, pool, NULL);
}

/* With `once` the commands are submitted once, otherwise any number of times, one after the other. */
VkResult vka_begin(vka_device *d, uint64_t pool, VkCommandBuffer c, int once)
{
	VkResult r = d->ResetCommandPool(d->handle, pool, 0);
	if (r != VK_SUCCESS)
		return r;
	VkCommandBufferBeginInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
		.flags = once ? VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT : 0,
	};
	return d->BeginCommandBuffer(c, &info);
}

VkResult vka_end(vka_device *d, VkCommandBuffer c)
{
	return d->EndCommandBuffer(c);
}

/* Descriptor sets of storage buffers. */

VkResult vka_create_descriptor_pool(vka_device *d, uint32_t sets, uint32_t buffers, uint64_t *pool)
{
	VkDescriptorPoolSize size = {.type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .descriptorCount = buffers};
	VkDescriptorPoolCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
		.maxSets = sets,
		.poolSizeCount = 1,
		.pPoolSizes = &size,
	};
	return d->CreateDescriptorPool(d->handle, &info, NULL, pool);
}

void vka_destroy_descriptor_pool(vka_device *d, uint64_t pool)
{
	d->DestroyDescriptorPool(d->handle, pool, NULL);
}

VkResult vka_reset_descriptor_pool(vka_device *d, uint64_t pool)
{
	return d->ResetDescriptorPool(d->handle, pool, 0);
}

VkResult vka_descriptor_set(vka_device *d, uint64_t pool, uint64_t set_layout, uint32_t count,
	const uint64_t *buffers, const uint64_t *offsets, const uint64_t *ranges, uint64_t *set)
{
	VkDescriptorSetAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
		.descriptorPool = pool,
		.descriptorSetCount = 1,
		.pSetLayouts = &set_layout,
	};
	VkResult r = d->AllocateDescriptorSets(d->handle, &info, set);
	if (r != VK_SUCCESS)
		return r;
	VkDescriptorBufferInfo list[VKA_MAX_BINDINGS];
	VkWriteDescriptorSet writes[VKA_MAX_BINDINGS];
	for (uint32_t i = 0; i < count; i++) {
		list[i] = (VkDescriptorBufferInfo){.buffer = buffers[i], .offset = offsets[i], .range = ranges[i]};
		writes[i] = (VkWriteDescriptorSet){
			.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
			.dstSet = *set,
			.dstBinding = i,
			.descriptorCount = 1,
			.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
			.pBufferInfo = &list[i],
		};
	}
	d->UpdateDescriptorSets(d->handle, count, writes, 0, NULL);
	return VK_SUCCESS;
}

/* Timestamps. */

VkResult vka_create_queries(vka_device *d, uint32_t count, uint64_t *pool)
{
	VkQueryPoolCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
		.queryType = VK_QUERY_TYPE_TIMESTAMP,
		.queryCount = count,
	};
	return d->CreateQueryPool(d->handle, &info, NULL, pool);
}

void vka_destroy_queries(vka_device *d, uint64_t pool)
{
	d->DestroyQueryPool(d->handle, pool, NULL);
}

void vka_cmd_reset_queries(vka_device *d, VkCommandBuffer c, uint64_t pool, uint32_t count)
{
	d->CmdResetQueryPool(c, pool, 0, count);
}

void vka_cmd_timestamp(vka_device *d, VkCommandBuffer c, uint64_t pool, uint32_t index)
{
	d->CmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool, index);
}

VkResult vka_query_results(vka_device *d, uint64_t pool, uint32_t count, uint64_t *ticks)
{
	return d->GetQueryPoolResults(d->handle, pool, 0, count, 8 * (size_t)count, ticks, 8, VK_QUERY_RESULT_64_BIT);
}
