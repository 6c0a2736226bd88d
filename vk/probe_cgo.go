package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import "unsafe"

// hostProbe is what the C side queries of a physical device.
type hostProbe = C.vka_probe

func (p *probe) free() {
	if p.c != nil {
		C.free(unsafe.Pointer(p.c))
		p.c = nil
	}
}

// newProbe queries a device. If a query fails, the device is unusable, and no other is.
func newProbe(in *hostInstance, handle VkPhysicalDevice, index int) *probe {
	c := (*hostProbe)(C.calloc(1, C.sizeof_vka_probe)) // cgo's calloc does not return nil
	r := Result(C.vka_probe_device(in, physical(handle), c))
	p := &probe{handle: handle, c: c, info: deviceInfo(c, index)}
	for i := range int(c.type_count) {
		p.typeFlags = append(p.typeFlags, uint32(c.type_flags[i]))
		p.typeHeap = append(p.typeHeap, uint32(c.type_heap[i]))
	}
	if r != ResultSuccess {
		p.info.fail(&Error{Op: "vkEnumerateDeviceExtensionProperties", Result: r})
	}
	return p
}

func deviceInfo(c *hostProbe, index int) DeviceInfo {
	info := DeviceInfo{
		Index: index, Name: text(c.name[:]), UUID: uuid(c.uuid), DriverUUID: uuid(c.driver_uuid),
		VendorID: uint32(c.vendor), DeviceID: uint32(c.device), Type: DeviceType(c._type),
		APIVersion: uint32(c.api), DriverVersion: uint32(c.driver_version),
		DriverName: text(c.driver_name[:]), DriverInfo: text(c.driver_info[:]),
		pipelineCacheUUID: uuid(c.cache_uuid), queueFamily: uint32(c.queue_family),
		effectiveAPI: uint32(c.effective_api),
	}
	info.Caps = Caps{
		SubgroupSize: uint32(c.subgroup_size), MinSubgroupSize: uint32(c.min_subgroup), MaxSubgroupSize: uint32(c.max_subgroup),
		SubgroupOps:   SubgroupOps(c.subgroup_ops),
		CoopMatShapes: shapes(c.shapes[:], c.shape_count),
		CoopMat2: CoopMat2{
			MaxWorkgroupInvocations: uint32(c.cm2_max_invocations),
			MaxDimension:            uint32(c.cm2_max_dimension),
			ReservedSharedBytes:     uint32(c.cm2_reserved_shared),
			Flexible:                shapes(c.flexible[:], c.flexible_count),
		},
		ShaderCores: uint32(c.cores),
		Limits: Limits{
			MaxSharedBytes: uint32(c.max_shared), MaxInvocations: uint32(c.max_invocations),
			MaxSubgroupsPerWorkgroup:        uint32(c.max_subgroups),
			MaxStorageBufferRange:           uint64(c.max_storage_range),
			MinStorageBufferOffsetAlignment: max(uint64(c.min_storage_alignment), 1),
			MaxStorageBuffers:               min(uint32(c.max_storage_buffers), maxBindings),
			MaxPushConstantBytes:            uint32(c.max_push),
			MaxAllocationBytes:              uint64(c.max_allocation), MaxBufferBytes: uint64(c.max_buffer),
			MaxAllocations:      uint32(c.max_allocations),
			NonCoherentAtomSize: uint64(c.atom_size),
			TimestampPeriodNs:   float64(c.timestamp_period), TimestampValidBits: uint32(c.timestamp_bits),
			MaxTimelineDifference: uint64(c.max_timeline_difference),
		},
	}
	for i := range 3 {
		info.Caps.Limits.MaxWorkGroupSize[i] = uint32(c.max_size[i])
		info.Caps.Limits.MaxWorkGroupCount[i] = uint32(c.max_count[i])
	}
	for i := range int(c.heap_count) {
		info.Caps.MemoryHeaps = append(info.Caps.MemoryHeaps, Heap{
			Bytes: uint64(c.heap_size[i]), DeviceLocal: c.heap_flags[i]&C.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT != 0,
			Budget: uint64(c.heap_budget[i]), Usage: uint64(c.heap_usage[i]),
		})
	}
	features := uint64(c.features)
	// A device with one size needs no pipeline to require it: NVK has 32 and
	// requiredSubgroupSizeStages 0.
	if oneSize := c.min_subgroup == c.max_subgroup; c.required_size_in_compute == 0 && !oneSize {
		features &^= 1 << featureSubgroupSizeControl
	}
	info.Caps.supported = features
	info.Caps.setBits(features)
	info.Unusable = unusable(&info)
	return info
}

func shapes(list []C.vka_shape, n C.uint32_t) []CoopMatShape {
	var out []CoopMatShape
	for _, s := range list[:n] {
		out = append(out, CoopMatShape{M: uint32(s.m), N: uint32(s.n), K: uint32(s.k),
			A: ComponentType(s.a), B: ComponentType(s.b), C: ComponentType(s.c), Result: ComponentType(s.result),
			Scope: Scope(s.scope), Saturating: s.saturating != 0, WorkgroupInvocations: uint32(s.invocations)})
	}
	return out
}

func uuid(a [16]C.uint8_t) (u [16]byte) {
	for i, c := range a {
		u[i] = byte(c)
	}
	return u
}
