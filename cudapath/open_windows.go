//go:build cgo

package cudapath

import (
	"unsafe"

	"vkattn/internal/ccall"
)

// cuaOpen loads the driver, or says why it cannot.
func cuaOpen(path string) (*cuaAPI, string) {
	library, err := ccall.Open(path)
	if err != nil {
		return nil, err.Error()
	}
	return cuaBind(*(*unsafe.Pointer)(unsafe.Pointer(&library)))
}
