package vk

/*
#cgo CFLAGS: -O2 -Wall
#cgo !windows LDFLAGS: -ldl -lpthread
#include "host.h"
#include <stdlib.h>

// The recording path and what follows it: the arguments do not outlive the call,
// so a caller's push constants may live on its stack.
#cgo noescape vka_cmd_dispatch
#cgo nocallback vka_cmd_dispatch
#cgo noescape vka_cmd_launch
#cgo nocallback vka_cmd_launch
#cgo noescape vka_descriptor_set
#cgo nocallback vka_descriptor_set
#cgo noescape vka_timeline_value
#cgo nocallback vka_timeline_value
#cgo noescape vka_submit
#cgo nocallback vka_submit
#cgo noescape vka_query_results
#cgo nocallback vka_query_results
*/
import "C"

import (
	"bytes"
	"strings"
	"unsafe"
)

// This file has the calls of the C side, host.h, in the types of Go. host_nocgo.go has the same functions
// for builds without cgo.

const (
	hasVulkan = true
	noVulkan  = "" // why not
)

type (
	hostInstance = C.vka_instance
	hostDevice   = C.vka_device
	hostMessages = C.vka_messages
)

// The numbers of handles.go and errors.go are those of C: these do not compile otherwise.
var _ = [1]struct{}{}[maxBindings-C.VKA_MAX_BINDINGS|maxParams-C.VKA_MAX_PARAMS|maxSubmitSemaphores-C.VKA_MAX_SUBMIT_SEMAPHORES|
	bufferExternal-C.VKA_BUFFER_EXTERNAL|memoryMap-C.VKA_MEMORY_MAP|memoryExport-C.VKA_MEMORY_EXPORT|
	pipelineFullSubgroups-C.VKA_PIPELINE_FULL_SUBGROUPS|pipelineNoRobustness-C.VKA_PIPELINE_NO_ROBUSTNESS|
	pipelineStatistics-C.VKA_PIPELINE_STATISTICS|
	instanceDebug-C.VKA_INSTANCE_DEBUG|instanceValidation-C.VKA_INSTANCE_VALIDATION|instanceSync-C.VKA_INSTANCE_SYNC|
	instanceGPUAssisted-C.VKA_INSTANCE_GPU_ASSISTED]
var _ = [1]struct{}{}[objectSemaphore-C.VK_OBJECT_TYPE_SEMAPHORE|objectBuffer-C.VK_OBJECT_TYPE_BUFFER|
	objectPipeline-C.VK_OBJECT_TYPE_PIPELINE|
	memoryDeviceLocal-C.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT|memoryHostVisible-C.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT|
	memoryHostCoherent-C.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT|memoryHostCached-C.VK_MEMORY_PROPERTY_HOST_CACHED_BIT|
	ResultSuccess-C.VK_SUCCESS|ResultTimeout-C.VK_TIMEOUT|ResultIncompatibleDriver-C.VK_ERROR_INCOMPATIBLE_DRIVER|
	featureCount-C.VKA_FEATURE_COUNT|featureSubgroupSizeControl-C.VKA_SUBGROUP_SIZE_CONTROL]

// u64 and u32 convert pointers to Go numbers for C functions.
func u64(p *uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(p)) }
func u32(p *uint32) *C.uint32_t { return (*C.uint32_t)(unsafe.Pointer(p)) }

// first64, first32 and firstByte are the addresses of a slice's first element. Their C types have no
// pointers in them, so cgo has nothing to check in what surrounds it.
func first64(s []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func first32(s []uint32) *C.uint32_t { return (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func firstByte(s []byte) *C.uint8_t  { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(s))) }

// commands converts a handle, which is a pointer in C.
func commands(b VkCommandBuffer) C.VkCommandBuffer { return *(*C.VkCommandBuffer)(unsafe.Pointer(&b)) }

func physical(d VkPhysicalDevice) C.VkPhysicalDevice {
	return *(*C.VkPhysicalDevice)(unsafe.Pointer(&d))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// text reads a C character array of a driver.
func text(a []C.char) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&a[0])), len(a))
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return valid(string(b))
}

// taken reads a text that C has allocated, and frees it.
func taken(s *C.char) string {
	defer C.free(unsafe.Pointer(s))
	return C.GoString(s)
}

// The loader.

func hostLoaderVersion(get unsafe.Pointer) uint32 { return uint32(C.vka_loader_version(get)) }

// Messages of the validation layers.

func hostMessagesNew() *hostMessages   { return C.vka_messages_new() }
func hostMessagesFree(m *hostMessages) { C.vka_messages_free(m) }
func hostMessagesUnread(m *hostMessages) *uint32 {
	return (*uint32)(unsafe.Pointer(C.vka_messages_unread(m)))
}
func hostMessagesTake(m *hostMessages) (Message, bool) {
	var severity C.uint32_t
	var number C.int32_t
	var id, body *C.char
	if C.vka_messages_take(m, &severity, &number, &id, &body) == 0 {
		return Message{}, false
	}
	return Message{Severity(severity), valid(taken(id)), int32(number), valid(taken(body))}, true
}

// Instances and devices.

func missingOf(m *C.vka_missing) (list []missingFunction) {
	for i := range int(m.count) {
		list = append(list, missingFunction{C.GoString(m.function[i]), C.GoString(m.field[i])})
	}
	return list
}

func hostCreateInstance(get unsafe.Pointer, api, flags uint32, m *hostMessages) (*hostInstance, []missingFunction, Result) {
	var in *hostInstance
	var missing C.vka_missing
	r := C.vka_create_instance(get, C.uint32_t(api), C.uint32_t(flags), m, &missing, &in)
	return in, missingOf(&missing), Result(r)
}

func hostWrapInstance(get unsafe.Pointer, handle VkInstance, api uint32, debugUtils bool) (*hostInstance, []missingFunction, Result) {
	var in *hostInstance
	var missing C.vka_missing
	r := C.vka_wrap_instance(get, *(*C.VkInstance)(unsafe.Pointer(&handle)), C.uint32_t(api), flag(debugUtils), &missing, &in)
	return in, missingOf(&missing), Result(r)
}

func hostDestroyInstance(in *hostInstance) { C.vka_destroy_instance(in) }

// aboutInstance tells whether this package made the instance, whether it has a layer or debug utilities,
// and its vkGetInstanceProcAddr.
func aboutInstance(in *hostInstance) (owned, debugs bool, get unsafe.Pointer) {
	return in.owned != 0, in.messages != nil || in.debug_utils != 0, unsafe.Pointer(in.get)
}

func instanceHandle(in *hostInstance) VkInstance { return VkInstance(unsafe.Pointer(in.handle)) }

func hostPhysicalDevices(in *hostInstance) ([]VkPhysicalDevice, Result) {
	var n C.uint32_t
	if r := C.vka_physical_devices(in, &n, nil); r < 0 || n == 0 {
		return nil, Result(r)
	}
	list := make([]VkPhysicalDevice, n)
	r := C.vka_physical_devices(in, &n, (*C.VkPhysicalDevice)(unsafe.Pointer(&list[0])))
	return list[:n], Result(r)
}

func hostTimestampBits(in *hostInstance, d VkPhysicalDevice, family uint32) (bits uint32, computes bool) {
	var compute C.int
	bits = uint32(C.vka_timestamp_bits(in, physical(d), C.uint32_t(family), &compute))
	return bits, compute != 0
}

// hostFeature describes the feature of a bit.
func hostFeature(bit int) Feature {
	c := C.vka_describe_feature(C.int(bit))
	return Feature{Name: C.GoString(c.name), Struct: C.GoString(c.structure), Extension: C.GoString(c.extension), Core: uint32(c.core)}
}

func hostNewChain(features uint64) unsafe.Pointer { return C.vka_new_chain(C.uint64_t(features)) }
func hostFreeChain(chain unsafe.Pointer)          { C.free(chain) }

func hostHeapBudget(in *hostInstance, d VkPhysicalDevice, budget, usage *[16]uint64) {
	C.vka_heap_budget(in, physical(d), u64(&budget[0]), u64(&usage[0]))
}

func hostCreateDevice(in *hostInstance, p *probe, features uint64, extensions []string) (*hostDevice, []missingFunction, Result) {
	extra := C.CString(strings.Join(extensions, "\x00") + "\x00")
	defer C.free(unsafe.Pointer(extra))
	var missing C.vka_missing
	var d *hostDevice
	r := C.vka_create_device(in, physical(p.handle), p.c, C.uint64_t(features), extra, &missing, &d)
	return d, missingOf(&missing), Result(r)
}

func hostWrapDevice(in *hostInstance, e *External, features uint64) (*hostDevice, []missingFunction, Result) {
	var missing C.vka_missing
	var d *hostDevice
	r := C.vka_wrap_device(in, physical(e.PhysicalDevice), *(*C.VkDevice)(unsafe.Pointer(&e.Device)),
		*(*C.VkQueue)(unsafe.Pointer(&e.Queue)), C.uint64_t(features), &missing, &d)
	return d, missingOf(&missing), Result(r)
}

func hostDestroyDevice(d *hostDevice)   { C.vka_destroy_device(d) }
func hostWaitIdle(d *hostDevice) Result { return Result(C.vka_wait_idle(d)) }

func handlesOf(d *hostDevice) deviceHandles {
	return deviceHandles{VkPhysicalDevice(unsafe.Pointer(d.physical)), VkDevice(unsafe.Pointer(d.handle)), VkQueue(unsafe.Pointer(d.queue))}
}

func hostSetName(d *hostDevice, kind uint32, handle uint64, name string) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.vka_set_name(d, C.uint32_t(kind), C.uint64_t(handle), s)
}

func hostCalibrate(d *hostDevice, ticks, host, deviation, before, after *uint64) Result {
	return Result(C.vka_calibrate(d, u64(ticks), u64(host), u64(deviation), u64(before), u64(after)))
}

// Memory.

func hostCreateBuffer(d *hostDevice, size uint64, flags uint32, buffer, need, alignment *uint64, types *uint32) Result {
	return Result(C.vka_create_buffer(d, C.uint64_t(size), C.uint32_t(flags), u64(buffer), u64(need), u64(alignment), u32(types)))
}

func hostDestroyBuffer(d *hostDevice, buffer uint64) { C.vka_destroy_buffer(d, C.uint64_t(buffer)) }

func hostAllocate(d *hostDevice, size uint64, kind, flags uint32, dedicated uint64, fd int, memory *uint64, mapped *unsafe.Pointer) Result {
	return Result(C.vka_allocate(d, C.uint64_t(size), C.uint32_t(kind), C.uint32_t(flags), C.uint64_t(dedicated), C.int(fd), u64(memory), mapped))
}

func hostFree(d *hostDevice, memory uint64) { C.vka_free(d, C.uint64_t(memory)) }

func hostBindBuffer(d *hostDevice, buffer, memory, offset uint64, address *uint64) Result {
	return Result(C.vka_bind_buffer(d, C.uint64_t(buffer), C.uint64_t(memory), C.uint64_t(offset), u64(address)))
}

func hostExportMemory(d *hostDevice, memory uint64, fd *int32) Result {
	return Result(C.vka_export_memory(d, C.uint64_t(memory), (*C.int)(fd)))
}

// Semaphores and submissions.

func hostCreateTimeline(d *hostDevice, exportable bool, semaphore *uint64) Result {
	return Result(C.vka_create_timeline(d, flag(exportable), u64(semaphore)))
}

func hostDestroySemaphore(d *hostDevice, semaphore uint64) {
	C.vka_destroy_semaphore(d, C.uint64_t(semaphore))
}

func hostTimelineValue(d *hostDevice, semaphore uint64, value *uint64) Result {
	return Result(C.vka_timeline_value(d, C.uint64_t(semaphore), u64(value)))
}

func hostTimelineWait(d *hostDevice, semaphore, value, timeoutNs uint64) Result {
	return Result(C.vka_timeline_wait(d, C.uint64_t(semaphore), C.uint64_t(value), C.uint64_t(timeoutNs)))
}

func hostTimelineSignal(d *hostDevice, semaphore, value uint64) Result {
	return Result(C.vka_timeline_signal(d, C.uint64_t(semaphore), C.uint64_t(value)))
}

func hostExportSemaphore(d *hostDevice, semaphore uint64, fd *int32) Result {
	return Result(C.vka_export_semaphore(d, C.uint64_t(semaphore), (*C.int)(fd)))
}

func hostImportSemaphore(d *hostDevice, semaphore uint64, fd int32) Result {
	return Result(C.vka_import_semaphore(d, C.uint64_t(semaphore), C.int(fd)))
}

func hostSubmit(d *hostDevice, list []VkCommandBuffer, wait, waitValues, signal, signalValues []uint64) Result {
	return Result(C.vka_submit(d, C.uint32_t(len(list)), (*C.VkCommandBuffer)(unsafe.Pointer(unsafe.SliceData(list))),
		C.uint32_t(len(wait)), first64(wait), first64(waitValues), C.uint32_t(len(signal)), first64(signal), first64(signalValues)))
}

// Pipelines.

func hostCreateLayouts(d *hostDevice, bindings, pushBytes uint32, sets, layout *uint64) Result {
	return Result(C.vka_create_layouts(d, C.uint32_t(bindings), C.uint32_t(pushBytes), u64(sets), u64(layout)))
}

func hostDestroyLayouts(d *hostDevice, sets, layout uint64) {
	C.vka_destroy_layouts(d, C.uint64_t(sets), C.uint64_t(layout))
}

func hostCreatePipeline(d *hostDevice, cache, layout uint64, code []byte, ids, values []uint32, subgroup, flags uint32, pipeline *uint64) Result {
	return Result(C.vka_create_pipeline(d, C.uint64_t(cache), C.uint64_t(layout), firstByte(code), C.size_t(len(code)),
		C.uint32_t(len(ids)), first32(ids), first32(values), C.uint32_t(subgroup), C.uint32_t(flags), u64(pipeline)))
}

func hostDestroyPipeline(d *hostDevice, pipeline uint64) {
	C.vka_destroy_pipeline(d, C.uint64_t(pipeline))
}

func hostCreateCache(d *hostDevice, data []byte, cache *uint64) Result {
	return Result(C.vka_create_cache(d, firstByte(data), C.size_t(len(data)), u64(cache)))
}

func hostDestroyCache(d *hostDevice, cache uint64) { C.vka_destroy_cache(d, C.uint64_t(cache)) }

// hostCacheData returns the data of a pipeline cache, nil if there are none. If a pipeline is compiled in
// between, Vulkan returns VK_INCOMPLETE and a valid cache without it.
func hostCacheData(d *hostDevice, cache uint64) []byte {
	var n C.size_t
	if r := C.vka_cache_data(d, C.uint64_t(cache), &n, nil); r != C.VK_SUCCESS || n == 0 {
		return nil
	}
	data := make([]byte, n)
	if r := C.vka_cache_data(d, C.uint64_t(cache), &n, firstByte(data)); r < 0 {
		return nil
	}
	return data[:n]
}

func hostStatistics(d *hostDevice, pipeline uint64) ([]Statistic, Result) {
	var n C.uint32_t
	var list *C.vka_statistic
	if r := C.vka_statistics(d, C.uint64_t(pipeline), &n, &list); r < 0 {
		return nil, Result(r)
	}
	defer C.free(unsafe.Pointer(list))
	out := make([]Statistic, 0, n)
	for _, s := range unsafe.Slice(list, int(n)) {
		out = append(out, Statistic{text(s.executable[:]), text(s.name[:]), text(s.description[:]), float64(s.value)})
	}
	return out, ResultSuccess
}

// Descriptors and commands.

func hostCreateDescriptorPool(d *hostDevice, sets, buffers uint32, pool *uint64) Result {
	return Result(C.vka_create_descriptor_pool(d, C.uint32_t(sets), C.uint32_t(buffers), u64(pool)))
}

func hostDestroyDescriptorPool(d *hostDevice, pool uint64) {
	C.vka_destroy_descriptor_pool(d, C.uint64_t(pool))
}

func hostResetDescriptorPool(d *hostDevice, pool uint64) Result {
	return Result(C.vka_reset_descriptor_pool(d, C.uint64_t(pool)))
}

func hostDescriptorSet(d *hostDevice, pool, layout uint64, n uint32, buffers, offsets, ranges, set *uint64) Result {
	return Result(C.vka_descriptor_set(d, C.uint64_t(pool), C.uint64_t(layout), C.uint32_t(n), u64(buffers), u64(offsets), u64(ranges), u64(set)))
}

func hostCreateCommands(d *hostDevice, family uint32, pool *uint64, b *VkCommandBuffer) Result {
	return Result(C.vka_create_commands(d, C.uint32_t(family), u64(pool), (*C.VkCommandBuffer)(unsafe.Pointer(b))))
}

func hostDestroyCommands(d *hostDevice, pool uint64) { C.vka_destroy_commands(d, C.uint64_t(pool)) }

func hostBegin(d *hostDevice, pool uint64, b VkCommandBuffer, once bool) Result {
	return Result(C.vka_begin(d, C.uint64_t(pool), commands(b), flag(once)))
}

func hostEnd(d *hostDevice, b VkCommandBuffer) Result { return Result(C.vka_end(d, commands(b))) }

func hostCmdDispatch(d *hostDevice, b VkCommandBuffer, pipeline, layout, set uint64, push []byte, groups *[3]uint32) {
	C.vka_cmd_dispatch(d, commands(b), C.uint64_t(pipeline), C.uint64_t(layout), C.uint64_t(set),
		firstByte(push), C.uint32_t(len(push)), C.uint32_t(groups[0]), C.uint32_t(groups[1]), C.uint32_t(groups[2]))
}

func hostCmdBarrier(d *hostDevice, b VkCommandBuffer, all bool) {
	C.vka_cmd_barrier(d, commands(b), flag(all))
}

func hostCmdHostBarrier(d *hostDevice, b VkCommandBuffer, all bool) {
	C.vka_cmd_host_barrier(d, commands(b), flag(all))
}

func hostCmdCopy(d *hostDevice, b VkCommandBuffer, src, srcOffset, dst, dstOffset, size uint64) {
	C.vka_cmd_copy(d, commands(b), C.uint64_t(src), C.uint64_t(srcOffset), C.uint64_t(dst), C.uint64_t(dstOffset), C.uint64_t(size))
}

func hostCmdFill(d *hostDevice, b VkCommandBuffer, buffer, offset, size uint64, word uint32) {
	C.vka_cmd_fill(d, commands(b), C.uint64_t(buffer), C.uint64_t(offset), C.uint64_t(size), C.uint32_t(word))
}

func hostCreateQueries(d *hostDevice, count uint32, pool *uint64) Result {
	return Result(C.vka_create_queries(d, C.uint32_t(count), u64(pool)))
}

func hostDestroyQueries(d *hostDevice, pool uint64) { C.vka_destroy_queries(d, C.uint64_t(pool)) }

func hostCmdResetQueries(d *hostDevice, b VkCommandBuffer, pool uint64, count uint32) {
	C.vka_cmd_reset_queries(d, commands(b), C.uint64_t(pool), C.uint32_t(count))
}

func hostCmdTimestamp(d *hostDevice, b VkCommandBuffer, pool uint64, index uint32) {
	C.vka_cmd_timestamp(d, commands(b), C.uint64_t(pool), C.uint32_t(index))
}

func hostQueryResults(d *hostDevice, pool uint64, count uint32, ticks *uint64) Result {
	return Result(C.vka_query_results(d, C.uint64_t(pool), C.uint32_t(count), u64(ticks)))
}

func hostCmdLabel(d *hostDevice, b VkCommandBuffer, name string) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.vka_cmd_label(d, commands(b), s)
}

func hostCmdLabelEnd(d *hostDevice, b VkCommandBuffer) { C.vka_cmd_label_end(d, commands(b)) }

// Cubins.

func hostCreateCubin(d *hostDevice, cubin []byte, module *uint64) Result {
	return Result(C.vka_create_cubin(d, firstByte(cubin), C.size_t(len(cubin)), u64(module)))
}

func hostDestroyCubin(d *hostDevice, module uint64) { C.vka_destroy_cubin(d, C.uint64_t(module)) }

func hostCreateFunction(d *hostDevice, module uint64, name string, function *uint64) Result {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return Result(C.vka_create_function(d, C.uint64_t(module), s, u64(function)))
}

func hostDestroyFunction(d *hostDevice, function uint64) {
	C.vka_destroy_function(d, C.uint64_t(function))
}

func hostCmdLaunch(d *hostDevice, b VkCommandBuffer, function uint64, l *CubinLaunch, params []byte, offsets []uint32) {
	C.vka_cmd_launch(d, commands(b), C.uint64_t(function), u32(&l.Grid[0]), u32(&l.Block[0]), C.uint32_t(l.SharedBytes),
		firstByte(params), C.uint32_t(len(offsets)), first32(offsets))
}
