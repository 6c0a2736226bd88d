// Package vk is a small Vulkan host layer for compute: devices, memory,
// pipelines, recording, streams and sharing. It knows nothing of what its
// kernels compute.
//
// # Vulkan at run time
//
// The loader, libvulkan.so.1, is opened when first needed (the environment
// variable VKATTN_LIBVULKAN names another file). Nothing is needed at build time
// but a C compiler: the part of the Vulkan ABI in use is declared in abi.h. A
// machine without Vulkan builds and runs, and Devices and Open return an error
// matching ErrNoDevice.
//
// # github.com/goki/vulkan
//
// That package is the vocabulary of the API's edge: the types of the dispatchable
// handles (Instance, PhysicalDevice, Device, Queue, CommandBuffer) and the result
// codes are its own, so that a program which uses it can hand objects over in both
// directions. None of its Vulkan commands is called here: those that marshal arrays
// free C memory from finalizers which may run during the call. Three functions of
// its loader are: SetGetInstanceProcAddr and Init once, InitInstance for each
// instance made here, so that the program's own calls find the loader in use.
//
// Every call here is one C function with flat arguments that builds its structures
// on the C stack and keeps nothing. abi.h and its parts declare those structures;
// abi_test.go compares them, the commands and the feature table with the Khronos
// headers that scripts/deps.sh headers fetches.
//
// # Handles
//
// Non-dispatchable handles (buffers, pipelines, semaphores) are uint64. A driver
// may return small numbers for them and the validation layers do; were they
// pointers in Go, the garbage collector would find impossible addresses in them
// and abort the program.
//
// # Concurrency
//
// A Device, its pipelines and its buffers may be used by many goroutines. A
// Stream, and a Commands, has one owner at a time. Queue submission is
// serialized inside the Device.
//
// # Lifetime
//
// Everything has an idempotent Close. Work in flight holds what it uses: a
// buffer or a pipeline closed while a stream still needs it is destroyed when
// that work has finished. Device.Close waits for the device to be idle and
// closes everything made from it; later calls return ErrClosed. No Go slice is
// kept past the call it was given to.
//
// # Errors
//
// What the environment or the caller can cause is an *Error matching one of the
// sentinels below with errors.Is; nothing panics. Methods of a nil pointer, and of a
// zero value, return errors that match ErrInvalid, or zeros where they return no error;
// their Close does nothing. After a lost device every call returns ErrDeviceLost at
// once.
//
// # Examples
//
// vk/example_test.go has Example (a stream copies to a buffer and back), ExampleError and
// ExampleStream (what errors match) and ExampleVersion. The programs in
// attention/examples show devices, buffers and streams at work: quickstart,
// and owndevice with a device that the program made by itself.
//
// # Robust buffer access
//
// It is off unless asked for (Options.RobustBufferAccess): kernels are expected
// to prove their indices, and every range given to Dispatch is checked against
// its buffer. Addresses inside push constants cannot be checked.
package vk
