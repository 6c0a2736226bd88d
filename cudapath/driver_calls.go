package cudapath

import (
	"bytes"
	"strings"
	"time"
	"unsafe"

	"vkattn/internal/ccall"
	"vkattn/internal/pause"
)

// Numbers and structures of the driver, as cuda.h has them. testdata/driver.h has them in C.
const (
	cudaSuccess  = 0
	cudaNotReady = 600

	// CUdevice_attribute
	attributeMaxThreads          = 1
	attributeMultiprocessors     = 16
	attributeMajor               = 75
	attributeMinor               = 76
	attributeMaxShared           = 97
	attributeVirtualMemory       = 102
	attributePosixFileDescriptor = 103

	// CUfunction_attribute
	functionSharedBytes      = 1
	functionMaxDynamicShared = 8

	// CUjit_option
	jitErrorLog      = 5
	jitErrorLogBytes = 6

	streamNonBlocking   = 1
	eventDefault        = 0
	opaqueFD            = 1
	dedicatedMemory     = 1
	timelineFD          = 9
	pinnedAllocation    = 1
	posixFD             = 1
	locationDevice      = 1
	accessReadWrite     = 3
	granularityOfChoice = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	attributeEarly      = 6 // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
)

// externalMemory is CUDA_EXTERNAL_MEMORY_HANDLE_DESC.
type externalMemory struct {
	kind     int32
	_        int32
	fd       int32
	_        [12]byte
	size     uint64
	flags    uint32
	reserved [16]uint32
}

// externalBuffer is CUDA_EXTERNAL_MEMORY_BUFFER_DESC.
type externalBuffer struct {
	offset, size uint64
	flags        uint32
	reserved     [16]uint32
}

// externalSemaphore is CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC.
type externalSemaphore struct {
	_        [0]uint64 // its alignment
	kind     int32
	_        int32
	fd       int32
	_        [12]byte
	flags    uint32
	reserved [16]uint32
}

// semaphoreWords is the size of CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS and of ..._WAIT_PARAMS, whose first word is the
// value.
const semaphoreWords = 18

// memoryLocation is CUmemLocation.
type memoryLocation struct{ kind, id int32 }

// allocationKind is CUmemAllocationProp.
type allocationKind struct {
	kind, handles int32
	location      memoryLocation
	win32         uintptr
	flags         [8]byte
}

// memoryAccess is CUmemAccessDesc.
type memoryAccess struct {
	location memoryLocation
	flags    int32
}

// start initializes the driver and returns its version and the number of devices.
func (a *driver) start() (version, devices int32, code int32) {
	if code = int32(ccall.Call(a.cuInit, 0)); code != cudaSuccess {
		return 0, 0, code
	}
	code = first(int32(ccall.Call(a.cuDriverGetVersion, uintptr(unsafe.Pointer(&version)))),
		int32(ccall.Call(a.cuDeviceGetCount, uintptr(unsafe.Pointer(&devices)))))
	return version, devices, code
}

// errorName is the name of a result, "" if the driver has none.
func (a *driver) errorName(code int32) string {
	var name uintptr
	if int32(ccall.Call(a.cuGetErrorName, uintptr(code), uintptr(unsafe.Pointer(&name)))) != cudaSuccess {
		return ""
	}
	return ccall.String(name)
}

// device describes a device, except for the version of the driver.
func (a *driver) device(ordinal int) (DeviceInfo, int32) {
	var handle, major, minor, sms, shared, threads, virtual, fd int32
	var name [256]byte
	d := DeviceInfo{Ordinal: ordinal}
	r := int32(ccall.Call(a.cuDeviceGet, uintptr(unsafe.Pointer(&handle)), uintptr(ordinal)))
	if r != cudaSuccess {
		return d, r
	}
	of := uintptr(handle)
	if r = first(int32(ccall.Call(a.cuDeviceGetName, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), of)),
		int32(ccall.Call(a.cuDeviceGetUuid, uintptr(unsafe.Pointer(&d.UUID)), of)),
		int32(ccall.Call(a.cuDeviceTotalMem_v2, uintptr(unsafe.Pointer(&d.Memory)), of))); r != cudaSuccess {
		return d, r
	}
	for _, x := range []struct {
		attribute uintptr
		to        *int32
	}{{attributeMajor, &major}, {attributeMinor, &minor}, {attributeMultiprocessors, &sms}, {attributeMaxShared, &shared},
		{attributeMaxThreads, &threads}, {attributeVirtualMemory, &virtual}, {attributePosixFileDescriptor, &fd}} {
		if r = int32(ccall.Call(a.cuDeviceGetAttribute, uintptr(unsafe.Pointer(x.to)), x.attribute, of)); r != cudaSuccess {
			return d, r
		}
	}
	text, _, _ := bytes.Cut(name[:], []byte{0})
	d.Name = strings.ToValidUTF8(string(text), "\uFFFD")
	d.Major, d.Minor, d.SMs, d.MaxShared, d.MaxThreads = int(major), int(minor), int(sms), int(shared), int(threads)
	d.Shares, d.device = virtual != 0 && fd != 0, int(handle)
	return d, cudaSuccess
}

func (a *driver) retainContext(device int32, context *uint64) int32 {
	return int32(ccall.Call(a.cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(context)), uintptr(device)))
}

// capturing reports whether a stream is being captured into a graph.
func (a *driver) capturing(context, stream uint64) (on bool, code int32) {
	t := turns.Get().(*turn)
	defer turns.Put(t)
	t.words[0] = 0
	code = a.run(t, context, a.cuStreamIsCapturing, uintptr(stream), address(&t.words[0]))
	return *(*int32)(unsafe.Pointer(&t.words[0])) != 0, code
}

// poll asks until the stream is done, an error, or the time is over (cudaNotReady).
func (a *driver) poll(context, stream uint64, atMost time.Duration) int32 {
	t := turns.Get().(*turn)
	defer turns.Put(t)
	var loop pause.Loop
	for start := time.Now(); ; loop.Wait() {
		r := a.run(t, context, a.cuStreamQuery, uintptr(stream))
		if r != cudaNotReady || time.Since(start) >= atMost {
			return r
		}
	}
}

// loadModule loads a cubin, or PTX that ends in a NUL. log is what the compiler says of an error.
func (a *driver) loadModule(context uint64, image []byte) (log string, module uint64, code int32) {
	j := new(struct {
		options [2]int32
		values  [2]uintptr
		log     [4 << 10]byte
	})
	j.options, j.values = [2]int32{jitErrorLog, jitErrorLogBytes}, [2]uintptr{address(&j.log), uintptr(len(j.log))}
	code = a.in(context, a.cuModuleLoadDataEx, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&image[0])),
		uintptr(len(j.options)), uintptr(unsafe.Pointer(&j.options)), uintptr(unsafe.Pointer(&j.values)))
	if code != cudaSuccess {
		text, _, _ := bytes.Cut(j.log[:], []byte{0})
		log = string(text)
	}
	return log, module, code
}

// function finds a function and lets it have so much dynamic shared memory. blocks is how many of its blocks a
// multiprocessor holds, fixed its static shared memory.
func (a *driver) function(context, module uint64, name string, threads, shared int, handle *uint64, fixed, blocks *int32) int32 {
	text := append([]byte(name), 0)
	if r := a.in(context, a.cuModuleGetFunction, uintptr(unsafe.Pointer(handle)), uintptr(module), uintptr(unsafe.Pointer(&text[0]))); r != cudaSuccess {
		return r
	}
	f := uintptr(*handle)
	if r := a.in(context, a.cuFuncGetAttribute, uintptr(unsafe.Pointer(fixed)), functionSharedBytes, f); r != cudaSuccess {
		return r
	}
	if shared > 0 {
		if r := a.in(context, a.cuFuncSetAttribute, f, functionMaxDynamicShared, uintptr(shared)); r != cudaSuccess {
			return r
		}
	}
	return a.in(context, a.cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(blocks)), f, uintptr(threads), uintptr(shared))
}

// importMemory imports memory of a file descriptor, which is the driver's as soon as memory is not 0. op names the
// function that failed.
func (a *driver) importMemory(context uint64, fd int, size uint64, dedicated bool, memory, at *uint64) (op string, code int32) {
	handle := &externalMemory{kind: opaqueFD, fd: int32(fd), size: size}
	if dedicated {
		handle.flags = dedicatedMemory
	}
	*memory, *at = 0, 0
	op = "cuImportExternalMemory"
	if code = a.in(context, a.cuImportExternalMemory, uintptr(unsafe.Pointer(memory)), uintptr(unsafe.Pointer(handle))); code != cudaSuccess {
		return op, code
	}
	all := &externalBuffer{size: size}
	return "cuExternalMemoryGetMappedBuffer", a.in(context, a.cuExternalMemoryGetMappedBuffer, uintptr(unsafe.Pointer(at)),
		uintptr(*memory), uintptr(unsafe.Pointer(all)))
}

func (a *driver) dropMemory(context, memory, at uint64) {
	if at != 0 {
		a.in(context, a.cuMemFree_v2, uintptr(at))
	}
	a.in(context, a.cuDestroyExternalMemory, uintptr(memory))
}

// atValue signals a semaphore with a value, or waits for it.
func (a *driver) atValue(fn uintptr, context, stream, semaphore, value uint64) int32 {
	t := turns.Get().(*turn)
	defer turns.Put(t)
	params := t.words[1 : 1+semaphoreWords]
	clear(params)
	t.words[0], params[0] = semaphore, value
	return a.run(t, context, fn, address(&t.words[0]), address(&params[0]), 1, uintptr(stream))
}

// alloc makes memory that can be exported, and maps it; rounded is what it takes. op names the function that failed.
func (a *driver) alloc(context uint64, device int32, size uint64, rounded, memory, at *uint64) (op string, code int32) {
	kind := &allocationKind{kind: pinnedAllocation, handles: posixFD, location: memoryLocation{locationDevice, device}}
	var granularity uint64
	if code = a.in(context, a.cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&granularity)), uintptr(unsafe.Pointer(kind)),
		granularityOfChoice); code != cudaSuccess {
		return "cuMemGetAllocationGranularity", code
	}
	*rounded = (size + granularity - 1) / granularity * granularity
	if code = a.in(context, a.cuMemCreate, uintptr(unsafe.Pointer(memory)), uintptr(*rounded), uintptr(unsafe.Pointer(kind)), 0); code != cudaSuccess {
		return "cuMemCreate", code
	}
	if op, code = a.mapMemory(context, device, *memory, *rounded, at); code != cudaSuccess {
		a.in(context, a.cuMemRelease, uintptr(*memory))
	}
	return op, code
}

func (a *driver) mapMemory(context uint64, device int32, memory, size uint64, at *uint64) (op string, code int32) {
	access := &memoryAccess{memoryLocation{locationDevice, device}, accessReadWrite}
	if code = a.in(context, a.cuMemAddressReserve, uintptr(unsafe.Pointer(at)), uintptr(size), 0, 0, 0); code != cudaSuccess {
		return "cuMemAddressReserve", code
	}
	op = "cuMemMap"
	mapped := false
	if code = a.in(context, a.cuMemMap, uintptr(*at), uintptr(size), 0, uintptr(memory), 0); code == cudaSuccess {
		op, mapped = "cuMemSetAccess", true
		code = a.in(context, a.cuMemSetAccess, uintptr(*at), uintptr(size), uintptr(unsafe.Pointer(access)), 1)
	}
	if code != cudaSuccess {
		a.unmapMemory(context, *at, size, mapped)
	}
	return op, code
}

func (a *driver) unmapMemory(context, at, size uint64, mapped bool) {
	if mapped {
		a.in(context, a.cuMemUnmap, uintptr(at), uintptr(size))
	}
	a.in(context, a.cuMemAddressFree, uintptr(at), uintptr(size))
}

// free gives memory of alloc back.
func (a *driver) free(context, memory, at, rounded uint64) {
	a.unmapMemory(context, at, rounded, true)
	a.in(context, a.cuMemRelease, uintptr(memory))
}

// freePlain waits for all work of the context first.
func (a *driver) freePlain(context, at uint64) {
	if a.in(context, a.cuCtxSynchronize) == cudaSuccess {
		a.in(context, a.cuMemFree_v2, uintptr(at))
	}
}

// copyOut waits: memory that is not pinned may only be there when the driver says so.
func (a *driver) copyOut(context, stream uint64, to []byte, from uint64) int32 {
	r := a.in(context, a.cuMemcpyDtoHAsync_v2, uintptr(unsafe.Pointer(&to[0])), uintptr(from), uintptr(len(to)), uintptr(stream))
	if r == cudaSuccess {
		r = a.in(context, a.cuStreamSynchronize, uintptr(stream))
	}
	return r
}
