// Package attention computes exact scaled dot-product attention,
//
//	O = softmax(scale * Q Kᵀ, masked) V    per (batch, query head),
//
// without ever storing the matrix of scores, on any Vulkan device or on the
// CPU. The method is the tiled online softmax of Dao et al., "FlashAttention:
// Fast and Memory-Efficient Exact Attention with IO-Awareness" (2022), with
// the loop order of "FlashAttention-2" (2023).
//
// # Shapes
//
// A problem is a [Shape] (B, Hq, Hkv, Sq, Sk) and a [Config] (storage type,
// head dimensions, mask, scale). Its tensors are
//
//	Q   [B, Hq,  Sq, HeadDim]
//	K   [B, Hkv, Sk, HeadDim]
//	V   [B, Hkv, Sk, HeadDimV]
//	O   [B, Hq,  Sq, HeadDimV]
//	LSE [B, Hq,  Sq]              float32, natural logarithm, optional
//
// Query head h reads key head h / (Hq / Hkv), so Hkv == Hq is multi-head,
// Hkv == 1 multi-query and anything between grouped-query attention. Lengths
// need not be multiples of anything. Every tensor but LSE has its own element
// [Strides]; only the innermost dimension must be contiguous.
//
// The O and LSE of a row over some keys are its attention state; [Merge] puts the
// states of disjoint keys together. [Append] puts new keys and values into a cache,
// with rotary embedding and quantised where the cache is.
//
// # Numbers
//
// Scores, sums and the output are accumulated in float32 whatever the storage
// type; a float32 problem also multiplies in float32. O is rounded to the
// storage type once, at the end.
//
// A slot is masked when the causal rule excludes it and out of length when it
// lies beyond Sk. Such a slot never changes a bit of the result, whatever K and
// V hold there, NaN and Inf included. A row with nothing to attend to gives
// O = 0 and LSE = -Inf.
//
// In the slots a row does attend to, values follow IEEE 754 as in the plain
// formula:
//
//   - a score of NaN or +Inf makes the row's O and LSE NaN;
//   - a score of -Inf has weight 0, and a row of nothing but -Inf scores is a
//     row with nothing to attend to;
//   - an Inf or NaN in V reaches its column of O in every row that gives it
//     weight. Where that weight is 0, by a score of -Inf or by underflow in
//     float32, the column may be NaN or not.
//
// The same build, device and Config give the same bits on every run, on a device
// for as long as nobody tunes it (see [Tuning]; [TuningOff] needs no such clause); on the
// CPU the bits do not depend on GOMAXPROCS, nor on what else is in the batch.
//
// # CUDA
//
// A program that imports vkattn/cudapath has [TierCUDA] on an NVIDIA GPU: kernels in
// CUDA that work on the same Vulkan buffers, made with vk.BufferOptions.Exportable.
// It runs when asked for, or when [Config].AllowCUDA lets [TierAuto] take it, and
// takes its turn between what a stream has recorded and what it records later; it
// cannot record into a command buffer. What keeps it from a call is in the error, or
// in the Plan of the tier that runs instead.
//
// # Ownership, concurrency and errors
//
// Tensors belong to the caller. Host slices are not kept after the call that
// takes them. Functions and methods of values (Config, Shape, Plan, ...) are
// safe for concurrent use; concurrent calls must not write the same output.
//
// Anything wrong with a Config, a Shape or Args is a [*ShapeError] that names
// the field; a combination that is well-formed but that the tier asked for cannot
// compute matches [ErrUnsupported]. Nothing is silently computed another way.
package attention
