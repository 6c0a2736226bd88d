package attention

import "vkattn/internal/problem"

// Types that this package shares with the parts of the library below it. A type with methods or
// hidden fields is one of package problem; its comment here has its fields and methods.

type (
	// DType is the storage type of Q, K, V and O. Accumulation is float32 for all.
	//
	//	func (t DType) Size() int                         // bytes of an element; 0 for an invalid DType
	//	func (t DType) Decode(dst []float32, src []byte)  // widens len(dst) little-endian elements
	//	func (t DType) Encode(dst []byte, src []float32)  // rounds to nearest even
	DType = problem.DType

	// KVType is the storage type of K and V. The zero value is the type of Q and O. The others
	// are quantized; kernels convert them to the storage type.
	//
	//	func (t KVType) Scaled() bool                         // elements have separate scales
	//	func (t KVType) Blocked() bool                        // rows are blocks with their scales
	//	func (t KVType) Latent() bool                         // a block is a row of K of latent attention, else 32 elements
	//	func (t KVType) Unit() int                            // elements of a block, else 1
	//	func (t KVType) PairedWith(u KVType) bool             // K and V may have the types t and u
	//	func (t KVType) RowBytes(d DType, elements int) int   // d is the storage type for KVSame
	KVType = problem.KVType

	// Causal says which keys a query row may attend to. With Sq == Sk TopLeft and
	// BottomRight are the same; otherwise they differ and the caller must say which is meant.
	//
	//	func (c Causal) Visible(row, sq, sk int) int  // a row attends to keys 0 to Visible-1
	Causal = problem.Causal

	// Scale multiplies Q Kᵀ before the softmax. The zero value is the usual 1/sqrt(HeadDim);
	// [ScaleOf] fixes any other finite number, 0 and negative ones included.
	//
	//	func (s Scale) IsDefault() bool
	//	func (s Scale) Value(headDim int) float32
	Scale = problem.Scale

	// Window limits each row to the keys near its own position: with Left and Right keys to
	// either side, the row at position i attends to keys i-Left to i+Right that the causal mask
	// and the length allow. The zero value is no window; [WindowOf] makes one. [Config].Causal
	// aligns rows with keys, or Config.Align without a causal mask.
	//
	//	func (w Window) Given() bool  // it limits a side
	//	func (w Window) Left() int    // -1: no limit
	//	func (w Window) Right() int   // -1: no limit
	Window = problem.Window

	// Tier names an implementation. The tiers that a device supports follow from its reported
	// capabilities, never from its vendor. Each tier can be forced.
	//
	//	func (t Tier) Auto() bool          // it names no tier: a plan chooses one
	//	func (t Tier) WithoutSPIRV() bool  // it has no tiles to tune and no Vulkan dispatches
	Tier = problem.Tier

	// Access selects how kernels reach tensors.
	Access = problem.Access

	// Tuning selects how the tile of a kernel is chosen: how many query rows and keys a
	// workgroup processes, and how it divides them. It changes speed, and the last bits of a
	// result, because tiles sum in different orders.
	//
	// Only TuningOff guarantees the same bits for the same device, build and Config. With the
	// others the tile also depends on the user's tuning cache, so the guarantee holds as long
	// as nobody tunes. A process reads the cache once per device; results that other processes
	// store do not affect it. An Op changes its tile for a class of shapes only by its own
	// Tune, or with TuningOn before the first result of the class. The class depends on all
	// sizes, so with tuned tiles a row's last bits may depend on its batch.
	Tuning = problem.Tuning

	// Experiment changes the kernel for a measurement: see [NewExperiment].
	Experiment = problem.Experiment

	// ShapeError says which field of a Config, Shape or Args is wrong. It matches [ErrInvalid].
	//
	//	Field string  // for example "HeadDim", "Sq" or "O.Strides.Seq"
	//	Got   any     // the caller's value, or a phrase that describes it
	//	Want  any     // the accepted value, or a phrase that describes it
	ShapeError = problem.ShapeError
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

// Storage of K and V. Int8 and the two FP8 types have separate scales, [Args].KScale and VScale: an
// element is the stored number times its scale. The cooperative-matrix tiers round that
// product only where K and V are converted in front of the kernel, to bfloat16 ([Plan].Notes say
// so); else a scale of V below 2^-96 counts as 2^-96 there. The blocked types have a
// scale for every 32 elements within the row, as in ggml; HeadDim and HeadDimV must be
// multiples of 32. KVFP8DSMLA has its scales within the row too.
const (
	KVSame    = problem.KVSame    // as DType
	KVInt8    = problem.KVInt8    // signed bytes
	KVFP8     = problem.KVFP8     // float8 e4m3 (OCP, finite only): 1 sign, 4 exponent (bias 7), 3 mantissa bits
	KVQ8_0    = problem.KVQ8_0    // 34 bytes for 32 elements: an f16 scale, then 32 signed bytes
	KVQ4_0    = problem.KVQ4_0    // 18 bytes for 32 elements: an f16 scale, then 16 bytes; byte i has element i in its low half and i+16 in its high one, each less 8
	KVQ4_1    = problem.KVQ4_1    // 20 bytes for 32 elements: an f16 scale, an f16 minimum, then 16 bytes as in KVQ4_0; element = scale * number + minimum
	KVQ5_0    = problem.KVQ5_0    // 22 bytes for 32 elements: an f16 scale, 32 fifth bits, then 16 bytes as in KVQ4_0; each number less 16
	KVQ5_1    = problem.KVQ5_1    // 24 bytes for 32 elements: an f16 scale, an f16 minimum, 32 fifth bits, then 16 bytes; element = scale * number + minimum
	KVIQ4NL   = problem.KVIQ4NL   // 18 bytes for 32 elements as KVQ4_0, but numbers are entries of a table from -127 to 113
	KVFP8E5M2 = problem.KVFP8E5M2 // float8 e5m2: 1 sign, 5 exponent (bias 15), 2 mantissa bits, with Inf and NaN
	// 656 bytes for a row of K of latent attention, as in FlashMLA and vLLM: 512 float8 e4m3, a float32 scale of each
	// 128 of them, 64 bfloat16. HeadDim is 576, HeadDimV 512, and V is the tensor of K.
	KVFP8DSMLA = problem.KVFP8DSMLA
)

// Values of [Config].KVBlock, other than a number of keys.
const (
	KVBlockHead   = problem.KVBlockHead   // a scale for each KV head, of all keys of all sequences: KScale and VScale are [Hkv]
	KVBlockTensor = problem.KVBlockTensor // one scale: KScale and VScale are [1]
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

// Tiers. The zero value picks the fastest one for a call (see the package comment).
const (
	TierAuto     = problem.TierAuto
	TierCPU      = problem.TierCPU      // the host, without a device
	TierScalar   = problem.TierScalar   // Vulkan 1.1 core
	TierCoopMat  = problem.TierCoopMat  // VK_KHR_cooperative_matrix
	TierCoopMat2 = problem.TierCoopMat2 // VK_NV_cooperative_matrix2
	TierCubin    = problem.TierCubin    // a CUDA kernel in the Vulkan command buffer (VK_NVX_binary_import)
	TierCUDA     = problem.TierCUDA     // a CUDA kernel on the same buffers
	TierNoCUDA   = problem.TierNoCUDA   // TierAuto without tiers cubin and cuda, whose bits differ
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
