package cudapath

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
	"vkattn/internal/driverlib"
)

// driver has the addresses of the driver's functions in use, each in the field of its name. Handles are numbers in Go: a
// pointer of the driver's is none of the garbage collector's business.
type driver struct {
	functions
	optional
}

type functions struct {
	cuInit, cuDriverGetVersion, cuGetErrorName                                                          uintptr
	cuDeviceGetCount, cuDeviceGet, cuDeviceGetUuid, cuDeviceGetName                                     uintptr
	cuDeviceGetAttribute, cuDeviceTotalMem_v2                                                           uintptr
	cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2                                              uintptr
	cuCtxPushCurrent_v2, cuCtxPopCurrent_v2, cuCtxGetDevice, cuCtxSynchronize                           uintptr
	cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize                                             uintptr
	cuStreamQuery, cuStreamGetCtx, cuStreamIsCapturing                                                  uintptr
	cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventElapsedTime                                 uintptr
	cuModuleLoadDataEx, cuModuleUnload, cuModuleGetFunction                                             uintptr
	cuFuncSetAttribute, cuFuncGetAttribute, cuOccupancyMaxActiveBlocksPerMultiprocessor, cuLaunchKernel uintptr
	cuMemGetAllocationGranularity, cuMemCreate, cuMemRelease, cuMemExportToShareableHandle              uintptr
	cuMemAddressReserve, cuMemAddressFree, cuMemMap, cuMemUnmap, cuMemSetAccess                         uintptr
	cuMemAlloc_v2, cuMemFree_v2                                                                         uintptr
	cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2, cuMemsetD32Async                  uintptr
	cuImportExternalMemory, cuExternalMemoryGetMappedBuffer, cuDestroyExternalMemory                    uintptr
	cuImportExternalSemaphore, cuDestroyExternalSemaphore                                               uintptr
	cuSignalExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync                                      uintptr
}

// optional are functions since CUDA 12; 0 where the driver is older. Kernels that need tensor maps are not chosen without
// them.
type optional struct {
	cuLaunchKernelEx, cuTensorMapEncodeTiled uintptr
}

// openDriver loads the driver, or says why it cannot.
func openDriver(path string) (*driver, error) {
	library, err := ccall.Open(path)
	if err != nil {
		return nil, err
	}
	a := new(driver)
	ccall.Bind(library, &a.optional)
	if missing := ccall.Bind(library, &a.functions); missing != "" {
		return nil, fmt.Errorf("it has no %s: a driver for CUDA 11.2 or newer is needed", missing)
	}
	return a, nil
}

// turn makes a context current on a thread, calls a function of the driver and leaves the thread as it found it: in one
// run, since a goroutine may change threads between two.
type turn struct {
	push struct {
		ccall.Frame
		context uintptr
	}
	call struct {
		ccall.Frame
		args [maxArgs]uintptr
	}
	pop struct {
		ccall.Frame
		was *uint64
	}
	was   uint64
	words [20]uint64 // memory for what arguments point to
}

const maxArgs = 8

var turns = sync.Pool{New: func() any {
	t := new(turn)
	t.push.Args, t.push.Next, t.push.Fail = 1, &t.call.Frame, ccall.End
	t.call.Next = &t.pop.Frame
	t.pop.Args, t.pop.was = 1, &t.was
	return t
}}

// run makes the turn and returns the result of the call, or of what keeps the context from being current around it.
func (a *driver) run(t *turn, context uint64, fn uintptr, args ...uintptr) int32 {
	t.push.Fn, t.push.context, t.pop.Fn = a.cuCtxPushCurrent_v2, uintptr(context), a.cuCtxPopCurrent_v2
	t.call.Fn, t.call.Args = fn, copy(t.call.args[:], args)
	ccall.Run(&t.push.Frame)
	for _, f := range [...]*ccall.Frame{&t.push.Frame, &t.call.Frame} {
		if r := int32(f.Result); r != cudaSuccess {
			return r
		}
	}
	return int32(t.pop.Result)
}

// in calls a function of the driver with a context current. Pointers among the arguments are made in the list, see
// [ccall.Call].
//
//go:uintptrescapes
func (a *driver) in(context uint64, fn uintptr, args ...uintptr) int32 {
	t := turns.Get().(*turn)
	defer turns.Put(t)
	return a.run(t, context, fn, args...)
}

// address is that of memory outside of the list of a call's arguments. The memory is on the heap and in use behind the
// call.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// first returns the first result that is not success.
func first(results ...int32) int32 {
	for _, r := range results {
		if r != cudaSuccess {
			return r
		}
	}
	return cudaSuccess
}

// DefaultLibrary is the file name of the CUDA driver, "nvcuda.dll" on Windows. The environment variable
// VKATTN_LIBCUDA names another, or disables CUDA if it is "off".
const (
	DefaultLibrary = driverlib.CUDA
	LibraryEnv     = "VKATTN_LIBCUDA"
)

// library is the initialized driver. It is never unloaded.
type library struct {
	api     *driver
	version int // 12040 for CUDA 12.4
	devices []DeviceInfo
}

var libraries struct {
	sync.Mutex
	byPath map[string]*library
}

// load opens and initializes the driver once. After a failure the next call tries again, as
// a device may come back.
func load() (*library, error) {
	path := os.Getenv(LibraryEnv)
	switch path {
	case "":
		path = DefaultLibrary
	case "off":
		return nil, unsupported("load the CUDA driver", "switched off by %s=off", LibraryEnv)
	}
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[path]; l != nil {
		return l, nil
	}
	l, err := open(path)
	if err != nil {
		return nil, err
	}
	if libraries.byPath == nil {
		libraries.byPath = map[string]*library{}
	}
	libraries.byPath[path] = l
	return l, nil
}

func open(path string) (*library, error) {
	api, err := openDriver(path)
	if err != nil {
		return nil, unsupported("load the CUDA driver", "%s: %s", path, strings.TrimPrefix(err.Error(), path+": "))
	}
	l := &library{api: api}
	version, devices, r := l.api.start()
	if err := l.check("cuInit", r); err != nil {
		e := err.(*Error)
		e.Detail = path + " finds no usable NVIDIA device"
		return nil, e
	}
	l.version = int(version)
	for i := range int(devices) {
		info, r := l.api.device(i)
		if err := l.check("cuDeviceGet", r); err != nil {
			return nil, err
		}
		info.Driver = l.version
		l.devices = append(l.devices, info)
	}
	return l, nil
}

// launchesEarly reports whether a kernel may be launched so that it starts before the one before
// it ends (programmatic dependent launch). Graphs hold such dependencies since CUDA 12.3, and
// callers may capture their stream into one.
func (l *library) launchesEarly() bool {
	const leastVersion = 12030
	return l.version >= leastVersion && l.api.launchesEarly()
}

// check converts a CUresult into an error.
func (l *library) check(op string, code int32) error {
	if code == cudaSuccess {
		return nil
	}
	e := &Error{Op: op, Code: int(code), Name: fmt.Sprintf("CUresult(%d)", int(code))}
	if name := l.api.errorName(code); name != "" {
		e.Name = name
	}
	return e
}
