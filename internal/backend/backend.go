// Package backend says what a device of package attention is: memory, streams of calls, and the calls. Vulkan and CPU
// are two. A device of another kind implements Device, Memory, Stream and Attention.
package backend

import (
	"context"
	"fmt"

	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Device is where tensors live and operations compute. Two values that are equal are one device.
type Device interface {
	String() string
	// Vulkan is the device whose tiers package attention plans and records; nil: Attention computes the calls.
	Vulkan() *vk.Device
	// NewMemory returns n bytes, a multiple of 4 above 0. They may hold anything.
	NewMemory(n int64) (Memory, error)
	NewStream(name string) (Stream, error)
	// Shared is a stream that several goroutines may use at once; nil: a stream has one owner at a time.
	Shared() Stream
	// Attention returns what computes the calls of a valid Config; nil on a Vulkan device.
	Attention(cfg problem.Config) (Attention, error)
	Close() error
}

// Memory is memory of a device. What is done with it comes behind the earlier work of the stream.
type Memory interface {
	// Tensor names the memory.
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

// Stream is an order of calls. They may begin with Submit.
type Stream interface {
	Device() Device
	Vulkan() *vk.Stream // nil on a device that is not Vulkan's
	Submit() error
	Wait(ctx context.Context) error // it submits first
	Close() error
}

// Kernels returns the Vulkan device of an operation that has kernels of Vulkan and of the CPU, nil for the CPU.
func Kernels(d Device, access problem.Access) (*vk.Device, error) {
	switch d {
	case nil:
		return nil, errs.Unmade("Open")
	case Device(CPU{}):
		return nil, nil
	}
	dev := d.Vulkan()
	switch {
	case dev == nil:
		return nil, fmt.Errorf("%w: the operation has no kernels for %v", problem.ErrUnsupported, d)
	case dev.Closed():
		return nil, errs.Closed("the device")
	}
	if why := dev.Caps().Without(dispatch.NeedAddresses); why != "" && access == problem.AccessAddresses {
		return nil, fmt.Errorf("%w: %s", problem.ErrUnsupported, why)
	}
	return dev, nil
}

// Attention computes calls whose arguments were checked. Their memory may be used until the stream has done them.
type Attention interface {
	Forward(s Stream, a problem.Args) error
	Backward(s Stream, a problem.BackwardArgs) error
}
