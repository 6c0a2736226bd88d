//go:build windows

// Package driverlib names the libraries of drivers. On Windows it opens them too.
package driverlib

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

// File names.
const (
	Vulkan = "vulkan-1.dll"
	CUDA   = "nvcuda.dll"
	NVML   = "nvml.dll"
)

// Open opens a DLL. It looks for a name without a folder in the folder of the program and in those of Windows,
// not in the current folder.
func Open(path string) (windows.Handle, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
	if path != filepath.Base(path) {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return 0, err
		}
		path, flags = absolute, flags|windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	return windows.LoadLibraryEx(path, 0, flags)
}
