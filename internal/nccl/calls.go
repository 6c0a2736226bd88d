package nccl

import (
	"fmt"
	"runtime"
	"unsafe"

	"vkattn/internal/ccall"
)

// ncclAPI has the addresses of the functions in use, each in the field of its name, as nccl.h of NCCL 2.14 and newer
// declares them. RCCL has the same.
type ncclAPI struct {
	ncclGetVersion, ncclGetUniqueId, ncclCommInitRankConfig, ncclCommAbort uintptr
	ncclCommGetAsyncError, ncclCommCount, ncclCommUserRank                 uintptr
	ncclSend, ncclRecv, ncclAllGather, ncclGroupStart, ncclGroupEnd        uintptr
	ncclGetErrorString                                                     uintptr

	cuda contextCalls
}

// contextCalls are functions of the CUDA driver; 0 without one.
type contextCalls struct {
	cuCtxPushCurrent_v2, cuCtxPopCurrent_v2 uintptr
}

const (
	ncclInt8    = 0 // ncclDataType_t
	cudaNone    = 100
	configMagic = 0xcafebeef
	configOf    = 21400 // the version of the layout below: newer libraries add the rest themselves
)

// ncclConfig is ncclConfig_t of 2.14.
type ncclConfig struct {
	size           uint64
	magic, version uint32
	blocking       int32
}

// ncclOpen loads the library, and the driver to make a communicator's context current.
func ncclOpen(path, driver string) (*ncclAPI, error) {
	library, err := ccall.Open(path)
	if err != nil {
		return nil, err
	}
	a := new(ncclAPI)
	if missing := ccall.Bind(library, a); missing != "" {
		return nil, fmt.Errorf("it has no %s: NCCL 2.14 or newer is needed", missing)
	}
	if cuda, err := ccall.Open(driver); err == nil {
		ccall.Bind(cuda, &a.cuda)
	}
	return a, nil
}

// within calls f with a context current, 0: as it is. Results of the driver are returned as -CUresult.
func (a *ncclAPI) within(context uint64, f func() int32) int32 {
	if context == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if a.cuda.cuCtxPushCurrent_v2 == 0 || a.cuda.cuCtxPopCurrent_v2 == 0 {
		return -cudaNone
	}
	if r := int32(ccall.Call(a.cuda.cuCtxPushCurrent_v2, uintptr(context))); r != success {
		return -r
	}
	var was uint64
	defer func() { ccall.Call(a.cuda.cuCtxPopCurrent_v2, uintptr(unsafe.Pointer(&was))) }()
	return f()
}

// join makes a communicator. NCCL takes the ID by value.
func (a *ncclAPI) join(context uint64, id *ID, rank, ranks int, comm *uint64) int32 {
	config := &ncclConfig{size: uint64(unsafe.Sizeof(ncclConfig{})), magic: configMagic, version: configOf}
	return a.within(context, func() int32 {
		if runtime.GOARCH != "amd64" {
			of := *id
			return int32(ccall.Call(a.ncclCommInitRankConfig, uintptr(unsafe.Pointer(comm)), uintptr(ranks), uintptr(unsafe.Pointer(&of)),
				uintptr(rank), uintptr(unsafe.Pointer(config))))
		}
		w := *(*[16]uintptr)(unsafe.Pointer(id)) // words of their own, behind the six arguments in registers
		return int32(ccall.Call(a.ncclCommInitRankConfig, uintptr(unsafe.Pointer(comm)), uintptr(ranks), uintptr(rank),
			uintptr(unsafe.Pointer(config)), 0, 0,
			w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15]))
	})
}

func (a *ncclAPI) who(comm uint64) (rank, ranks int, code int32) {
	var r, n int32
	if code = int32(ccall.Call(a.ncclCommUserRank, uintptr(comm), uintptr(unsafe.Pointer(&r)))); code == success {
		code = int32(ccall.Call(a.ncclCommCount, uintptr(comm), uintptr(unsafe.Pointer(&n))))
	}
	return int(r), int(n), code
}

// exchange adds messages to a stream, as one group, which belongs to a thread.
func (a *ncclAPI) exchange(context, comm, stream uint64, list []Message) int32 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return a.within(context, func() int32 {
		r := int32(ccall.Call(a.ncclGroupStart))
		if r != success {
			return r
		}
		for i := range list {
			m, fn := &list[i], a.ncclRecv
			if m.Send {
				fn = a.ncclSend
			}
			r = int32(ccall.Call(fn, uintptr(m.Address), uintptr(m.Bytes), ncclInt8, uintptr(m.Peer), uintptr(comm), uintptr(stream)))
			if r != success && r != inProgress {
				ccall.Call(a.ncclGroupEnd)
				return r
			}
		}
		return int32(ccall.Call(a.ncclGroupEnd))
	})
}

func (a *ncclAPI) allGather(context, comm, stream, send, receive, bytes uint64) int32 {
	return a.within(context, func() int32 {
		return int32(ccall.Call(a.ncclAllGather, uintptr(send), uintptr(receive), uintptr(bytes), ncclInt8, uintptr(comm), uintptr(stream)))
	})
}
