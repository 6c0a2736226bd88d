// Calls of Vulkan that record commands, and those about command buffers, descriptors and queries.

package vk

import (
	"unsafe"

	"vkattn/internal/ccall"
)

const maxBindings = 32

// A barrier orders everything that a compute queue does with buffers.
const (
	workStages = vkPipelineStageComputeShaderBit | vkPipelineStageTransferBit
	workReads  = vkAccessShaderReadBit | vkAccessTransferReadBit
	workWrites = vkAccessShaderWriteBit | vkAccessTransferWriteBit
)

// recorder is a command buffer with the frames of the calls that record into it. They are on the heap with all that
// they point to, so recording allocates nothing, and several calls are one change to the system stack.
type recorder struct {
	commands VkCommandBuffer

	pipeline struct {
		ccall.Frame
		commands        VkCommandBuffer
		point, pipeline uint64
	}
	sets struct {
		ccall.Frame
		commands                    VkCommandBuffer
		point, layout, first, count uint64
		sets                        *uint64
		offsets                     uint64
		offset                      *uint32
	}
	push struct {
		ccall.Frame
		commands                     VkCommandBuffer
		layout, stages, offset, size uint64
		values                       *byte
	}
	groups struct {
		ccall.Frame
		commands VkCommandBuffer
		x, y, z  uint64
	}
	barrier struct {
		ccall.Frame
		commands        VkCommandBuffer
		from, to, flags uint64
		memory          uint64
		barriers        *vkMemoryBarrier
		buffers         uint64
		bufferBarriers  *byte
		images          uint64
		imageBarriers   *byte
	}
	launch struct {
		ccall.Frame
		commands VkCommandBuffer
		info     *vkCuLaunchInfoNVX
	}
	allocate struct {
		ccall.Frame
		device VkDevice
		info   *vkDescriptorSetAllocateInfo
		set    *uint64
	}
	update struct {
		ccall.Frame
		device VkDevice
		count  uint64
		writes *vkWriteDescriptorSet
		copies uint64
		copied *byte
	}

	other struct {
		ccall.Frame
		args [8]uintptr
	}

	set           uint64 // bound by sets, written by allocate
	layout        uint64 // of the set to allocate
	values        []byte // of push, and parameters of launch
	params        [maxParams]unsafe.Pointer
	launchInfo    vkCuLaunchInfoNVX
	memoryBarrier vkMemoryBarrier
	region        vkBufferCopy
	begin         vkCommandBufferBeginInfo
	ticks         [queryCount]uint64
	allocateInfo  vkDescriptorSetAllocateInfo
	writes        *[maxBindings]vkWriteDescriptorSet
	buffers       *[maxBindings]vkDescriptorBufferInfo
}

// prepare fills in what is the same in all calls.
func (r *recorder) prepare(d *hostDevice) {
	if r.pipeline.Fn != 0 {
		return
	}
	frame := func(f *ccall.Frame, fn, bytes uintptr) { f.Fn, f.Args = fn, ccall.Size(bytes) }
	frame(&r.pipeline.Frame, d.CmdBindPipeline, unsafe.Sizeof(r.pipeline))
	frame(&r.sets.Frame, d.CmdBindDescriptorSets, unsafe.Sizeof(r.sets))
	frame(&r.push.Frame, d.CmdPushConstants, unsafe.Sizeof(r.push))
	frame(&r.groups.Frame, d.CmdDispatch, unsafe.Sizeof(r.groups))
	frame(&r.barrier.Frame, d.CmdPipelineBarrier, unsafe.Sizeof(r.barrier))
	frame(&r.launch.Frame, d.CmdCuLaunchKernelNVX, unsafe.Sizeof(r.launch))
	frame(&r.allocate.Frame, d.AllocateDescriptorSets, unsafe.Sizeof(r.allocate))
	frame(&r.update.Frame, d.UpdateDescriptorSets, unsafe.Sizeof(r.update))
	for _, c := range []*VkCommandBuffer{&r.pipeline.commands, &r.sets.commands, &r.push.commands,
		&r.groups.commands, &r.barrier.commands, &r.launch.commands} {
		*c = r.commands
	}
	r.pipeline.point, r.sets.point = vkPipelineBindPointCompute, vkPipelineBindPointCompute
	r.sets.count, r.sets.sets = 1, &r.set
	r.push.stages = vkShaderStageComputeBit
	r.barrier.memory, r.barrier.barriers = 1, &r.memoryBarrier
	r.memoryBarrier, r.begin = *headed(vkMemoryBarrier{}), *headed(vkCommandBufferBeginInfo{})
	r.launch.info, r.launchInfo = &r.launchInfo, *headed(vkCuLaunchInfoNVX{pParams: &r.params[0]})
	r.allocate.device, r.update.device = d.device, d.device
	r.allocate.info, r.allocate.set = &r.allocateInfo, &r.set
	r.allocateInfo = *headed(vkDescriptorSetAllocateInfo{descriptorSetCount: 1, pSetLayouts: &r.layout})
}

// call makes a call that has no frame of its own. What pointers among the arguments point to is part of the recorder.
func (r *recorder) call(command uintptr, args ...uintptr) Result {
	r.other.Fn, r.other.Args = command, copy(r.other.args[:], args)
	ccall.Run(&r.other.Frame)
	return Result(int32(r.other.Result))
}

// hostDescriptorSet makes a set of storage buffers, which the next dispatch uses.
func hostDescriptorSet(d *hostDevice, r *recorder, pool, layout uint64, n uint32, buffers, offsets, ranges *[maxBindings]uint64) Result {
	r.prepare(d)
	if r.writes == nil {
		r.writes, r.buffers = new([maxBindings]vkWriteDescriptorSet), new([maxBindings]vkDescriptorBufferInfo)
		r.update.writes = &r.writes[0]
		for i := range r.writes {
			r.writes[i] = *headed(vkWriteDescriptorSet{
				dstBinding:      uint32(i),
				descriptorCount: 1,
				descriptorType:  vkDescriptorTypeStorageBuffer,
				pBufferInfo:     &r.buffers[i],
			})
		}
	}
	r.allocateInfo.descriptorPool, r.layout = pool, layout
	ccall.Run(&r.allocate.Frame)
	if result := Result(int32(r.allocate.Result)); result != ResultSuccess {
		return result
	}
	for i := range n {
		r.writes[i].dstSet = r.set
		r.buffers[i] = vkDescriptorBufferInfo{buffer: buffers[i], offset: offsets[i], rang: ranges[i]}
	}
	r.update.count = uint64(n)
	ccall.Run(&r.update.Frame)
	return ResultSuccess
}

// hostCmdDispatch dispatches, with the set of hostDescriptorSet if there is to be one.
func hostCmdDispatch(d *hostDevice, r *recorder, pipeline, layout uint64, set bool, push []byte, groups *[3]uint32) {
	r.prepare(d)
	r.pipeline.pipeline = pipeline
	last := &r.pipeline.Frame
	if set {
		r.sets.layout = layout
		last.Next, last = &r.sets.Frame, &r.sets.Frame
	}
	if len(push) > 0 {
		r.values = append(r.values[:0], push...) // the caller's may be on its stack
		r.push.layout, r.push.size, r.push.values = layout, uint64(len(push)), &r.values[0]
		last.Next, last = &r.push.Frame, &r.push.Frame
	}
	last.Next = &r.groups.Frame
	r.groups.x, r.groups.y, r.groups.z = uint64(groups[0]), uint64(groups[1]), uint64(groups[2])
	ccall.Run(&r.pipeline.Frame)
}

// hostCmdBarrier orders commands: with all, all of them, otherwise those of compute and transfer stages. The
// specification names no stage for launches of cubins.
func hostCmdBarrier(d *hostDevice, r *recorder, all bool) {
	if all {
		r.order(d, vkPipelineStageAllCommandsBit, vkPipelineStageAllCommandsBit, vkAccessMemoryWriteBit,
			vkAccessMemoryReadBit|vkAccessMemoryWriteBit)
	} else {
		r.order(d, workStages, workStages, workWrites, workReads|workWrites)
	}
}

// hostCmdHostBarrier makes results visible to the host through mapped memory.
func hostCmdHostBarrier(d *hostDevice, r *recorder, all bool) {
	if all {
		r.order(d, vkPipelineStageAllCommandsBit, vkPipelineStageHostBit, vkAccessMemoryWriteBit, vkAccessHostReadBit)
	} else {
		r.order(d, workStages, vkPipelineStageHostBit, workWrites, vkAccessHostReadBit)
	}
}

func (r *recorder) order(d *hostDevice, from, to uint64, writes, reads uint32) {
	r.prepare(d)
	r.barrier.from, r.barrier.to = from, to
	r.memoryBarrier.srcAccessMask, r.memoryBarrier.dstAccessMask = writes, reads
	ccall.Run(&r.barrier.Frame)
}

func hostCmdCopy(d *hostDevice, r *recorder, src, srcOffset, dst, dstOffset, size uint64) {
	r.region = vkBufferCopy{srcOffset: srcOffset, dstOffset: dstOffset, size: size}
	r.call(d.CmdCopyBuffer, uintptr(r.commands), uintptr(src), uintptr(dst), 1, uintptr(unsafe.Pointer(&r.region)))
}

func hostCmdFill(d *hostDevice, r *recorder, buffer, offset, size uint64, word uint32) {
	r.call(d.CmdFillBuffer, uintptr(r.commands), uintptr(buffer), uintptr(offset), uintptr(size), uintptr(word))
}

func hostCmdLabel(d *hostDevice, r *recorder, name string) {
	label := headed(vkDebugUtilsLabelEXT{pLabelName: cstring(name)})
	call(d.CmdBeginDebugUtilsLabelEXT, uintptr(r.commands), uintptr(unsafe.Pointer(label)))
}

func hostCmdLabelEnd(d *hostDevice, r *recorder) {
	call(d.CmdEndDebugUtilsLabelEXT, uintptr(r.commands))
}

// Command buffers: one of its own pool each, so that a batch is reset whole.

func hostCreateCommands(d *hostDevice, family uint32, pool *uint64, commands *VkCommandBuffer) Result {
	info := headed(vkCommandPoolCreateInfo{flags: vkCommandPoolCreateTransientBit, queueFamilyIndex: family})
	r := call(d.CreateCommandPool, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(pool)))
	if r != ResultSuccess {
		return r
	}
	one := headed(vkCommandBufferAllocateInfo{commandPool: *pool, commandBufferCount: 1})
	r = call(d.AllocateCommandBuffers, d.arg(), uintptr(unsafe.Pointer(one)), uintptr(unsafe.Pointer(commands)))
	if r != ResultSuccess {
		d.destroy(d.DestroyCommandPool, *pool)
	}
	return r
}

// hostBegin begins commands that are submitted once, or any number of times, one after the other.
func hostBegin(d *hostDevice, pool uint64, r *recorder, once bool) Result {
	if result := r.call(d.ResetCommandPool, d.arg(), uintptr(pool), 0); result != ResultSuccess {
		return result
	}
	r.prepare(d)
	if r.begin.flags = 0; once {
		r.begin.flags = vkCommandBufferUsageOneTimeSubmitBit
	}
	return r.call(d.BeginCommandBuffer, uintptr(r.commands), uintptr(unsafe.Pointer(&r.begin)))
}

func hostEnd(d *hostDevice, r *recorder) Result {
	return r.call(d.EndCommandBuffer, uintptr(r.commands))
}

// Pools of descriptor sets of storage buffers.

func hostCreateDescriptorPool(d *hostDevice, sets, buffers uint32, pool *uint64) Result {
	info := headed(vkDescriptorPoolCreateInfo{
		maxSets:       sets,
		poolSizeCount: 1,
		pPoolSizes:    &vkDescriptorPoolSize{typ: vkDescriptorTypeStorageBuffer, descriptorCount: buffers},
	})
	return call(d.CreateDescriptorPool, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(pool)))
}

func hostResetDescriptorPool(d *hostDevice, r *recorder, pool uint64) Result {
	return r.call(d.ResetDescriptorPool, d.arg(), uintptr(pool), 0)
}

// Timestamps.

func hostCreateQueries(d *hostDevice, count uint32, pool *uint64) Result {
	info := headed(vkQueryPoolCreateInfo{queryType: vkQueryTypeTimestamp, queryCount: count})
	return call(d.CreateQueryPool, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(pool)))
}

func hostCmdResetQueries(d *hostDevice, r *recorder, pool uint64, count uint32) {
	r.call(d.CmdResetQueryPool, uintptr(r.commands), uintptr(pool), 0, uintptr(count))
}

func hostCmdTimestamp(d *hostDevice, r *recorder, pool uint64, index uint32) {
	r.call(d.CmdWriteTimestamp, uintptr(r.commands), vkPipelineStageBottomOfPipeBit, uintptr(pool), uintptr(index))
}

// hostQueryResults returns n timestamps, which stay in the recorder until the next call.
func hostQueryResults(d *hostDevice, r *recorder, pool uint64, n int) ([]uint64, Result) {
	result := r.call(d.GetQueryPoolResults, d.arg(), uintptr(pool), 0, uintptr(n), uintptr(8*n),
		uintptr(unsafe.Pointer(&r.ticks)), 8, vkQueryResult64Bit)
	return r.ticks[:n], result
}
