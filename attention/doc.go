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
// # Features
//
// What inference needs besides is in [Config] where it is the same for every call
// (Window, Align, Softcap, KV) and in [Args] where it is memory: lengths and packing
// of sequences ([Varlen]), keys in [Pages], lists of tokens ([SparseTokens]), bitmaps of
// [Blocks], [Mask], [Bias], ALiBi slopes, sinks, scales of quantised K and V. They
// go together in any combination but SparseTokens, Blocks and Mask, of which there is one,
// and a combination that a tier lacks is refused by name.
//
// With row r of sequence b at position i = r + offset among its keys, offset 0 for
// TopLeft and the keys of b less its rows for BottomRight (Causal, or Align where
// there is no causal mask), the score of key j is
//
//	s = scale * q·k;  s = softcap * tanh(s / softcap);  s += bias - slope * |i - j|
//
// and the key counts where all of these hold: j is below the sequence's length; j <= i
// where Causal is set; i - Left <= j <= i + Right; Mask's byte is not 0; Blocks' bit is
// 1; SparseTokens lists it, and as often as it does. A sink adds e^sink to the row's sum and
// to LSE and nothing to O: a row with no key has O = 0 and LSE = sink. Lengths, masks
// and lists are those of sequences: a row's result is that of its sequence alone.
//
// Numbers in int32 vectors are not checked, since they may be in device memory. What
// is out of range is read so that nothing outside of the tensors is touched: starts
// and ends are clamped to 0..Total, lengths to 0..Sq or Sk, a page that does not
// exist is page 0, a token that does not exist has no weight.
//
// # Numbers
//
// Scores, sums and the output are accumulated in float32 whatever the storage
// type; a float32 problem also multiplies in float32. O is rounded to the
// storage type once, at the end.
//
// A slot is masked when the causal rule, the window, a mask, a bitmap or a list
// excludes it, and out of length when it lies beyond Sk or its sequence's length.
// Such a slot never changes a bit of the result, whatever K, V and their scales
// hold there, NaN and Inf included. A row with nothing to attend to gives
// O = 0 and LSE = -Inf, or its sink.
//
// In the slots a row does attend to, values follow IEEE 754 as in the plain
// formula:
//
//   - a score of NaN or +Inf makes the row's O and LSE NaN, and so does such a sink;
//   - a score of -Inf, by a bias too, has weight 0, and a row of nothing but -Inf
//     scores is a row with nothing to attend to;
//   - scores are what float32 holds. Tiers coopmat and coopmat2 take products up to
//     [MaxFastScore]. Where the keys of a row are split, or int8 and float8 with a scale for
//     keys on these two tiers, weights are off by 2^-24 of the row max: a row whose scores are one bias of
//     finfo(float32).min has the mean of V, but in these cases another average;
//   - an Inf or NaN in V reaches its column of O in every row that gives it
//     weight. Where that weight is 0, by a score of -Inf or by underflow in
//     float32, the column may be NaN or not.
//
// The same build, device and Config give the same bits on every run, on a device
// for as long as nobody tunes it (see [Tuning]; [TuningOff] needs no such clause); on the
// CPU the bits do not depend on GOMAXPROCS, nor on what else is in the batch. CPUs with
// AVX-512, AVX2 and FMA, or NEON have the same bits as each other, with the same C
// library; CPUs without fused multiplication and addition have others.
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
// compute matches [ErrUnsupported]. Nothing is silently computed another way. Methods
// of nil and zero operations return errors that match [ErrInvalid], as every ShapeError
// does, and those of closed ones vk.ErrClosed. Nothing panics but what says so: the
// conversions of rows, as loops over slices do.
//
// # Examples
//
// These programs are in the repository:
//
//	attention/examples/quickstart   tensors, a device or the CPU, a call: start here
//	attention/examples/owndevice    a Vulkan device and a command buffer of the program's own
//	attention/examples/cudashare    tensors in CUDA memory
//
// These functions are in attention/example_test.go:
//
//	ExampleNew          the CPU tier on host memory
//	ExampleOp_Forward   buffers and a stream of a device
//	ExampleOp_Tune      the fastest tile of a shape, kept for later runs
//	ExamplePages        sequences of their own lengths with K and V in pages
//	ExampleMerge        states of disjoint keys
//	ExampleAppend       a step of decoding
//	ExampleEncodeKV     quantised K and V
//	ExampleShapeError   what errors match
package attention
