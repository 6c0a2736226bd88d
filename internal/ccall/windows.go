//go:build windows

package ccall

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

// Open opens a DLL. It looks for a name without a folder in the folder of the program and in those of Windows,
// not in the current folder.
func Open(path string) (Library, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
	if path != filepath.Base(path) {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return 0, err
		}
		path, flags = absolute, flags|windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	library, err := windows.LoadLibraryEx(path, 0, flags)
	return Library(library), err
}

// Symbol returns the address of a function.
func (l Library) Symbol(name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(l), name)
}
