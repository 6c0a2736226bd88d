package cudapath

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"sync"

	"vkattn/internal/driverlib"
)

// DefaultLibrary is the file name of the CUDA driver, "nvcuda.dll" on Windows. The environment variable
// VKATTN_LIBCUDA names another, or disables CUDA if it is "off".
const (
	DefaultLibrary = driverlib.CUDA
	LibraryEnv     = "VKATTN_LIBCUDA"
)

// library is the initialized driver. It is never unloaded.
type library struct {
	api     *cuaAPI
	version int // 12040 for CUDA 12.4
	devices []DeviceInfo
}

// noCUDA says why a build knows no CUDA device.
const noCUDA = "not available in this build, which is without cgo"

var libraries struct {
	sync.Mutex
	byPath map[string]*library
}

// load opens and initializes the driver once. After a failure the next call tries again, as
// a device may come back.
func load() (*library, error) {
	if !hasCUDA {
		return nil, unsupported("load the CUDA driver", "%s", noCUDA)
	}
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
	api, why := cuaOpen(path)
	if api == nil {
		return nil, unsupported("load the CUDA driver", "%s: %s", path, strings.TrimPrefix(why, path+": "))
	}
	l := &library{api: api}
	var version, devices int32
	if err := l.check("cuInit", cuaInit(l.api, &version, &devices)); err != nil {
		e := err.(*Error)
		e.Detail = path + " finds no usable NVIDIA device"
		return nil, e
	}
	l.version = int(version)
	for i := range int(devices) {
		info, r := cuaDevice(l.api, i)
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
	return l.version >= leastVersion && cuaLaunchesEarly(l.api)
}

// check converts a CUresult into an error.
func (l *library) check(op string, code int32) error {
	if code == cudaSuccess {
		return nil
	}
	e := &Error{Op: op, Code: int(code), Name: fmt.Sprintf("CUresult(%d)", int(code))}
	if name := cuaErrorName(l.api, code); name != "" {
		e.Name = name
	}
	return e
}

// opName is the function of the driver that failed, as the C side names it; otherwise if it names none.
func opName(op, otherwise string) string { return cmp.Or(op, otherwise) }
