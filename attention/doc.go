// Package attention computes exact scaled dot-product attention,
//
//	O = softmax(scale * Q Kᵀ, masked) V    per (batch, query head),
//
// on any Vulkan device or on the CPU, without storing the matrix of scores. It uses the
// tiled online softmax of Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
// Attention with IO-Awareness" (2022), with the loop order of "FlashAttention-2" (2023).
//
// A program opens a [Device] with [Open], a GPU or the CPU, makes an [Op] with [New] and
// tensors with [Device.Tensor], and calls [Op.Forward]. [On] takes a Vulkan device of the
// program's own. "go doc attention.Tensor" shows fields and methods, and so for every type,
// in its comment where it is an alias. Package attention/merge merges states, package
// attention/kvcache holds and fills KV caches.
//
// # Shapes
//
// A problem is a [Shape] (B, Hq, Hkv, Sq, Sk) and a [Config] (storage type, head
// dimensions, mask, scale). Its tensors are
//
//	Q   [B, Hq,  Sq, HeadDim]
//	K   [B, Hkv, Sk, HeadDim]
//	V   [B, Hkv, Sk, HeadDimV]
//	O   [B, Hq,  Sq, HeadDimV]
//	LSE [B, Hq,  Sq]              float32, natural logarithm, optional
//
// Query head h reads key head h / (Hq / Hkv): Hkv == Hq is multi-head attention,
// Hkv == 1 multi-query, anything between grouped-query. Lengths need not be multiples of
// anything. Every tensor but LSE has its own element [Strides]; only the innermost
// dimension must be contiguous.
//
// The O and LSE of a row over a set of keys are its attention state. Package merge merges
// the states of disjoint sets of keys. Package kvcache writes new keys and values into a KV
// cache, with rotary embedding and quantization.
//
// # Gradients
//
// [Op.Backward] computes the gradients of Q, K, V, Bias and Sinks from the gradients of O
// and LSE. Every tier but cubin has backward kernels and gives the same bits in every run.
// Family ref of tier cuda is slow and serves for validation. [ReferenceBackward] computes
// gradients in float64 on the CPU. It defines what a backward pass computes.
//
// # Options
//
// Config and Args have options for more than dense attention. Options that are the same
// for every call are in [Config]: Window, AttentionChunk, Align, Softcap, Dropout and KV.
// Options with memory are in [Args]: lengths and packing of sequences ([Varlen]), a paged
// KV cache ([Pages]), lists of tokens ([SparseTokens]), bitmaps of [Blocks], [Mask],
// [Bias], ALiBi slopes, sinks, and scales of quantized K and V. They combine freely, except
// that a call has at most one of SparseTokens and Blocks, and one of Window and
// AttentionChunk. If a tier lacks a combination, its error names the combination.
//
// Let row r of sequence b have position i = r + offset among its keys. Config.Causal
// selects the offset, or Config.Align without a causal mask: 0 for TopLeft, and the number
// of keys of b minus its number of rows for BottomRight. The score of key j is
//
//	s = scale * q·k;  s = softcap * tanh(s / softcap);  s += bias - slope * |i - j|
//
// The row attends to key j if all of these hold: j is below the sequence's length; j <= i
// with Causal; i - Left <= j <= i + Right with a Window; j >= i - i mod n with an
// AttentionChunk n; Mask's byte is not 0; Blocks' bit is 1; SparseTokens lists j. A key that
// is listed n times counts n times. A sink adds e^sink to the row sum, and so to LSE, and
// adds nothing to O: a row without keys has O = 0 and LSE = sink. Lengths, masks and lists
// belong to sequences: a row's result depends on its own sequence only.
//
// Dropout, for training, comes after the softmax: each weight P is dropped with
// probability Config.Dropout, and the others are multiplied by 1 / (1 - Dropout). LSE does
// not change: it is the LSE of the softmax before dropout. [DropoutMask] returns and
// defines the mask. The mask depends only on row, key, head, sequence, Args.DropoutSeed
// and Args.DropoutOffset. So it is the same in Forward and Backward, on every tier, and
// for packed, padded and paged sequences, splits and lists. A key that a list has twice is
// dropped in both or in none. Backward computes the gradients of the call with this mask;
// a dropped slot has weight 0. A probability of 1 is refused, and so are quantized K and
// V.
//
// A call checks the numbers in int32 vectors that lie in host memory: a length, a
// cumulative length or a page out of its range is an error that names it. In device
// memory it does so with Config.Check, or if [CheckEnv] is 1. Otherwise kernels clamp starts
// and ends to 0..Total and lengths to 0..Sq or 0..Sk, and read a page that does not exist as
// page 0. A token that does not exist has weight 0 in both. So kernels never access memory
// outside of the tensors.
//
// # Numbers
//
// Scores, sums and the output are accumulated in float32 for every storage type, and a
// float32 problem multiplies in float32, or on tiers coopmat and coopmat2 as sums of three
// bfloat16 terms, to the same accuracy; the plan has a note of it. O is rounded to the
// storage type once, at the end. Tiers that multiply matrices in the storage type round each P
// to it, and so does tier cpu where V and O are bfloat16; Config.F32O keeps its P in float32.
// O is divided by the sum of the rounded P, and LSE has P before that rounding.
//
// A slot is masked if the causal rule, the window, a mask, a bitmap or a list excludes
// it. It is out of length if it lies beyond Sk or its sequence's length. Such a slot never
// changes a bit of the result, whatever K, V and their scales hold there, NaN and Inf
// included. A row with nothing to attend to gives O = 0 and LSE = -Inf, or its sink.
//
// In the slots that a row attends to, values follow IEEE 754 as in the plain formula:
//
//   - A score of NaN or +Inf makes the row's O and LSE NaN. So does such a sink.
//   - A score of -Inf has weight 0, even if a bias causes it. A row whose scores are all
//     -Inf counts as a row with nothing to attend to.
//   - A scale of K that is Inf, or below 2^-100, may make a score NaN where it would be
//     infinite. A Config.Scale of 0 counts as 2^-100.
//   - Scores have the precision of float32. On tiers coopmat and coopmat2 a row whose
//     products pass [MaxFastScore] is NaN. On these two tiers and cubin, with int8 or float8 and a
//     scale per key, exponents of weights are off by 2^-24 of the row max: the exponent of
//     V's scale is added to the score, so that the KV loop needs no multiplication. So if a
//     bias makes all scores of a row finfo(float32).min, O is an average of V but not its
//     mean there.
//   - An Inf or NaN in V reaches its column of O in every row that gives it weight. If
//     that weight is 0, because the score is -Inf or by underflow in float32, the column
//     may be NaN or not.
//
// The same build, device and Config give the same bits on every run. On a device this
// holds until somebody tunes it (see [Tuning]), and with [TuningOff] always. On the CPU
// the bits depend neither on GOMAXPROCS nor on the rest of the batch. CPUs with AVX512-BF16,
// AVX-512, AVX2 and FMA, or NEON give the same bits with the same C library; CPUs without fused
// multiply-add give others. A build without cgo gives the same bits on every CPU. Its LSE, its
// rows with a sink and its rows with a score beyond 2^18 use package math in place of the C
// library and may differ from those of a build with cgo in the last bit.
//
// # The fastest tier, and CUDA
//
// [TierAuto] takes the tier that is the fastest for a call by estimate: a table of what each
// kernel takes on an H200, its tile, and the number of multiprocessors. [Plan] tells the
// estimates. A program that imports vkattn/cudapath gives it two more tiers on an NVIDIA GPU,
// for dense attention in f16 and bf16; [TierNoCUDA] leaves them out, since the bits of tiers
// differ.
//
// [TierCubin] has CUDA kernels inside the Vulkan command buffer, on a device with
// VK_NVX_binary_import. It needs no CUDA at run time, works on any buffer with a device
// address, and records into a caller's commands. All strides and offsets are multiples of 8
// elements. It has no gradients. On Hopper it takes head dims to 192. On Ampere and Ada it
// takes head dims to 128 and runs only if Config.Tier names it: cooperative matrices are
// faster there. With quantized K and V it computes decode on Hopper if Config.Tier names it: up
// to 8 rows a sequence, head dims 64, 128 and 256, lengths, pages of multiples of 16 keys, and
// scales, with K, V and O aligned to 4 bytes, 4 bytes and 4 elements. It refuses other options.
//
// [TierCUDA] works on the same Vulkan buffers, made with vk.BufferOptions.Exportable; calls
// with others run on other tiers. Its work runs after everything that the stream has recorded
// and before everything that the stream records later, and the GPU takes about 0.2 ms to
// change between the two (an H200). It cannot record into a command buffer. If a tier that
// Config.Tier names cannot compute a call, the error says why. If another tier runs instead,
// its Plan says why.
//
// # Ownership, concurrency and errors
//
// Tensors belong to the caller. A call does not retain host slices after it returns.
// Functions and methods of values (Config, Shape, Plan, ...) are safe for concurrent use;
// concurrent calls must not write the same output.
//
// A wrong Config, Shape or Args gives a [*ShapeError] that names the field. A well-formed
// combination that the requested tier cannot compute gives an error that matches
// [ErrUnsupported]; nothing is silently computed another way. Options that no tier computes
// together give a ShapeError that matches ErrUnsupported too. Methods of nil and zero
// operations return errors that match [ErrInvalid], as every ShapeError does, and methods
// of closed ones return errors that match vk.ErrClosed. A call that does not fit in memory
// gives an error that matches vk.ErrOutOfMemory. Nothing panics except what says
// so: the conversions of rows panic like loops over slices.
//
// # Examples
//
// These programs are in the repository:
//
//	attention/examples/quickstart   start here: tensors, a device or the CPU, one call
//	attention/examples/decode       prompts and decode steps over a KV cache
//	attention/examples/transformer  a small transformer that generates text over a KV cache with a shared prompt
//	attention/examples/owndevice    a Vulkan device, a queue and a command buffer that the program owns
//	attention/examples/cudashare    tensors in CUDA memory
//	attention/examples/train        a small transformer that trains, forward and backward
//	attention/examples/timing       the device time of a call
//
// These functions are in attention/example_test.go:
//
//	ExampleNew          the CPU tier on host memory
//	ExampleOp_Forward   buffers and a stream of a Vulkan device
//	ExampleOp_Tune      the fastest tile of a shape, stored for later runs
//	ExamplePages        sequences of different lengths in a paged KV cache
//	ExampleEncodeKV     quantized K and V
//	ExampleShapeError   what errors match
//
// attention/merge has an example of states of disjoint sets of keys, attention/kvcache one of a
// step of decoding.
package attention
