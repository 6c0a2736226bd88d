//go:build !windows

package ccall

import (
	"runtime"

	"github.com/ebitengine/purego" // without cgo it also starts the threads, on which C code can run
)

// Open opens a shared library by its file name or path.
func Open(path string) (Library, error) {
	runtime.LockOSThread() // the reason of an error is the thread's
	defer runtime.UnlockOSThread()
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	return Library(library), err
}

// Symbol returns the address of a function.
func (l Library) Symbol(name string) (uintptr, error) { return purego.Dlsym(uintptr(l), name) }
