//go:build windows

// Package driverlib names the libraries of drivers.
package driverlib

// File names.
const (
	Vulkan = "vulkan-1.dll"
	CUDA   = "nvcuda.dll"
	NVML   = "nvml.dll"
)
