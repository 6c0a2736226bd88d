// Calls of Vulkan about pipelines, their layouts, caches and statistics.

package vk

import (
	"encoding/binary"
	"math"
	"unsafe"

	"vkattn/internal/ccall"
)

// Flags of hostCreatePipeline.
const (
	pipelineFullSubgroups = 1
	pipelineNoRobustness  = 2
	pipelineStatistics    = 4
)

// hostCreateLayouts makes the layout of one set of storage buffers, 0 without any, and that of the pipeline.
func hostCreateLayouts(d *hostDevice, bindings, pushBytes uint32, sets, layout *uint64) Result {
	*sets = 0
	info := headed(vkPipelineLayoutCreateInfo{})
	if bindings > 0 {
		list := make([]vkDescriptorSetLayoutBinding, bindings)
		for i := range list {
			list[i] = vkDescriptorSetLayoutBinding{
				binding:         uint32(i),
				descriptorType:  vkDescriptorTypeStorageBuffer,
				descriptorCount: 1,
				stageFlags:      vkShaderStageComputeBit,
			}
		}
		set := headed(vkDescriptorSetLayoutCreateInfo{bindingCount: bindings, pBindings: &list[0]})
		r := call(d.CreateDescriptorSetLayout, d.arg(), uintptr(unsafe.Pointer(set)), 0, uintptr(unsafe.Pointer(sets)))
		if r != ResultSuccess {
			return r
		}
		info.setLayoutCount, info.pSetLayouts = 1, sets
	}
	if pushBytes > 0 {
		info.pushConstantRangeCount = 1
		info.pPushConstantRanges = &vkPushConstantRange{stageFlags: vkShaderStageComputeBit, size: pushBytes}
	}
	r := call(d.CreatePipelineLayout, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(layout)))
	if r != ResultSuccess && *sets != 0 {
		call(d.DestroyDescriptorSetLayout, d.arg(), uintptr(*sets), 0)
	}
	return r
}

func hostDestroyLayouts(d *hostDevice, sets, layout uint64) {
	call(d.DestroyPipelineLayout, d.arg(), uintptr(layout), 0)
	if sets != 0 {
		call(d.DestroyDescriptorSetLayout, d.arg(), uintptr(sets), 0)
	}
}

// hostCreatePipeline compiles a pipeline. ids and values are the specialization constants; subgroup is the size of
// subgroups, or 0.
func hostCreatePipeline(d *hostDevice, cache, layout uint64, code []byte, ids, values []uint32, subgroup, flags uint32, pipeline *uint64) Result {
	*pipeline = 0
	// The code is copied: Go promises no alignment for a byte slice.
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(code[4*i:])
	}
	shader := headed(vkShaderModuleCreateInfo{codeSize: uint64(len(code)), pCode: unsafe.SliceData(words)})
	info := headed(vkComputePipelineCreateInfo{
		stage:             *headed(vkPipelineShaderStageCreateInfo{stage: vkShaderStageComputeBit, pName: cstring("main")}),
		layout:            layout,
		basePipelineIndex: -1,
	})
	stage := &info.stage
	r := call(d.CreateShaderModule, d.arg(), uintptr(unsafe.Pointer(shader)), 0, uintptr(unsafe.Pointer(&stage.module)))
	if r != ResultSuccess {
		return r
	}
	if len(ids) > 0 {
		entries := make([]vkSpecializationMapEntry, len(ids))
		for i, id := range ids {
			entries[i] = vkSpecializationMapEntry{constantID: id, offset: uint32(4 * i), size: 4}
		}
		stage.pSpecializationInfo = &vkSpecializationInfo{
			mapEntryCount: uint32(len(ids)),
			pMapEntries:   &entries[0],
			dataSize:      uint64(4 * len(ids)),
			pData:         unsafe.Pointer(&values[0]),
		}
	}
	if subgroup != 0 {
		stage.chain(&headed(vkPipelineShaderStageRequiredSubgroupSizeCreateInfo{requiredSubgroupSize: subgroup}).vkHead)
	}
	if flags&pipelineFullSubgroups != 0 {
		stage.flags = vkPipelineShaderStageCreateRequireFullSubgroupsBit
	}
	if flags&pipelineStatistics != 0 {
		info.flags = vkPipelineCreateCaptureStatisticsBitKHR
	}
	if flags&pipelineNoRobustness != 0 {
		info.chain(&headed(vkPipelineRobustnessCreateInfo{
			storageBuffers: vkPipelineRobustnessBufferBehaviorDisabled,
			uniformBuffers: vkPipelineRobustnessBufferBehaviorDisabled,
		}).vkHead)
	}
	r = call(d.CreateComputePipelines, d.arg(), uintptr(cache), 1, uintptr(unsafe.Pointer(info)), 0,
		uintptr(unsafe.Pointer(pipeline)))
	call(d.DestroyShaderModule, d.arg(), uintptr(stage.module), 0)
	return r
}

func hostCreateCache(d *hostDevice, data []byte, cache *uint64) Result {
	info := headed(vkPipelineCacheCreateInfo{initialDataSize: uint64(len(data))})
	if len(data) > 0 {
		info.pInitialData = unsafe.Pointer(&data[0])
	}
	return call(d.CreatePipelineCache, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(cache)))
}

// hostCacheData returns the data of a pipeline cache, nil if there are none. If a pipeline is compiled in
// between, Vulkan returns VK_INCOMPLETE and a valid cache without it.
func hostCacheData(d *hostDevice, cache uint64) []byte {
	var n uint64
	r := call(d.GetPipelineCacheData, d.arg(), uintptr(cache), uintptr(unsafe.Pointer(&n)), 0)
	if r != ResultSuccess || n == 0 {
		return nil
	}
	data := make([]byte, n)
	r = call(d.GetPipelineCacheData, d.arg(), uintptr(cache), uintptr(unsafe.Pointer(&n)),
		uintptr(unsafe.Pointer(&data[0])))
	if r < 0 {
		return nil
	}
	return data[:n]
}

// hostStatistics lists the statistics of all executables of a pipeline.
func hostStatistics(d *hostDevice, pipeline uint64) ([]Statistic, Result) {
	info := headed(vkPipelineInfoKHR{pipeline: pipeline})
	executables, r := listed[vkPipelineExecutablePropertiesKHR](func(n *uint32, to unsafe.Pointer) Result {
		return call(d.GetPipelineExecutablePropertiesKHR, d.arg(), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(n)), uintptr(to))
	})
	var out []Statistic
	for i := 0; r >= 0 && i < len(executables); i++ {
		var list []Statistic
		list, r = executableStatistics(d, pipeline, uint32(i), text(executables[i].name[:]))
		out = append(out, list...)
	}
	if r < 0 {
		return nil, r
	}
	return out, ResultSuccess
}

func executableStatistics(d *hostDevice, pipeline uint64, index uint32, executable string) ([]Statistic, Result) {
	info := headed(vkPipelineExecutableInfoKHR{pipeline: pipeline, executableIndex: index})
	list, r := listed[vkPipelineExecutableStatisticKHR](func(n *uint32, to unsafe.Pointer) Result {
		return call(d.GetPipelineExecutableStatisticsKHR, d.arg(), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(n)), uintptr(to))
	})
	if r < 0 {
		return nil, r
	}
	var out []Statistic
	for i := range list {
		s := &list[i]
		var value float64
		switch s.format {
		case vkPipelineExecutableStatisticFormatBool32KHR:
			value = float64(uint32(s.value))
		case vkPipelineExecutableStatisticFormatInt64KHR:
			value = float64(int64(s.value))
		case vkPipelineExecutableStatisticFormatUint64KHR:
			value = float64(s.value)
		default:
			value = math.Float64frombits(s.value)
		}
		out = append(out, Statistic{executable, text(s.name[:]), text(s.description[:]), value})
	}
	return out, ResultSuccess
}

// Calls of VK_NVX_binary_import.

const maxParams = 64

func hostCreateCubin(d *hostDevice, cubin []byte, module *uint64) Result {
	info := headed(vkCuModuleCreateInfoNVX{
		dataSize: uint64(len(cubin)),
		pData:    unsafe.Pointer(unsafe.SliceData(cubin)),
	})
	return call(d.CreateCuModuleNVX, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(module)))
}

func hostCreateFunction(d *hostDevice, module uint64, name string, function *uint64) Result {
	info := headed(vkCuFunctionCreateInfoNVX{module: module, pName: cstring(name)})
	return call(d.CreateCuFunctionNVX, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(function)))
}

// hostCmdLaunch launches a kernel. offsets are those of each parameter in params, as the kernel declares them.
func hostCmdLaunch(d *hostDevice, r *recorder, function uint64, l *CubinLaunch, params []byte, offsets []uint32) {
	r.prepare(d)
	r.values = append(r.values[:0], params...) // the caller's may be on its stack
	for i, offset := range offsets {
		r.params[i] = unsafe.Pointer(&r.values[offset])
	}
	i := &r.launchInfo
	i.function, i.sharedMemBytes, i.paramCount = function, l.SharedBytes, uint64(len(offsets))
	i.gridDimX, i.gridDimY, i.gridDimZ = l.Grid[0], l.Grid[1], l.Grid[2]
	i.blockDimX, i.blockDimY, i.blockDimZ = l.Block[0], l.Block[1], l.Block[2]
	ccall.Run(&r.launch.Frame)
}
