// Package cudapath runs CUDA on the GPU of a Vulkan device: attention kernels in CUDA C++
// that work on the memory of Vulkan buffers, and memory and semaphores that both APIs
// share, without copies and without waiting on the host.
//
// # Tier cuda
//
// Importing the package adds tier cuda to package attention:
//
//	import _ "vkattn/cudapath"
//
//	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 128, Tier: attention.TierCUDA})
//	q, err := dev.NewBuffer(size, vk.BufferOptions{Exportable: true})
//	err = op.Forward(stream, attention.Args{Shape: shape, Q: attention.Tensor{Buffer: q}, ...})
//	err = stream.Wait(ctx)
//
// Forward submits the work that the Vulkan stream has recorded and launches a kernel on a
// CUDA stream that waits for it. The next batch of the Vulkan stream waits for the kernel.
// Config.Kernel selects a family of kernels. Without it, Forward uses the first of these
// that supports the problem:
//
//	fa3      sm_90: tensor memory accelerator (TMA) and warpgroup MMA, as FlashAttention-3
//	fa2      sm_80 and newer, as FlashAttention-2
//	fa2_any  fa2 for any alignment: loads single elements, at about half the speed
//	ref      float32 arithmetic, for validation and for float32 tensors
//
// Calls in f16 and bf16 may have varlen, a window, a softcap, ALiBi, sinks and a block
// table. A kernel of fa2 takes every combination of them, at any alignment; without Vulkan,
// or with Config.Tier, Forward runs it. The other families refuse such calls, but for latent
// attention: fa3 has a kernel for head dims 576/512, one KV head and V in the memory of K, with
// and without varlen and a block table, and two for lists of sparse tokens for each row, of one length and with offsets. They
// keep states of splits in scratch memory.
//
// Backward uses the first of the same families that supports the problem. They also support
// varlen, a window and a softcap. Backward keeps statistics of the rows in scratch memory that
// is freed with the stream, and for fa3 and fa2 a float32 dQ there, or dS for fa3 above head
// dim 128.
//
// The Plan says why the families before the chosen one do not run. Shapes, strides, units
// and argument errors are the same as in package attention.
//
// # Without Vulkan
//
// [OpenDevice] opens a CUDA device for package attention where there is no Vulkan loader, as in most CUDA containers:
//
//	dev, err := cudapath.OpenDevice(cudapath.DeviceOptions{})
//	q, err := dev.Tensor(attention.F16, 1, 32, 4096, 128)
//	op, err := attention.New(dev, attention.Config{HeadDim: 128, Causal: attention.TopLeft})
//	err = op.Forward(nil, attention.Args{Q: q, K: k, V: v, O: o})
//
// It has the same kernels and plans, and no other tier: what tier cuda does not compute is refused by name. [WrapMemory]
// and [WrapStream] take a CUdeviceptr and a CUstream of the caller's, DeviceOptions.Context his context. Once a call of a
// shape has run on a stream, another neither allocates nor waits, so that a CUDA graph captures it. Backward
// calls, latent attention and decode calls with splits have a workspace: the stream's, or the caller's by [UseWorkspace].
//
// # The driver at run time
//
// The package opens libcuda.so.1 when it is first needed. The environment variable
// VKATTN_LIBCUDA names another file, or disables CUDA if it is "off". A build needs nothing
// of CUDA, and no cgo. Without the driver every call returns an error that matches
// vk.ErrUnsupported.
// A kernel is loaded when it is first used: as machine code on sm_90, and as PTX on other
// devices, which the driver compiles and caches.
//
// # Sharing
//
// [Open] returns the [Context] of a Vulkan device, on the CUDA device with the same UUID.
// [Context.Address] is the CUDA address of a Vulkan buffer made with Exportable.
// [Memory.Buffer] is the Vulkan buffer of CUDA memory from [Context.Alloc].
// [Context.Turn] inserts CUDA work of the caller between two pieces of work of a Vulkan
// stream. With [Context.ImportTimeline] CUDA and Vulkan streams wait for one another in
// any order.
//
// The caller owns the file descriptor that an ExportFD method returns. An import that
// succeeds takes ownership; after a failed one the caller still owns it. Methods that pass
// a descriptor from one API to the other (Address, Buffer, ImportTimeline) leave none open.
//
// Addresses and sizes are in bytes.
//
// # Concurrency and lifetime
//
// A device that OpenDevice opened is closed by its Close, which waits for its own streams.
//
// Context, Memory and kernels are safe for concurrent use, on any thread: each operation
// is a C function that makes the CUDA context current while it runs. A [Stream] is not: it
// has one owner at a time.
//
// A Context belongs to its Vulkan device. vk.Device.Close waits for CUDA's work too and
// closes the Context; later calls return errors that match vk.ErrClosed. Tier cuda holds
// the buffers that it uses until it has finished. A [Memory] and its buffers may be closed
// in any order.
//
// # Errors
//
// An *[Error] has the operation and the driver's code and matches the sentinels of package
// vk. After an error that loses the device, such as an illegal address in a kernel, CUDA
// does not work any more in the process: all calls return that error. Vulkan work that
// waits for CUDA's is released, and Wait of its stream returns the error.
//
// # Examples
//
// example_test.go has Example (tier cuda) and ExampleContext_Turn (CUDA work of the caller
// and a Vulkan tier in one stream). attention/examples/cudashare is a complete program.
package cudapath
