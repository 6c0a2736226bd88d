package cudapath

import (
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
