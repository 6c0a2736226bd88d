// Package cudapath runs attention on CUDA kernels, on the memory of Vulkan buffers.
package cudapath
