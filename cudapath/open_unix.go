//go:build cgo && !windows

package cudapath

// #include "cua.h"
// #include <stdlib.h>
import "C"

import "unsafe"

// cuaOpen loads the driver, or says why it cannot.
func cuaOpen(path string) (*cuaAPI, string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	library := C.cua_open(name, &why)
	if library == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, C.GoString(why)
	}
	return cuaBind(library)
}
