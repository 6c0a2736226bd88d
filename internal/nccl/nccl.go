// Package nccl binds NCCL at run time: messages between GPUs of one or several hosts. A build
// needs nothing of it.
//
// The package opens libnccl.so.2 when it is first needed; NCCL 2.14 or newer is required. The
// environment variable VKATTN_LIBNCCL names another file, such as librccl.so.1, or disables it
// if it is "off". Without the library every call returns an error that matches
// vk.ErrUnsupported.
//
// Communicators do not block: a call returns when NCCL has accepted the work, and Abort ends
// work under way, also that of a rank whose peers are gone. Addresses are those of CUDA, such as
// of cudapath.Context.Address. Work runs in the order of the CUDA stream that a call names.
package nccl

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"vkattn/cudapath"
	"vkattn/internal/ccall"
	"vkattn/vk"
)

// DefaultLibrary is the file name of NCCL. The environment variable VKATTN_LIBNCCL names
// another, or disables it if it is "off".
const (
	DefaultLibrary = "libnccl.so.2"
	LibraryEnv     = "VKATTN_LIBNCCL"
)

// Error is a failed call of NCCL, or one that was refused before.
type Error struct {
	Op     string // such as "ncclCommInitRankConfig"
	Code   int    // ncclResult_t; below 0: minus a CUresult; 0: NCCL had no part in it
	Detail string
	Err    error // a sentinel or a cause; may be nil
}

// Error is one line.
func (e *Error) Error() string {
	switch {
	case e.Code < 0:
		return fmt.Sprintf("nccl: %s: CUresult(%d)", e.Op, -e.Code)
	case e.Code > 0:
		return fmt.Sprintf("nccl: %s: %s (%d)", e.Op, e.Detail, e.Code)
	}
	return fmt.Sprintf("nccl: %s: %s", e.Op, e.Detail)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Results of NCCL.
const (
	success    = 0
	inProgress = 7
)

// libraries are the opened ones. They are never unloaded.
var libraries struct {
	sync.Mutex
	byPath map[string]*ncclAPI
}

// load opens the library once. After a failure the next call tries again.
func load() (*ncclAPI, error) {
	path := os.Getenv(LibraryEnv)
	switch path {
	case "":
		path = DefaultLibrary
	case "off":
		return nil, &Error{Op: "load NCCL", Detail: "switched off by " + LibraryEnv + "=off", Err: vk.ErrUnsupported}
	}
	libraries.Lock()
	defer libraries.Unlock()
	if api := libraries.byPath[path]; api != nil {
		return api, nil
	}
	driver := os.Getenv(cudapath.LibraryEnv)
	if driver == "" {
		driver = cudapath.DefaultLibrary
	}
	api, err := ncclOpen(path, driver)
	if err != nil {
		return nil, &Error{Op: "load NCCL", Detail: path + ": " + strings.TrimPrefix(err.Error(), path+": "), Err: vk.ErrUnsupported}
	}
	if libraries.byPath == nil {
		libraries.byPath = map[string]*ncclAPI{}
	}
	libraries.byPath[path] = api
	return api, nil
}

// check converts a result into an error.
func check(api *ncclAPI, op string, code int32) error {
	switch {
	case code == success:
		return nil
	case code < 0:
		return &Error{Op: op, Code: int(code)}
	}
	e := &Error{Op: op, Code: int(code), Detail: "ncclResult_t"}
	if text := ccall.String(ccall.Call(api.ncclGetErrorString, uintptr(code))); text != "" {
		e.Detail = text
	}
	return e
}

// Version is the version of the library: 22803 for NCCL 2.28.3.
func Version() (int, error) {
	api, err := load()
	if err != nil {
		return 0, err
	}
	var v int32
	err = check(api, "ncclGetVersion", int32(ccall.Call(api.ncclGetVersion, uintptr(unsafe.Pointer(&v)))))
	return int(v), err
}

// ID names a communicator. One rank makes it and gives it to the others.
type ID [128]byte

// NewID makes an ID.
func NewID() (ID, error) {
	api, err := load()
	if err != nil {
		return ID{}, err
	}
	var id ID
	if err := check(api, "ncclGetUniqueId", int32(ccall.Call(api.ncclGetUniqueId, uintptr(unsafe.Pointer(&id))))); err != nil {
		return ID{}, err
	}
	return id, nil
}
