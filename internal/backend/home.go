package backend

import (
	"context"
	"fmt"

	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// What package attention lets the other packages of this library do with its types, and no program. It sets these.
var (
	// NewDevice returns an *attention.Device over a backend, which its Close closes.
	NewDevice func(Device) any
	// HomeOf returns the Home of an *attention.Device.
	HomeOf func(device any) Home
	// OpenCUDA opens a CUDA device without Vulkan as an *attention.Device, the first for "". Package cudapath sets it.
	OpenCUDA func(name string) (any, error)
)

// Home is an *attention.Device inside of the library.
type Home interface {
	// Backend is nil if Open did not make the Device.
	Backend() Device
	// Begin begins calls of the named method on a stream, or on the default stream, which no other call uses until End. If
	// it returns no error, End follows.
	Begin(method string, s problem.StreamBacking, byDefault bool) (Stream, error)
	// End ends the calls; err is theirs, which it returns. It submits the default stream.
	End(byDefault bool, err error) error
}

// Do makes a call of the named method with f on the default stream.
func Do(h Home, method string, f func(Stream) error) error {
	s, err := h.Begin(method, nil, true)
	if err != nil {
		return err
	}
	return h.End(true, f(s))
}

// PlaceOf returns where an operation with kernels of Vulkan and of the CPU computes.
func PlaceOf(d Device, access problem.Access) (tensors.Place, error) {
	if d == nil {
		return tensors.Place{}, errs.Unmade("Open")
	}
	if d.Kernels() != nil {
		return tensors.Place{Other: d}, nil
	}
	dev := d.Vulkan()
	switch {
	case dev == nil:
		return tensors.Place{}, nil
	case dev.Closed():
		return tensors.Place{}, errs.Closed("the device")
	}
	if why := dev.Caps().Without(dispatch.NeedAddresses); why != "" && access == problem.AccessAddresses {
		return tensors.Place{}, fmt.Errorf("%w: %s", problem.ErrUnsupported, why)
	}
	return tensors.Place{Vulkan: dev}, nil
}

// ReadNumbers returns the first n elements of a vector, behind the work of the stream.
func ReadNumbers(s Stream, v problem.Vector, n int) ([]byte, error) {
	b := make([]byte, 4*n)
	if n == 0 {
		return b, nil
	}
	return b, MemoryOf(v.Tensor()).Read(context.Background(), s, 4*v.Offset, b)
}

// MemoryOf is the memory that t names, which is that of a device.
func MemoryOf(t problem.Tensor) Memory {
	switch m, ok := problem.BackingOf(t.Memory).(Memory); {
	case ok:
		return m
	case t.Buffer != nil:
		return buffer{t.Buffer}
	}
	return hostMemory(t.Host)
}
