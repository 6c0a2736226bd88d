package cudapath

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include "cua.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// DefaultLibrary is the file name of the CUDA driver. The environment variable
// VKATTN_LIBCUDA names another, or disables CUDA if it is "off".
const (
	DefaultLibrary = "libcuda.so.1"
	LibraryEnv     = "VKATTN_LIBCUDA"
)

// library is the initialized driver. It is never unloaded.
type library struct {
	api     *C.cua_api
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
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	l := &library{api: C.cua_open(name, &why)}
	if l.api == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, unsupported("load the CUDA driver", "%s: %s", path, strings.TrimPrefix(C.GoString(why), path+": "))
	}
	var version, devices C.int
	if err := l.check("cuInit", C.cua_init(l.api, &version, &devices)); err != nil {
		e := err.(*Error)
		e.Detail = path + " finds no usable NVIDIA device"
		return nil, e
	}
	l.version = int(version)
	for i := range int(devices) {
		var c C.cua_device_info
		if err := l.check("cuDeviceGet", C.cua_device(l.api, C.int(i), &c)); err != nil {
			return nil, err
		}
		l.devices = append(l.devices, deviceInfo(i, &c, l.version))
	}
	return l, nil
}

// launchesEarly reports whether a kernel may be launched so that it starts before the one before
// it ends (programmatic dependent launch). Graphs hold such dependencies since CUDA 12.3, and
// callers may capture their stream into one.
func (l *library) launchesEarly() bool {
	const leastVersion = 12030
	return l.version >= leastVersion && C.cua_launches_early(l.api) != 0
}

// check converts a CUresult into an error.
func (l *library) check(op string, code C.int) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	e := &Error{Op: op, Code: int(code), Name: fmt.Sprintf("CUresult(%d)", int(code))}
	if name := C.cua_error_name(l.api, code); name != nil {
		e.Name = C.GoString(name)
	}
	return e
}

// opName is the function of the driver that failed, as the C side names it; otherwise if it names none.
func opName(op *C.char, otherwise string) string {
	if op == nil {
		return otherwise
	}
	return C.GoString(op)
}
