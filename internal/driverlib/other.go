//go:build !windows

// Package driverlib names the libraries of drivers. On Windows it opens them too.
package driverlib

// File names.
const (
	Vulkan = "libvulkan.so.1"
	CUDA   = "libcuda.so.1"
	NVML   = "libnvidia-ml.so.1"
)
