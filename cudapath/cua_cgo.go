package cudapath

/*
#cgo CFLAGS: -O2 -Wall
#cgo !windows LDFLAGS: -ldl
#include "cua.h"
#include <stdlib.h>

// The functions of the steady state. They keep no argument after the call.
#cgo noescape cua_launch
#cgo nocallback cua_launch
#cgo noescape cua_launch_params
#cgo nocallback cua_launch_params
#cgo nocallback cua_signal
#cgo nocallback cua_wait
#cgo nocallback cua_event_record
#cgo nocallback cua_stream_poll
#cgo noescape cua_stream_capturing
#cgo nocallback cua_stream_capturing
*/
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// This file has the calls of the C side, cua.h, in the types of Go. cua_nocgo.go has the same functions for
// builds without cgo.

const hasCUDA = true

type cuaAPI = C.cua_api

// The layouts and numbers of call.go are those of C: these do not compile otherwise.
var (
	_ [unsafe.Sizeof(cudaCall{})]byte             = [C.sizeof_cua_call]byte{}
	_ [unsafe.Sizeof(cudaMap{})]byte              = [C.sizeof_cua_map]byte{}
	_ [unsafe.Sizeof(callParams{})]byte           = [C.sizeof_cua_params]byte{}
	_ [unsafe.Sizeof(tensorParams{})]byte         = [C.sizeof_cua_tensor]byte{}
	_ [unsafe.Offsetof(cudaCall{}.maps)]byte      = [unsafe.Offsetof(C.cua_call{}._map)]byte{}
	_ [unsafe.Offsetof(cudaCall{}.early)]byte     = [unsafe.Offsetof(C.cua_call{}.early)]byte{}
	_ [unsafe.Offsetof(cudaCall{}.params)]byte    = [unsafe.Offsetof(C.cua_call{}.params)]byte{}
	_ [unsafe.Offsetof(cudaMap{}.swizzle)]byte    = [unsafe.Offsetof(C.cua_map{}.swizzle)]byte{}
	_ [unsafe.Offsetof(callParams{}.unitLow)]byte = [unsafe.Offsetof(C.cua_params{}.unit_low)]byte{}
	_ [1]struct{}                                 = [1 + cudaSuccess - C.CUDA_SUCCESS]struct{}{}
	_ [1]struct{}                                 = [1 + cudaNotReady - C.CUDA_ERROR_NOT_READY]struct{}{}
)

func ptr(p *uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(p)) }

// failed is the function of the driver that has failed, "" if none has or C names none.
func failed(op *C.char, code C.int) string {
	if op == nil || code == C.CUDA_SUCCESS {
		return ""
	}
	return C.GoString(op)
}

// cuaBind finds the functions of the driver in its library, or says what is missing.
func cuaBind(library unsafe.Pointer) (*cuaAPI, string) {
	var why *C.char
	a := C.cua_bind(library, &why)
	if a == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, C.GoString(why)
	}
	return a, ""
}

func cuaInit(a *cuaAPI, version, devices *int32) int32 {
	return int32(C.cua_init(a, (*C.int)(version), (*C.int)(devices)))
}

// cuaErrorName is the name of a result, "" if the driver has none.
func cuaErrorName(a *cuaAPI, code int32) string {
	return failed(C.cua_error_name(a, C.int(code)), C.int(code))
}

// cuaDevice describes a device, except for the version of the driver.
func cuaDevice(a *cuaAPI, ordinal int) (DeviceInfo, int32) {
	var c C.cua_device_info
	r := C.cua_device(a, C.int(ordinal), &c)
	d := DeviceInfo{Ordinal: ordinal, Name: strings.ToValidUTF8(C.GoString(&c.name[0]), "\uFFFD"), Major: int(c.major), Minor: int(c.minor),
		SMs: int(c.sms), MaxShared: int(c.max_shared), MaxThreads: int(c.max_threads), Memory: uint64(c.memory),
		Shares: c.virtual_memory != 0 && c.posix_fd != 0, device: int(c.device)}
	for i, b := range c.uuid {
		d.UUID[i] = byte(b)
	}
	return d, int32(r)
}

func cuaRetain(a *cuaAPI, device int32, context *uint64) int32 {
	return int32(C.cua_retain(a, C.int(device), (*C.cua_handle)(context)))
}

func cuaRelease(a *cuaAPI, device int32) { C.cua_release(a, C.int(device)) }

func cuaContextDevice(a *cuaAPI, context uint64, device *int32) int32 {
	return int32(C.cua_context_device(a, C.cua_handle(context), (*C.int)(device)))
}

func cuaStreamContext(a *cuaAPI, context, stream uint64, of *uint64) int32 {
	return int32(C.cua_stream_context(a, C.cua_handle(context), C.cua_handle(stream), (*C.cua_handle)(of)))
}

func cuaStreamCapturing(a *cuaAPI, context, stream uint64, capturing *int32) int32 {
	return int32(C.cua_stream_capturing(a, C.cua_handle(context), C.cua_handle(stream), (*C.int)(capturing)))
}

func cuaStreamCreate(a *cuaAPI, context uint64, stream *uint64) int32 {
	return int32(C.cua_stream_create(a, C.cua_handle(context), (*C.cua_handle)(stream)))
}

func cuaStreamDestroy(a *cuaAPI, context, stream uint64) {
	C.cua_stream_destroy(a, C.cua_handle(context), C.cua_handle(stream))
}

func cuaStreamPoll(a *cuaAPI, context, stream, atMostNs uint64) int32 {
	return int32(C.cua_stream_poll(a, C.cua_handle(context), C.cua_handle(stream), C.uint64_t(atMostNs)))
}

func cuaEventCreate(a *cuaAPI, context uint64, event *uint64) int32 {
	return int32(C.cua_event_create(a, C.cua_handle(context), (*C.cua_handle)(event)))
}

func cuaEventDestroy(a *cuaAPI, context, event uint64) {
	C.cua_event_destroy(a, C.cua_handle(context), C.cua_handle(event))
}

func cuaEventRecord(a *cuaAPI, context, event, stream uint64) int32 {
	return int32(C.cua_event_record(a, C.cua_handle(context), C.cua_handle(event), C.cua_handle(stream)))
}

func cuaEventElapsed(a *cuaAPI, context, from, to uint64, ms *float32) int32 {
	return int32(C.cua_event_elapsed(a, C.cua_handle(context), C.cua_handle(from), C.cua_handle(to), (*C.float)(ms)))
}

// cuaModuleLoad loads a cubin, or PTX that ends in a NUL. log is what the compiler says of an error.
func cuaModuleLoad(a *cuaAPI, context uint64, image []byte) (log string, module uint64, code int32) {
	const logBytes = 4 << 10
	text := C.malloc(logBytes)
	defer C.free(text)
	var handle C.cua_handle
	r := C.cua_module_load(a, C.cua_handle(context), unsafe.Pointer(&image[0]), (*C.char)(text), logBytes, &handle)
	runtime.KeepAlive(image)
	if r != C.CUDA_SUCCESS {
		log = C.GoString((*C.char)(text))
	}
	return log, uint64(handle), int32(r)
}

func cuaModuleUnload(a *cuaAPI, context, module uint64) {
	C.cua_module_unload(a, C.cua_handle(context), C.cua_handle(module))
}

func cuaFunction(a *cuaAPI, context, module uint64, name string, threads, shared int32, function *uint64, fixed, blocks *int32) int32 {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int32(C.cua_function(a, C.cua_handle(context), C.cua_handle(module), s, C.int(threads), C.int(shared),
		(*C.cua_handle)(function), (*C.int)(fixed), (*C.int)(blocks)))
}

func cuaLaunchesEarly(a *cuaAPI) bool { return C.cua_launches_early(a) != 0 }

func cuaLaunch(a *cuaAPI, context, stream uint64, call *cudaCall) (op string, code int32) {
	var name *C.char
	r := C.cua_launch(a, C.cua_handle(context), C.cua_handle(stream), (*C.cua_call)(unsafe.Pointer(call)), &name)
	return failed(name, r), int32(r)
}

// cuaLaunchParams passes fields of v: cgo looks for Go pointers in what an expression &v.params names, but in all of v if it
// is given a pointer to it.
func cuaLaunchParams(a *cuaAPI, context, stream uint64, v *backwardInvocation) (op string, code int32) {
	var name *C.char
	r := C.cua_launch_params(a, C.cua_handle(context), C.cua_handle(stream), (*C.cua_call)(unsafe.Pointer(&v.call)),
		unsafe.Pointer(&v.params), &name)
	return failed(name, r), int32(r)
}

func cuaImportMemory(a *cuaAPI, context uint64, fd int32, bytes uint64, dedicated bool, memory, address *uint64) (op string, code int32) {
	var name *C.char
	whole := C.int(0)
	if dedicated {
		whole = 1
	}
	r := C.cua_import_memory(a, C.cua_handle(context), C.int(fd), C.uint64_t(bytes), whole, (*C.cua_handle)(memory), ptr(address), &name)
	return failed(name, r), int32(r)
}

func cuaDropMemory(a *cuaAPI, context, memory, address uint64) {
	C.cua_drop_memory(a, C.cua_handle(context), C.cua_handle(memory), C.uint64_t(address))
}

func cuaImportTimeline(a *cuaAPI, context uint64, fd int32, semaphore *uint64) int32 {
	return int32(C.cua_import_timeline(a, C.cua_handle(context), C.int(fd), (*C.cua_handle)(semaphore)))
}

func cuaDropTimeline(a *cuaAPI, context, semaphore uint64) {
	C.cua_drop_timeline(a, C.cua_handle(context), C.cua_handle(semaphore))
}

func cuaSignal(a *cuaAPI, context, stream, semaphore, value uint64) int32 {
	return int32(C.cua_signal(a, C.cua_handle(context), C.cua_handle(stream), C.cua_handle(semaphore), C.uint64_t(value)))
}

func cuaWait(a *cuaAPI, context, stream, semaphore, value uint64) int32 {
	return int32(C.cua_wait(a, C.cua_handle(context), C.cua_handle(stream), C.cua_handle(semaphore), C.uint64_t(value)))
}

func cuaAlloc(a *cuaAPI, context uint64, device int32, bytes uint64, rounded, memory, address *uint64) (op string, code int32) {
	var name *C.char
	r := C.cua_alloc(a, C.cua_handle(context), C.int(device), C.uint64_t(bytes), ptr(rounded), (*C.cua_handle)(memory), ptr(address), &name)
	return failed(name, r), int32(r)
}

func cuaFree(a *cuaAPI, context, memory, address, rounded uint64) {
	C.cua_free(a, C.cua_handle(context), C.cua_handle(memory), C.uint64_t(address), C.uint64_t(rounded))
}

func cuaExport(a *cuaAPI, context, memory uint64, fd *int32) int32 {
	return int32(C.cua_export(a, C.cua_handle(context), C.cua_handle(memory), (*C.int)(fd)))
}

func cuaMemAlloc(a *cuaAPI, context, bytes uint64, address *uint64) int32 {
	return int32(C.cua_mem_alloc(a, C.cua_handle(context), C.uint64_t(bytes), ptr(address)))
}

func cuaMemFree(a *cuaAPI, context, address uint64) int32 {
	return int32(C.cua_mem_free(a, C.cua_handle(context), C.uint64_t(address)))
}

func cuaCopyIn(a *cuaAPI, context, stream, to uint64, from []byte) int32 {
	return int32(C.cua_copy_in(a, C.cua_handle(context), C.cua_handle(stream), C.uint64_t(to), unsafe.Pointer(&from[0]), C.uint64_t(len(from))))
}

func cuaCopyOut(a *cuaAPI, context, stream uint64, to []byte, from uint64) int32 {
	return int32(C.cua_copy_out(a, C.cua_handle(context), C.cua_handle(stream), unsafe.Pointer(&to[0]), C.uint64_t(from), C.uint64_t(len(to))))
}

func cuaCopy(a *cuaAPI, context, stream, to, from, bytes uint64) int32 {
	return int32(C.cua_copy(a, C.cua_handle(context), C.cua_handle(stream), C.uint64_t(to), C.uint64_t(from), C.uint64_t(bytes)))
}

func cuaFill(a *cuaAPI, context, stream, at uint64, word uint32, words uint64) int32 {
	return int32(C.cua_fill(a, C.cua_handle(context), C.cua_handle(stream), C.uint64_t(at), C.uint32_t(word), C.uint64_t(words)))
}
