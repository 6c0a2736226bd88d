//go:build !windows

package nccl

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include "nccl.h"
#include <stdlib.h>
*/
import "C"

import "unsafe"

// This file has the calls of the C side, nccl.h, in the types of Go. nccl_nocgo.go has the same functions for
// builds without cgo.

type ncclAPI = C.nccl_api

// The layouts and numbers in Go are those of C: these do not compile otherwise.
var (
	_ [unsafe.Sizeof(ncclMessage{})]byte        = [C.sizeof_nccl_message]byte{}
	_ [unsafe.Offsetof(ncclMessage{}.peer)]byte = [unsafe.Offsetof(C.nccl_message{}.peer)]byte{}
	_ [unsafe.Sizeof(ID{})]byte                 = [C.sizeof_nccl_id]byte{}
	_ [1]struct{}                               = [1 + success - C.NCCL_SUCCESS]struct{}{}
	_ [1]struct{}                               = [1 + inProgress - C.NCCL_IN_PROGRESS]struct{}{}
)

// ncclOpen loads the library, or says why it cannot.
func ncclOpen(path, driver string) (*ncclAPI, string) {
	name, cuda := C.CString(path), C.CString(driver)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(cuda))
	var why *C.char
	api := C.nccl_open(name, cuda, &why)
	if api == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, C.GoString(why)
	}
	return api, ""
}

func ncclError(a *ncclAPI, code int32) string {
	if text := C.nccl_error(a, C.int(code)); text != nil {
		return C.GoString(text)
	}
	return ""
}

func ncclVersion(a *ncclAPI, v *int32) int32 { return int32(C.nccl_version(a, (*C.int)(v))) }

func ncclUniqueID(a *ncclAPI, id *ID) int32 {
	return int32(C.nccl_unique_id(a, (*C.nccl_id)(unsafe.Pointer(id))))
}

func ncclInit(a *ncclAPI, context uint64, id *ID, rank, ranks int, comm *uint64) int32 {
	return int32(C.nccl_init(a, C.uint64_t(context), (*C.nccl_id)(unsafe.Pointer(id)), C.int(rank), C.int(ranks), (*C.uint64_t)(comm)))
}

func ncclWho(a *ncclAPI, comm uint64) (rank, ranks int, code int32) {
	var r, n C.int
	code = int32(C.nccl_who(a, C.uint64_t(comm), &r, &n))
	return int(r), int(n), code
}

func ncclAsyncError(a *ncclAPI, comm uint64, code *int32) int32 {
	return int32(C.nccl_async_error(a, C.uint64_t(comm), (*C.int)(code)))
}

func ncclExchange(a *ncclAPI, context, comm, stream uint64, list []ncclMessage) int32 {
	return int32(C.nccl_exchange(a, C.uint64_t(context), C.uint64_t(comm), C.uint64_t(stream),
		(*C.nccl_message)(unsafe.Pointer(&list[0])), C.int(len(list))))
}

func ncclAllGather(a *ncclAPI, context, comm, stream, send, receive, bytes uint64) int32 {
	return int32(C.nccl_all_gather(a, C.uint64_t(context), C.uint64_t(comm), C.uint64_t(stream), C.uint64_t(send), C.uint64_t(receive), C.uint64_t(bytes)))
}

func ncclAbort(a *ncclAPI, context, comm uint64) int32 {
	return int32(C.nccl_abort(a, C.uint64_t(context), C.uint64_t(comm)))
}
