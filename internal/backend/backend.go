// Package backend says what a device of package attention is: memory, streams of calls, and the calls. Vulkan and CPU
// are two, whose calls package attention and its siblings plan and compute. A device of another kind, such as one of CUDA
// where there is no Vulkan, implements Device, Memory, Stream and Kernels, and NewDevice makes an attention.Device of it.
package backend

import (
	"context"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Device is where tensors live and operations compute. Two values that are equal are one device.
type Device interface {
	String() string
	// Vulkan is the device whose tiers package attention plans and records; nil on a device that is not Vulkan's.
	Vulkan() *vk.Device
	// Kernels computes the calls of a device of another kind; nil on a Vulkan device and the CPU.
	Kernels() Kernels
	// NewMemory returns n bytes, a multiple of 4 above 0. They may hold anything. If there is too little memory, the
	// error matches vk.ErrOutOfMemory.
	NewMemory(n int64) (Memory, error)
	NewStream(name string) (Stream, error)
	// Shared is a stream that several goroutines may use at once; nil: a stream has one owner at a time.
	Shared() Stream
	Close() error
}

// Memory is memory of a device. What is done with it comes behind the earlier work of the stream.
type Memory interface {
	// Tensor names the memory. On a device with Kernels it is a problem.Memory, whose Backing is this Memory.
	Tensor() problem.Tensor
	Clear(s Stream) error
	// Write returns when b may be used again, Read when b is complete.
	Write(s Stream, at int64, b []byte) error
	Read(ctx context.Context, s Stream, at int64, b []byte) error
	// Copy copies n bytes to another place of the memory.
	Copy(s Stream, to, from, n int64) error
	// Close frees the memory once no work in flight uses it.
	Close() error
}

// Stream is an order of calls: each sees what the calls before it wrote. They may begin with Submit.
type Stream interface {
	problem.StreamBacking
	Device() Device
}
