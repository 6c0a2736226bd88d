// Queries about a physical device.

package vk

import "unsafe"

const maxShapes = 512 // that are read of either list of cooperative matrices

// newProbe queries a device. If a query fails, the device is unusable, and no other is.
func newProbe(in *hostInstance, handle VkPhysicalDevice, index int) *probe {
	p := &probe{handle: handle, info: DeviceInfo{Index: index}}
	if r := p.query(in); r != ResultSuccess {
		p.info.fail(&Error{Op: "vkEnumerateDeviceExtensionProperties", Result: r})
	}
	return p
}

func (p *probe) query(in *hostInstance) Result {
	info := &p.info
	var basic vkPhysicalDeviceProperties
	call(in.GetPhysicalDeviceProperties, uintptr(p.handle), uintptr(unsafe.Pointer(&basic)))
	info.Name, info.pipelineCacheUUID = text(basic.deviceName[:]), basic.pipelineCacheUUID
	info.VendorID, info.DeviceID, info.Type = basic.vendorID, basic.deviceID, DeviceType(basic.deviceType)
	info.APIVersion, info.DriverVersion = basic.apiVersion, basic.driverVersion
	info.effectiveAPI = min(basic.apiVersion, in.api)
	info.queueFamily = ^uint32(0)
	info.Caps.Limits.MinStorageBufferOffsetAlignment = 1
	result := ResultSuccess
	var features uint64
	if info.effectiveAPI >= 1<<22|1<<12 { // otherwise the queries below are not there
		var have extensions
		if have, result = in.extensionsOf(p.handle); result == ResultSuccess {
			features = p.queryAll(in, have)
		}
	}
	info.Caps.supported = features
	info.Caps.setBits(features)
	info.Unusable = unusable(info)
	return result
}

// queryAll queries a device that has these extensions and returns its features.
func (p *probe) queryAll(in *hostInstance, have extensions) uint64 {
	features := p.features(in, have)
	if in.debugUtils {
		features |= 1 << featureDebugUtils
	}
	if have.has("VK_EXT_memory_budget") {
		features |= 1 << featureMemoryBudget
	}
	if have.has("VK_NVX_binary_import") {
		features |= 1 << featureBinaryImport
	}
	features = p.properties(in, have, features)
	if features>>featureCoopmat&1 == 0 {
		for bit := featureCm2WorkgroupScope; bit <= featureCm2BlockLoads; bit++ {
			features &^= 1 << bit
		}
	}
	p.queues(in)
	p.memory(in, features)
	p.shapes(in, features)
	features = p.sharing(in, have, features)
	c := &p.info.Caps
	// A device with one size needs no pipeline to require it: NVK has 32 and requiredSubgroupSizeStages 0.
	if !p.requiresSize && c.MinSubgroupSize != c.MaxSubgroupSize {
		features &^= 1 << featureSubgroupSizeControl
	}
	return features
}

// extensionsOf lists the extensions of a device.
func (in *hostInstance) extensionsOf(d VkPhysicalDevice) (extensions, Result) {
	return listed[vkExtensionProperties](func(n *uint32, to unsafe.Pointer) Result {
		return call(in.EnumerateDeviceExtensionProperties, uintptr(d), 0, uintptr(unsafe.Pointer(n)), uintptr(to))
	})
}

// features asks for every feature structure that the device has: drivers may write past, or trip over, others.
func (p *probe) features(in *hostInstance, have extensions) (features uint64) {
	c := featureChain{core: *headed(vkPhysicalDeviceFeatures2{})}
	for i := range featureRows {
		if _, ok := featureRows[i].extensionFor(p.info.effectiveAPI, have); ok {
			c.rows[i].sType = featureRows[i].structure
			c.core.chain(&c.rows[i].vkHead)
		}
	}
	call(in.GetPhysicalDeviceFeatures2, uintptr(p.handle), uintptr(unsafe.Pointer(&c.core)))
	for _, f := range coreFeatures {
		if *f.of(&c.core.features) != 0 {
			features |= 1 << f.bit
		}
	}
	for i := range featureRows {
		for j, f := range featureRows[i].flags {
			if f.bit != noFeature && c.rows[i].flags[j] != 0 {
				features |= 1 << f.bit
			}
		}
	}
	return features
}

// properties returns the features, without cooperative matrices where kernels of compute do not have them.
func (p *probe) properties(in *hostInstance, have extensions, features uint64) uint64 {
	core := headed(vkPhysicalDeviceProperties2{})
	chain := func(minor uint32, extension string) *vkHead { // of a structure that Vulkan 1.minor or an extension has; nil: neither
		if minor != 0 && p.info.effectiveAPI >= 1<<22|minor<<12 || have.has(extension) {
			return &core.vkHead
		}
		return nil
	}
	id := chained[vkPhysicalDeviceIDProperties](chain(1, ""))
	sets := chained[vkPhysicalDeviceMaintenance3Properties](chain(1, ""))
	subgroup := chained[vkPhysicalDeviceSubgroupProperties](chain(1, ""))
	buffers := chained[vkPhysicalDeviceMaintenance4Properties](chain(3, "VK_KHR_maintenance4"))
	size := chained[vkPhysicalDeviceSubgroupSizeControlProperties](chain(3, "VK_EXT_subgroup_size_control"))
	driver := chained[vkPhysicalDeviceDriverProperties](chain(2, "VK_KHR_driver_properties"))
	timeline := chained[vkPhysicalDeviceTimelineSemaphoreProperties](chain(2, "VK_KHR_timeline_semaphore"))
	nvidia := chained[vkPhysicalDeviceShaderSMBuiltinsPropertiesNV](chain(0, "VK_NV_shader_sm_builtins"))
	amd := chained[vkPhysicalDeviceShaderCorePropertiesAMD](chain(0, "VK_AMD_shader_core_properties"))
	arm := chained[vkPhysicalDeviceShaderCoreBuiltinsPropertiesARM](chain(0, "VK_ARM_shader_core_builtins"))
	matrix := chained[vkPhysicalDeviceCooperativeMatrixPropertiesKHR](chain(0, "VK_KHR_cooperative_matrix"))
	matrix2 := chained[vkPhysicalDeviceCooperativeMatrix2PropertiesNV](chain(0, "VK_NV_cooperative_matrix2"))
	call(in.GetPhysicalDeviceProperties2, uintptr(p.handle), uintptr(unsafe.Pointer(core)))

	info, l := &p.info, &core.properties.limits
	info.UUID, info.DriverUUID = id.deviceUUID, id.driverUUID
	info.DriverName, info.DriverInfo = text(driver.driverName[:]), text(driver.driverInfo[:])
	storage := min(l.maxPerStageDescriptorStorageBuffers, l.maxDescriptorSetStorageBuffers, l.maxPerStageResources, maxBindings)
	if sets.maxPerSetDescriptors > 0 {
		storage = min(storage, sets.maxPerSetDescriptors)
	}
	c := &info.Caps
	c.Limits = Limits{
		MaxSharedBytes: l.maxComputeSharedMemorySize, MaxInvocations: l.maxComputeWorkGroupInvocations,
		MaxWorkGroupSize: l.maxComputeWorkGroupSize, MaxWorkGroupCount: l.maxComputeWorkGroupCount,
		MaxSubgroupsPerWorkgroup:        size.maxComputeWorkgroupSubgroups,
		MaxStorageBufferRange:           uint64(l.maxStorageBufferRange),
		MinStorageBufferOffsetAlignment: max(l.minStorageBufferOffsetAlignment, 1),
		MaxStorageBuffers:               storage,
		MaxPushConstantBytes:            l.maxPushConstantsSize,
		MaxAllocationBytes:              sets.maxMemoryAllocationSize, MaxBufferBytes: buffers.maxBufferSize,
		MaxAllocations:        l.maxMemoryAllocationCount,
		NonCoherentAtomSize:   l.nonCoherentAtomSize,
		TimestampPeriodNs:     float64(l.timestampPeriod),
		MaxTimelineDifference: timeline.maxTimelineSemaphoreValueDifference,
	}
	c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize = subgroup.subgroupSize, size.minSubgroupSize, size.maxSubgroupSize
	if subgroup.supportedStages&vkShaderStageComputeBit != 0 {
		c.SubgroupOps = SubgroupOps(subgroup.supportedOperations)
	}
	p.requiresSize = size.requiredSubgroupSizeStages&vkShaderStageComputeBit != 0
	switch {
	case nvidia.shaderSMCount != 0:
		c.ShaderCores = nvidia.shaderSMCount
	case amd.shaderEngineCount != 0:
		c.ShaderCores = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray
	default:
		c.ShaderCores = arm.shaderCoreCount
	}
	c.CoopMat2.MaxWorkgroupInvocations = matrix2.cooperativeMatrixWorkgroupScopeMaxWorkgroupSize
	c.CoopMat2.MaxDimension = matrix2.cooperativeMatrixFlexibleDimensionsMaxDimension
	c.CoopMat2.ReservedSharedBytes = matrix2.cooperativeMatrixWorkgroupScopeReservedSharedMemory
	if matrix.cooperativeMatrixSupportedStages&vkShaderStageComputeBit == 0 {
		features &^= 1 << featureCoopmat
	}
	return features
}

// queueFamilies asks for the count first: SwiftShader fills as many as it is given room for.
func (in *hostInstance) queueFamilies(d VkPhysicalDevice) []vkQueueFamilyProperties {
	list, _ := listed[vkQueueFamilyProperties](func(n *uint32, to unsafe.Pointer) Result {
		call(in.GetPhysicalDeviceQueueFamilyProperties, uintptr(d), uintptr(unsafe.Pointer(n)), uintptr(to))
		return ResultSuccess
	})
	return list
}

func (p *probe) queues(in *hostInstance) {
	for i, f := range in.queueFamilies(p.handle) {
		if f.queueFlags&vkQueueComputeBit != 0 && f.queueCount > 0 {
			p.info.queueFamily = uint32(i)
			p.info.Caps.Limits.TimestampValidBits = f.timestampValidBits
			return
		}
	}
}

// hostTimestampBits returns the bits of timestamps of a queue family, and whether it has compute.
func hostTimestampBits(in *hostInstance, d VkPhysicalDevice, family uint32) (bits uint32, computes bool) {
	list := in.queueFamilies(d)
	if family >= uint32(len(list)) || list[family].queueFlags&vkQueueComputeBit == 0 {
		return 0, false
	}
	return list[family].timestampValidBits, true
}

func (p *probe) memory(in *hostInstance, features uint64) {
	core := headed(vkPhysicalDeviceMemoryProperties2{})
	call(in.GetPhysicalDeviceMemoryProperties2, uintptr(p.handle), uintptr(unsafe.Pointer(core)))
	var budget, usage [16]uint64
	if features>>featureMemoryBudget&1 != 0 {
		hostHeapBudget(in, p.handle, &budget, &usage)
	}
	m := &core.memoryProperties
	for i, h := range m.memoryHeaps[:m.memoryHeapCount] {
		p.info.Caps.MemoryHeaps = append(p.info.Caps.MemoryHeaps, Heap{
			Bytes: h.size, DeviceLocal: h.flags&vkMemoryHeapDeviceLocalBit != 0, Budget: budget[i], Usage: usage[i],
		})
	}
	for _, t := range m.memoryTypes[:m.memoryTypeCount] {
		p.typeFlags, p.typeHeap = append(p.typeFlags, t.propertyFlags), append(p.typeHeap, t.heapIndex)
	}
}

func (p *probe) shapes(in *hostInstance, features uint64) {
	if features>>featureCoopmat&1 != 0 {
		for _, s := range matrices[vkCooperativeMatrixPropertiesKHR](in.GetPhysicalDeviceCooperativeMatrixPropertiesKHR, p.handle) {
			p.info.Caps.CoopMatShapes = append(p.info.Caps.CoopMatShapes, CoopMatShape{
				M: s.MSize, N: s.NSize, K: s.KSize, A: ComponentType(s.AType), B: ComponentType(s.BType),
				C: ComponentType(s.CType), Result: ComponentType(s.ResultType),
				Scope: Scope(s.scope), Saturating: s.saturatingAccumulation != 0})
		}
	}
	if features>>featureCm2FlexibleDimensions&1 != 0 {
		list := matrices[vkCooperativeMatrixFlexibleDimensionsPropertiesNV](in.GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV, p.handle)
		for _, s := range list {
			p.info.Caps.CoopMat2.Flexible = append(p.info.Caps.CoopMat2.Flexible, CoopMatShape{
				M: s.MGranularity, N: s.NGranularity, K: s.KGranularity, A: ComponentType(s.AType), B: ComponentType(s.BType),
				C: ComponentType(s.CType), Result: ComponentType(s.ResultType),
				Scope: Scope(s.scope), Saturating: s.saturatingAccumulation != 0, WorkgroupInvocations: s.workgroupInvocations})
		}
	}
}

// matrices lists structures that a command about cooperative matrices fills.
func matrices[T any](command uintptr, d VkPhysicalDevice) []T {
	if command == 0 {
		return nil
	}
	list, r := listed[T](func(n *uint32, to unsafe.Pointer) Result {
		return call(command, uintptr(d), uintptr(unsafe.Pointer(n)), uintptr(to))
	})
	if r < 0 {
		return nil
	}
	return list[:min(len(list), maxShapes)]
}

// sharing asks whether file descriptors and the clock work for this kind of object: being listed does not make them.
func (p *probe) sharing(in *hostInstance, have extensions, features uint64) uint64 {
	if have.has("VK_KHR_external_memory_fd") {
		info := headed(vkPhysicalDeviceExternalBufferInfo{
			usage:      bufferUsage,
			handleType: vkExternalMemoryHandleTypeOpaqueFdBit,
		})
		if features>>featureBufferDeviceAddress&1 != 0 {
			info.usage |= vkBufferUsageShaderDeviceAddressBit
		}
		out := headed(vkExternalBufferProperties{})
		call(in.GetPhysicalDeviceExternalBufferProperties, uintptr(p.handle), uintptr(unsafe.Pointer(info)),
			uintptr(unsafe.Pointer(out)))
		const want = vkExternalMemoryFeatureExportableBit | vkExternalMemoryFeatureImportableBit
		if got := out.externalMemoryProperties.externalMemoryFeatures; got&want == want {
			features |= 1 << featureExternalMemoryFd
			if got&vkExternalMemoryFeatureDedicatedOnlyBit != 0 {
				features |= 1 << featureExternalMemoryDedicated
			}
		}
	}
	if have.has("VK_KHR_external_semaphore_fd") && features>>featureTimelineSemaphore&1 != 0 {
		info := headed(vkPhysicalDeviceExternalSemaphoreInfo{handleType: vkExternalSemaphoreHandleTypeOpaqueFdBit})
		info.pNext = unsafe.Pointer(headed(vkSemaphoreTypeCreateInfo{semaphoreType: vkSemaphoreTypeTimeline}))
		out := headed(vkExternalSemaphoreProperties{})
		call(in.GetPhysicalDeviceExternalSemaphoreProperties, uintptr(p.handle), uintptr(unsafe.Pointer(info)),
			uintptr(unsafe.Pointer(out)))
		const want = vkExternalSemaphoreFeatureExportableBit | vkExternalSemaphoreFeatureImportableBit
		if out.externalSemaphoreFeatures&want == want {
			features |= 1 << featureExternalSemaphoreFd
		}
	}
	if in.GetPhysicalDeviceCalibrateableTimeDomains != 0 &&
		(have.has("VK_KHR_calibrated_timestamps") || have.has("VK_EXT_calibrated_timestamps")) {
		var domains [16]uint32
		n, seen := uint32(len(domains)), uint32(0)
		r := call(in.GetPhysicalDeviceCalibrateableTimeDomains, uintptr(p.handle), uintptr(unsafe.Pointer(&n)),
			uintptr(unsafe.Pointer(&domains)))
		if r >= 0 {
			for _, domain := range domains[:n] {
				seen |= 1 << domain // 0 for domains from 32 on
			}
		}
		const want = 1<<vkTimeDomainDeviceKHR | 1<<hostTimeDomain
		if seen&want == want {
			features |= 1 << featureCalibratedTimestamps
		}
	}
	return features
}
