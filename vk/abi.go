// The part of Vulkan's ABI that this package uses. Names, numbers and layouts are the registry's, in structures of Go;
// members that nobody reads are counted rather than named, and typ and rang stand for words that Go reserves.
// abi_test.go compares all of them with real headers. Non-dispatchable handles are uint64 (see doc.go).

package vk

import (
	"reflect"
	"strconv"
	"structs"
	"unsafe"

	"vkattn/internal/ccall"
)

// vkHead begins every structure that others can be chained to.
type vkHead struct {
	_     structs.HostLayout
	sType uint32
	pNext unsafe.Pointer
}

// headed is a structure on the heap whose head has the type of its tag, which is the registry's number.
func headed[T any](s T) *T {
	p := &s
	(*vkHead)(unsafe.Pointer(p)).sType = structureType[T]()
	return p
}

// structureType is the type of a structure that begins with a head, 0 of others.
func structureType[T any]() uint32 {
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Struct {
		return 0
	}
	f, _ := t.FieldByName("vkHead")
	n, _ := strconv.ParseUint(f.Tag.Get("type"), 10, 32)
	return uint32(n)
}

// listed is what a command lists if it takes room for n elements, and without room counts them. A list that became longer
// in between is cut.
func listed[T any](command func(n *uint32, to unsafe.Pointer) Result) ([]T, Result) {
	var n uint32
	if r := command(&n, nil); r != ResultSuccess || n == 0 {
		return nil, r
	}
	list := make([]T, n)
	if kind := structureType[T](); kind != 0 {
		for i := range list {
			(*vkHead)(unsafe.Pointer(&list[i])).sType = kind
		}
	}
	r := command(&n, unsafe.Pointer(&list[0]))
	if r == vkIncomplete {
		r = ResultSuccess
	}
	return list[:min(n, uint32(len(list)))], r
}

// chain inserts s, which begins with a head, behind h.
func (h *vkHead) chain(s *vkHead) { s.pNext, h.pNext = h.pNext, unsafe.Pointer(s) }

// call calls a command that returns a VkResult, or nothing. What an argument uintptr(unsafe.Pointer(p)) points to is on
// the heap and alive during the call, and so is what that points to: see [ccall.Call].
//
//go:uintptrescapes
func call(command uintptr, args ...uintptr) Result {
	return Result(int32(ccall.Call(command, args...)))
}

// chained is a structure with a head in the chain of another one, or alone where that is nil.
func chained[T any](to *vkHead) *T {
	var none T
	s := headed(none)
	if to != nil {
		to.chain((*vkHead)(unsafe.Pointer(s)))
	}
	return s
}

// cstring is a copy of a text for C.
func cstring(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }

// cstrings are copies of texts for C, nil without any.
func cstrings(list []string) **byte {
	var out []*byte
	for _, s := range list {
		out = append(out, cstring(s))
	}
	return unsafe.SliceData(out)
}

// text reads an array of characters of a driver.
func text(a []byte) string { return valid(gotext(a)) }

// gotext is the text up to a zero byte.
func gotext(a []byte) string {
	for i, c := range a {
		if c == 0 {
			return string(a[:i])
		}
	}
	return string(a)
}

// textAt reads a text of C, "" at a null pointer.
func textAt(p *byte) string { return ccall.String(uintptr(unsafe.Pointer(p))) }

func bool32(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Numbers of Vulkan. Their names are those of the registry without underscores.

// Results are in errors.go, except this one.
const vkIncomplete = 5

// Flag bits and small enums.
const (
	vkInstanceCreateEnumeratePortabilityBitKHR            = 1
	vkQueueComputeBit                                     = 2
	vkMemoryPropertyDeviceLocalBit                        = 1
	vkMemoryPropertyHostVisibleBit                        = 2
	vkMemoryPropertyHostCoherentBit                       = 4
	vkMemoryPropertyHostCachedBit                         = 8
	vkMemoryHeapDeviceLocalBit                            = 1
	vkMemoryAllocateDeviceAddressBit                      = 2
	vkBufferUsageTransferSrcBit                           = 1
	vkBufferUsageTransferDstBit                           = 2
	vkBufferUsageStorageBufferBit                         = 0x20
	vkBufferUsageShaderDeviceAddressBit                   = 0x20000
	vkExternalMemoryHandleTypeOpaqueFdBit                 = 1
	vkExternalMemoryFeatureDedicatedOnlyBit               = 1
	vkExternalMemoryFeatureExportableBit                  = 2
	vkExternalMemoryFeatureImportableBit                  = 4
	vkExternalSemaphoreHandleTypeOpaqueFdBit              = 1
	vkExternalSemaphoreFeatureExportableBit               = 1
	vkExternalSemaphoreFeatureImportableBit               = 2
	vkSemaphoreTypeTimeline                               = 1
	vkShaderStageComputeBit                               = 0x20
	vkDescriptorTypeStorageBuffer                         = 7
	vkPipelineBindPointCompute                            = 1
	vkPipelineCreateCaptureStatisticsBitKHR               = 0x40
	vkPipelineShaderStageCreateRequireFullSubgroupsBit    = 2
	vkPipelineRobustnessBufferBehaviorDisabled            = 1
	vkPipelineExecutableStatisticFormatBool32KHR          = 0
	vkPipelineExecutableStatisticFormatInt64KHR           = 1
	vkPipelineExecutableStatisticFormatUint64KHR          = 2
	vkPipelineExecutableStatisticFormatFloat64KHR         = 3
	vkCommandPoolCreateTransientBit                       = 1
	vkCommandBufferUsageOneTimeSubmitBit                  = 1
	vkPipelineStageComputeShaderBit                       = 0x800
	vkPipelineStageTransferBit                            = 0x1000
	vkPipelineStageBottomOfPipeBit                        = 0x2000
	vkPipelineStageHostBit                                = 0x4000
	vkPipelineStageAllCommandsBit                         = 0x10000
	vkAccessShaderReadBit                                 = 0x20
	vkAccessShaderWriteBit                                = 0x40
	vkAccessTransferReadBit                               = 0x800
	vkAccessTransferWriteBit                              = 0x1000
	vkAccessHostReadBit                                   = 0x2000
	vkAccessMemoryReadBit                                 = 0x8000
	vkAccessMemoryWriteBit                                = 0x10000
	vkQueryTypeTimestamp                                  = 2
	vkQueryResult64Bit                                    = 1
	vkObjectTypeSemaphore                                 = 5
	vkObjectTypeBuffer                                    = 9
	vkObjectTypePipeline                                  = 19
	vkDebugUtilsMessageSeverityWarningBitEXT              = 0x100
	vkDebugUtilsMessageSeverityErrorBitEXT                = 0x1000
	vkDebugUtilsMessageTypeValidationBitEXT               = 2
	vkDebugUtilsMessageTypePerformanceBitEXT              = 4
	vkValidationFeatureEnableGpuAssistedEXT               = 0
	vkValidationFeatureEnableSynchronizationValidationEXT = 4
	vkTimeDomainDeviceKHR                                 = 0
	vkTimeDomainClockMonotonicKHR                         = 1
	vkTimeDomainQueryPerformanceCounterKHR                = 3
)
