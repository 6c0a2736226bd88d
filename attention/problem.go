package attention

import (
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// This file names the types of package problem here, so that a program imports one package,
// and the functions that check and convert what they describe.

// Types that say what is computed. Package problem documents fields and methods.
type (
	// Config says what to compute, except for sizes.
	Config = problem.Config
	// Shape holds the sizes of a problem.
	Shape = problem.Shape
	// DType is the storage type of Q, K, V and O.
	DType = problem.DType
	// KVType is the storage type of K and V.
	KVType = problem.KVType
	// Causal says which keys a query row may attend to.
	Causal = problem.Causal
	// Scale multiplies Q Kᵀ before the softmax.
	Scale = problem.Scale
	// Window limits each row to the keys near its own position.
	Window = problem.Window
)

// Storage types. The zero value is F16.
const (
	F16  = problem.F16  // IEEE 754 binary16
	BF16 = problem.BF16 // bfloat16: the upper half of a float32
	F32  = problem.F32  // IEEE 754 binary32
)

// DTypes lists every storage type.
func DTypes() []DType { return problem.DTypes() }

// ParseDType reads what String writes, and the usual other spellings
// (fp16, half, float16, bfloat16, fp32, float, float32), in any case. Another word is
// an error that lists the names and matches [ErrInvalid].
func ParseDType(s string) (DType, error) { return problem.ParseDType(s) }

// Storage of K and V. Int8 and FP8 have separate scales, [Args].KScale and VScale: an
// element is the stored number times its scale. The cooperative-matrix tiers never round
// that product; there a scale of V below 2^-96 counts as 2^-96. The blocked types have a
// scale for every 32 elements within the row, as in ggml; HeadDim and HeadDimV must be
// multiples of 32.
const (
	KVSame = problem.KVSame // as DType
	KVInt8 = problem.KVInt8 // signed bytes
	KVFP8  = problem.KVFP8  // float8 e4m3 (OCP, finite only): 1 sign, 4 exponent (bias 7), 3 mantissa bits
	KVQ8_0 = problem.KVQ8_0 // 34 bytes for 32 elements: an f16 scale, then 32 signed bytes
	KVQ4_0 = problem.KVQ4_0 // 18 bytes for 32 elements: an f16 scale, then 16 bytes; byte i has element i in its low half and i+16 in its high one, each less 8
)

// KVTypes lists every KVType.
func KVTypes() []KVType { return problem.KVTypes() }

// ParseKVType reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseKVType(s string) (KVType, error) { return problem.ParseKVType(s) }

// Masks. The zero value attends to every key.
const (
	CausalNone  = problem.CausalNone
	TopLeft     = problem.TopLeft     // col <= row: row 0 sees key 0
	BottomRight = problem.BottomRight // col <= row + Sk - Sq: the last row sees the last key
)

// ParseCausal reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseCausal(s string) (Causal, error) { return problem.ParseCausal(s) }

// ScaleOf is a Scale of exactly v. Config.Validate refuses NaN and Inf.
func ScaleOf(v float32) Scale { return problem.ScaleOf(v) }

// WindowOf is a Window of left keys before and right keys after a row's position; a
// negative number means no limit on that side.
func WindowOf(left, right int) Window { return problem.WindowOf(left, right) }

// Types that say how it is computed. Package problem documents fields and methods.
type (
	// Tier names an implementation.
	Tier = problem.Tier
	// Access selects how kernels reach tensors.
	Access = problem.Access
	// Tuning selects how the tile of a kernel is chosen.
	Tuning = problem.Tuning
	// Plan says how a problem will be computed and why.
	Plan = problem.Plan
	// Rejection is a tier that was not used.
	Rejection = problem.Rejection
	// BackwardPlan says how the gradients of a problem will be computed and why.
	BackwardPlan = problem.BackwardPlan
	// PlanKernel is one kernel of a [BackwardPlan].
	PlanKernel = problem.PlanKernel
	// TierStatus says whether a tier can run a storage type on a device.
	TierStatus = problem.TierStatus
)

// Tiers. The zero value picks the best one the device supports.
const (
	TierAuto     = problem.TierAuto
	TierCPU      = problem.TierCPU      // the host, without a device
	TierScalar   = problem.TierScalar   // Vulkan 1.1 core
	TierCoopMat  = problem.TierCoopMat  // VK_KHR_cooperative_matrix
	TierCoopMat2 = problem.TierCoopMat2 // VK_NV_cooperative_matrix2
	TierCubin    = problem.TierCubin    // a CUDA kernel in the Vulkan command buffer (VK_NVX_binary_import)
	TierCUDA     = problem.TierCUDA     // a CUDA kernel on the same buffers
)

// ParseTier reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseTier(s string) (Tier, error) { return problem.ParseTier(s) }

// Accesses. AccessAddresses needs bufferDeviceAddress and buffers with an address; it
// reaches tensors of any size without descriptor sets. AccessDescriptors works on every
// device; a binding spans at most maxStorageBufferRange bytes, so larger problems are
// split by batch.
const (
	AccessAuto        = problem.AccessAuto        // addresses if the device and the buffers have them
	AccessAddresses   = problem.AccessAddresses   // buffer device addresses only
	AccessDescriptors = problem.AccessDescriptors // storage buffer descriptors only
)

// Tunings.
const (
	// TuningAuto uses the tile that the user's cache has for this device, driver, kernel
	// and class of shapes. Without one it uses the tile of TuningOff. It never times
	// anything.
	TuningAuto = problem.TuningAuto
	// TuningOff uses the tile of a fixed table, which is the same on every machine with the
	// same kind of device.
	TuningOff = problem.TuningOff
	// TuningOn is TuningAuto, and tunes a class of shapes on its first use if the cache does
	// not have it. The first Forward, Record or Prepare of the class then takes seconds, at
	// most about a minute, and device memory for a second set of tensors. The result is
	// stored. If tuning fails for lack of memory or time, the heuristic's tile is used and
	// the plan has a note. A lost device is an error.
	TuningOn = problem.TuningOn
)

// ParseTuning reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseTuning(s string) (Tuning, error) { return problem.ParseTuning(s) }

// Tensors of a call. Package problem documents fields and methods.
type (
	// Args are the tensors of one call.
	Args = problem.Args
	// Tensor names the memory of a tensor: a device buffer or host memory, exactly one of the two.
	Tensor = problem.Tensor
	// Strides are the distances in elements between neighbours in each outer dimension.
	Strides = problem.Strides
	// Vector is a contiguous array of 32-bit elements, int32 or float32 depending on its use.
	Vector = problem.Vector
	// HostView reads and writes the rows of a host tensor as float32, for any storage type and strides.
	HostView = problem.HostView
	// BackwardArgs are the tensors of one backward call.
	BackwardArgs = problem.BackwardArgs
	// Gradients are the results of [ReferenceBackward], packed.
	Gradients = problem.Gradients
)

// BHSD returns the strides of the packed layout [batch, head, row, dim].
func BHSD(heads, seq, dim int) Strides { return problem.BHSD(heads, seq, dim) }

// BSHD returns the strides of the packed layout [batch, row, head, dim].
func BSHD(heads, seq, dim int) Strides { return problem.BSHD(heads, seq, dim) }

// ViewHost makes a view of a host tensor [batch, heads, seq, dim] that shares its memory. A
// tensor in a device buffer gives an error that matches [ErrUnsupported]. Access to rows
// outside of the memory panics; [CheckArgs] checks that beforehand.
func ViewHost(t Tensor, dtype DType, heads, seq, dim int) (HostView, error) {
	return problem.ViewHost(t, dtype, heads, seq, dim)
}

// Options of a call. Package problem documents fields.
type (
	// Varlen gives each sequence of a batch its own length, at most the Shape's Sq and Sk.
	Varlen = problem.Varlen
	// Pages is the layout of a paged KV cache.
	Pages = problem.Pages
	// SparseTokens lists, per sequence and key head, the tokens that its rows attend to.
	SparseTokens = problem.SparseTokens
	// Blocks is a bitmap over blocks of BlockQ rows and BlockK keys.
	Blocks = problem.Blocks
	// Bias is added to the scores after the scale and the softcap.
	Bias = problem.Bias
	// Mask excludes slots in addition to lengths, causal mask and window.
	Mask = problem.Mask
)

// Rows and sequences of a call. Package problem documents fields.
type (
	// Rows names some query rows of one (batch, query head), in any order.
	Rows = problem.Rows
)

// Changes of a kernel for measurements. Package problem documents fields and methods.
type (
	// Experiment changes the kernel for a measurement.
	Experiment = problem.Experiment
)

// ShapeError says which field of a Config, Shape or Args is wrong.
type ShapeError = problem.ShapeError

// Sources of a tile, as Plan.Tuning names them.
const (
	TileHeuristic = problem.TileHeuristic // the fixed table
	TileCached    = problem.TileCached    // tuned by an earlier process
	TileTuned     = problem.TileTuned     // tuned by this process
	TileNamed     = problem.TileNamed     // named by Experiment.Tile or Experiment.BackwardTiles
)

// MaxFastScore bounds the magnitude of the row max that tiers coopmat and coopmat2
// compute correctly when scores are scaled products without bias, softcap or ALiBi.
// Beyond it float32 rounding would make P overflow or vanish, and these tiers give NaN: in
// the row's O and LSE, and in the gradients that it has a part in. With split keys the
// bound holds for the row max of each split that has weight. Other tiers have no such
// bound. TierAuto leaves calls with a scale over 2^20 to them.
const MaxFastScore = problem.MaxFastScore

// MaxHeadDim bounds HeadDim and HeadDimV independently. A few larger pairs, which latent
// attention (MLA) uses for decoding, are accepted too.
const MaxHeadDim = problem.MaxHeadDim

// MaxLength bounds every size of a Shape, so that row numbers fit the 32-bit
// integers of a shader.
const MaxLength = problem.MaxLength

// MaxStates is the largest number of states in one merge.
const MaxStates = problem.MaxStates

// ErrInvalid matches errors for arguments that no tier accepts, every [ShapeError] among
// them, and errors of objects that are nil or not made by this package. Such errors also
// match [vk.ErrInvalid].
var ErrInvalid error = problem.ErrInvalid

// ErrUnsupported matches errors for well-formed problems that the tier or the device
// cannot compute. Such errors also match [vk.ErrUnsupported]. Options that no tier computes
// together match [ErrInvalid] too.
var ErrUnsupported error = problem.ErrUnsupported

// CUDAKernels lists the families of kernels of tier cuda, the fastest first.
func CUDAKernels() []string { return problem.CUDAKernels() }

// AllRows is the sample of all rows, in the order of packed [B, Hq, Sq]. It is nil if the
// list does not fit the host's memory.
func AllRows(s Shape) []Rows { return tensors.AllRows(s) }

// CheckArgs reports the first error in a call as a *ShapeError. It checks the Config
// and the Shape, missing memory, mixed host and device memory, negative offsets and
// strides, memory too short for the last row (without overflow), overlapping rows of O,
// and O or LSE overlapping another tensor. It checks the options of Args in the same
// way but reads no vector. For options that no tier computes together the ShapeError
// matches [ErrUnsupported] too. Every tier calls CheckArgs before it accesses memory.
//
// Overlap is judged from addresses and strides alone, and exactly: tensors may be
// interleaved, for example O with Q, or DQ, DK and DV in one tensor [B, S, 3, H, D]. The
// check gives up, and refuses, where strides are of so little order that it would take
// long. Two buffers that alias the same device memory are not recognized as one.
func CheckArgs(cfg Config, a Args) error { return tensors.CheckArgs(cfg, a) }

// DecodeKV returns the elements that EncodeKV's result represents, in float32, packed
// [batches, heads, keys, dim]. Sizes that do not match give a *ShapeError.
func DecodeKV(t KVType, block, batches, heads, keys, dim int, data, scales []byte) ([]float32, error) {
	return tensors.DecodeKV(t, block, batches, heads, keys, dim, data, scales)
}

// EncodeKV quantizes K or V. x is packed [batches, heads, keys, dim], and so is data. For
// pages, batches are pages and keys is PageSize; for packed sequences, batches is 1 and keys
// is TotalK. For Scaled types scales are the float32 of Args.KScale or VScale, one for block
// consecutive keys of a head (0: 1, as in Config.KVBlock). Each maps the largest magnitude
// of its elements to the type's largest number. For other types scales is nil. Package
// quant documents the rounding.
func EncodeKV(t KVType, block, batches, heads, keys, dim int, x []float32) (data, scales []byte, err error) {
	return tensors.EncodeKV(t, block, batches, heads, keys, dim, x)
}
