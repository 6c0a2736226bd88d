// Package vk is a small Vulkan host layer for compute: devices, memory, pipelines,
// command recording, streams, timestamps and sharing with other APIs. It knows nothing
// of what its kernels compute.
//
//	dev, err := vk.Open(vk.Options{})
//	defer dev.Close()
//	stream, err := dev.NewStream("example")
//	buf, err := dev.NewBuffer(size, vk.BufferOptions{})
//	err = stream.Upload(buf, 0, data)
//	err = stream.Dispatch(pipeline, []vk.BufferRange{{Buffer: buf}}, push, [3]uint32{groups, 1, 1})
//	err = stream.Barrier() // between dispatches; uploads and downloads need none
//	err = stream.Dispatch(another, []vk.BufferRange{{Buffer: buf}}, push, [3]uint32{groups, 1, 1})
//	err = stream.Download(ctx, data, buf, 0) // submits and waits
//
// # Units
//
// Sizes, offsets and ranges are in bytes, times are time.Duration, device ticks are in
// units of Limits.TimestampPeriodNs.
//
// # Vulkan at run time
//
// The package opens the loader, libvulkan.so.1, when it is first needed; the environment
// variable VKATTN_LIBVULKAN names another file. Without Vulkan a program builds and runs;
// Devices and Open return an error that matches ErrNoDevice.
//
// A build needs neither a C compiler nor Vulkan headers, and has Vulkan with and without cgo. Package
// internal/ccall calls the commands. abi.go and the files abi_*.go declare the structures, which are on
// the heap of Go; abi_test.go compares them, the commands and the feature table with the Khronos headers
// that "scripts/deps.sh headers" fetches.
//
// # github.com/goki/vulkan
//
// Handles are numbers of types of this package. Package vk/goki converts them from and to the
// types of goki/vulkan, so that a program that uses it can pass its objects to this package and
// take ours. This package calls nothing of goki/vulkan, because its commands that marshal arrays
// free C memory from finalizers that may run during the call.
//
// # Handles
//
// Dispatchable handles (VkInstance to VkCommandBuffer) are numbers of a type each. Others (buffers,
// pipelines, semaphores) are uint64. No handle is a Go pointer: a driver may return small numbers, as
// the validation layers do, and the garbage collector aborts a program whose pointers hold such numbers.
//
// # Concurrency
//
// Device, Pipeline, Buffer and Timeline are safe for concurrent use. A Stream, a Recording or a
// Commands is not: it has one owner at a time. The Device serializes submissions to its
// queue.
//
// # Lifetime
//
// Every object has a Close that may be called again. Work in flight holds what it uses, and so do
// the calls of other goroutines: a buffer or pipeline that is closed while a stream needs it is
// destroyed when the work has finished. Device.Close waits until the device is idle and closes
// everything made from it; later calls return ErrClosed. A Recording holds what it uses only
// while a submission of it is in flight. No function keeps a Go slice after it
// returns.
//
// Submitted work may never end. Waits take a context; the few calls that take none return
// ErrTimeout when nothing has finished for Options.Timeout. Objects whose Close returns it are closed,
// and stay until Device.Close. If that returns it too, what the device may use is left undestroyed.
//
// # Errors
//
// Errors that the environment or the caller causes are *Error values that match one of
// the sentinels below with errors.Is; nothing panics. Methods of a nil pointer or of a
// zero value return errors that match ErrInvalid, or zero values if they return no error;
// their Close does nothing. After a lost device every call returns ErrDeviceLost.
//
// # Robust buffer access
//
// Robust buffer access is off unless Options.RobustBufferAccess is set: kernels must prove
// their indices. Dispatch checks every range against its buffer. It cannot check
// addresses inside push constants.
//
// # Examples
//
// example_test.go has Example (a stream copies to a buffer and back), ExampleError and
// ExampleStream (matching errors) and ExampleVersion. Two programs in attention/examples
// use devices, buffers and streams: quickstart, and owndevice, which passes its own
// device to this package.
package vk
