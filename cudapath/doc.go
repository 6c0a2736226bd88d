// Package cudapath is CUDA beside Vulkan on the same GPU: attention kernels in CUDA
// C++ that run on the memory of Vulkan buffers, and memory and semaphores shared
// both ways, without copies and without waiting on the host.
//
// # Tier cuda
//
// Importing the package gives package attention its tier cuda:
//
//	import _ "vkattn/cudapath"
//
//	op, err := attention.New(dev, attention.Config{HeadDim: 128, Tier: attention.TierCUDA})
//	q, err := dev.NewBuffer(size, vk.BufferOptions{Exportable: true})
//	err = op.Forward(stream, attention.Args{Shape: shape, Q: attention.Tensor{Buffer: q}, ...})
//	err = stream.Wait(ctx)
//
// Forward submits what the Vulkan stream has recorded, and puts a kernel into a CUDA
// stream that waits for it; the Vulkan stream's next batch waits for the kernel.
// Config.Kernel asks for a family of kernels; else it is the first of
//
//	fa3      sm_90: tensor memory accelerator, warpgroup multiplications
//	fa2      sm_80 and newer: as FlashAttention-2
//	fa2_any  the same for any alignment, loading single elements
//	ref      float32 arithmetic, to validate the others; also for float32 tensors
//
// that takes the problem, and the Plan says why the ones before it do not.
//
// # The driver at run time
//
// libcuda.so.1 is opened when it is first needed; the environment variable
// VKATTN_LIBCUDA names another file, or "off". Nothing of CUDA is needed to build.
// Without it every call returns an error matching vk.ErrUnsupported. Kernels are
// loaded when they are first used: machine code for sm_90, for other devices PTX,
// which the driver compiles and keeps in a cache of its own.
//
// # Sharing
//
// [Open] gives the [Context] of a Vulkan device: the CUDA device of the same UUID.
// A Vulkan buffer made with Exportable has a [Context.Address] in CUDA; CUDA memory
// from [Context.Alloc] is a Vulkan buffer by [Memory.Buffer]. [Context.Turn] puts
// CUDA work of the caller's own between two pieces of work of a Vulkan stream, and
// [Context.ImportTimeline] lets CUDA streams and Vulkan streams wait for each other
// in any other way.
//
// File descriptors: what an ExportFD method returns is the caller's to close, until
// an import succeeds, which takes it over; an import that fails leaves it to the
// caller. The methods that carry a descriptor from one API to the other themselves
// (Address, Buffer, ImportTimeline) leave none open, whether they succeed or not.
//
// # Concurrency and lifetime
//
// A Context, Memory and kernels may be used by many goroutines, on any thread: each
// operation is one C function that makes the context current for as long as it
// takes. A [Stream] has one owner at a time.
//
// A Context belongs to its Vulkan device and ends with it: vk.Device.Close waits for
// CUDA's work too, and later calls return errors matching vk.ErrClosed. Buffers that
// tier cuda works on are held until it has finished. The end of a [Memory] and of
// the buffers made of it may come in any order.
//
// # Errors
//
// An *[Error] has the operation and the driver's code, and matches the sentinels of
// package vk. After an error that loses the device, such as an illegal address in a
// kernel, CUDA does nothing more in the process; calls return that error, Vulkan
// work that waited for CUDA's is let go, and its stream's Wait returns the error.
//
// # Examples
//
// cudapath/example_test.go has Example (tier cuda) and ExampleContext_Turn (CUDA work of
// the caller's own and a Vulkan tier in one stream); attention/examples/cudashare is a
// whole program.
package cudapath
