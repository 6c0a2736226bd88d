//go:build darwin

// Package driverlib names the libraries of drivers.
package driverlib

// File names. There is no CUDA for macOS.
const (
	Vulkan = "libvulkan.1.dylib"
	CUDA   = "libcuda.dylib"
	NVML   = "libnvidia-ml.dylib"
)
