//go:build !windows && !darwin

// Package driverlib names the libraries of drivers.
package driverlib

// File names.
const (
	Vulkan = "libvulkan.so.1"
	CUDA   = "libcuda.so.1"
	NVML   = "libnvidia-ml.so.1"
)
