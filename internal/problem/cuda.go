package problem

import (
	"math"

	"vkattn/internal/dropout"
	"vkattn/vk"
)

// CUDA is the backend of tier cuda. Package vkattn/cudapath implements it and registers
// itself when a program imports it. This package depends on nothing else of CUDA. The
// methods are safe for concurrent use.
type CUDA interface {
	// Check reports why a device cannot run tier cuda with a storage type. The error
	// matches vk.ErrUnsupported; nil means it can.
	Check(info *vk.DeviceInfo, t DType) error
	// Choose and ChooseBackward are those of the device's CUDAChooser.
	Choose(dev *vk.Device, p CUDAProblem) (CUDAChoice, error)
	ChooseBackward(dev *vk.Device, p CUDABackwardProblem) (CUDABackwardChoice, error)
	// Reach reports why CUDA cannot use a buffer; nil means it can.
	Reach(b *vk.Buffer) error
}

// CUDAChooser finds kernels for a CUDA device.
type CUDAChooser interface {
	// Choose finds the best kernel for a problem, whatever its Sk. It compiles nothing. If no
	// kernel can compute the problem, the error matches vk.ErrUnsupported and says why.
	Choose(p CUDAProblem) (CUDAChoice, error)
	// ChooseBackward finds the best kernels for the gradients of a problem. It compiles
	// nothing. It returns the same errors as Choose.
	ChooseBackward(p CUDABackwardProblem) (CUDABackwardChoice, error)
}

// CUDAProblem is all that the choice of a kernel depends on.
type CUDAProblem struct {
	Shape
	DType    DType
	HeadDim  int
	HeadDimV int
	Causal   bool
	Align    uint32 // elements: divides every offset, stride and head dimension; 1, 2, 4 or 8
	LSE      bool
	Kernel   string // family asked for; "": the best
	KV       KVType // of K and V: quantized ones have decode kernels alone
	AnyArgs  bool   // stands for calls of any shape
	// Options names the options of a forward call, for which there are kernels of their own; empty: it has none.
	Options string
	// Slots: some of the options are of slots of a row and a key, a bias, a mask or dropout.
	Slots bool
	// VInK: one KV head, and V is the first HeadDimV columns of K, in the same memory. NotLatent names the options of the call
	// that kernels of latent attention do not take, PageSize is its page size, 0 if K is not paged.
	VInK      bool
	NotLatent string
	PageSize  int
	// NotSequences names an option of the call other than lengths and a window; empty: there is none.
	NotSequences string
	// Tokens: each query row has a list of the keys that it attends to, as many entries for each, or Offsets. Kernels of latent attention alone
	// take them.
	Tokens, Offsets bool
	// Rows are the query rows of all sequences. NoDecode says why decode kernels do not take the call; empty: they may.
	Rows     uint64
	NoDecode string
}

// MaxCUDADecodeRows is the most rows of a sequence that decode kernels compute: each row reads the keys anew.
const MaxCUDADecodeRows = 8

// LatentKeys is the keys of a KV tile of the kernels of latent attention, and MaxLatentTiles the most tiles or token lists of all sequences:
// where there is one part, LatentParts of cudapath/kernels/latent_work.h computes twice their number plus twice those of a sequence.
const (
	LatentKeys     = 64
	MaxLatentTiles = 1 << 29
)

// CUDAChoice is the chosen kernel and the reasons.
type CUDAChoice struct {
	Kernel         CUDAKernel
	Name           string // of the entry point
	Family         string // "fa3", "fa2" or "ref"
	Validation     bool   // a slow kernel to validate others with; taken only if the caller asks for tier cuda
	Rows, Cols     uint32 // of a CTA's tile
	Workgroups     uint64
	SharedBytes    uint64
	WorkspaceBytes uint64   // device memory of a call in addition to its tensors
	Rejected       []string // better kernels and why they were not taken
	// Of a decode kernel: CTAs that the device runs at once, by which a plan splits keys, and the head dim of states of splits. 0: the kernel
	// splits none.
	Resident uint64
	StateDim int
}

// CUDAKernel is a kernel on a device.
type CUDAKernel interface {
	// Load makes the kernel ready, so that Launch compiles nothing.
	Load() error
	// Launch launches the kernel on the stream: after what was recorded before and
	// before what is recorded later, without waiting on the host. The stream holds the
	// buffers until the kernel has run.
	Launch(s *vk.Stream, c *CUDACall) error
}

// CUDAVector is memory of a call: a buffer of the Vulkan device that shares the GPU, or memory of a CUDA device without
// one. The zero value means that there is none.
type CUDAVector struct {
	Buffer *vk.Buffer
	Memory *Memory
	Offset uint64 // bytes
}

// Given reports whether v names memory.
func (v *CUDAVector) Given() bool { return v != nil && (v.Buffer != nil || v.Memory != nil) }

// CUDATensor is a tensor of a call: strides in elements.
type CUDATensor struct {
	CUDAVector
	Batch, Head, Row int64
}

// CUDACall holds the arguments of a kernel.
type CUDACall struct {
	Shape                           // with Hkv set
	Tensors           [4]CUDATensor // Q, K, V, O
	LSE               CUDAVector
	HeadDim, HeadDimV int
	CausalOffset      int32 // row r attends to columns up to r + CausalOffset; NoCausal: to all columns
	Scale             float32
	// ScaleLog2 is Scale times log2(e), never 0: a masked score is -Inf and stays so.
	ScaleLog2 float32
	// UnitHigh + UnitLow is |Scale| / |ScaleLog2|. It converts a row max in log2 units to
	// natural units for LSE.
	UnitHigh, UnitLow float32
	CUDAOptions
	Decode CUDADecode
}

// CUDAOptions is what a call with options has in addition. Vectors without memory are not given.
type CUDAOptions struct {
	CuQ, CuK, UsedQ, UsedK CUDAVector
	TotalQ, TotalK         int
	Table                  CUDAVector
	PageSize, Pages        int // 0: not paged
	TableStride            int
	ALiBi, Sinks           CUDAVector
	ALiBiBatch             int        // from the slopes of a sequence to those of the next
	Bias, Mask             CUDATensor // steps of 0 repeat an entry; those of Mask are bytes
	BiasType               DType
	Dropout                dropout.Mask
	DropoutScale           float32    // of the weights that remain
	DropoutState           CUDAVector // moves Dropout
	MaxLogits              CUDAVector // an output
	Tokens                 CUDAVector // lists of TopK keys, one for each query row
	TopK                   int
	Offsets                CUDAVector // in place of TopK: list n is Tokens[Offsets[n]:Offsets[n+1]]
	TokensTotal            int        // entries of Tokens, with Offsets
	BottomRight            bool       // the last row of a sequence is at its last key; otherwise row r is at key r
	Left, Right            int32      // a row at key c attends to keys c - Left to c + Right; NoCausal: no limit
	// Changed: a softcap, ALiBi or a bias changes scores, which are then products times ScoreScale, capped by Softcap, in natural
	// units. ScoreScale has the factor 1 / Softcap. ScaleLog2 and the units are those of a Scale of 1.
	Changed             bool
	ScoreScale, Softcap float32
}

// CUDADecode is what calls with quantized K and V have in addition. Vectors without memory are not given.
type CUDADecode struct {
	KV                    KVType
	UnitBytes             int64 // bytes of what the strides of K and V count, an element or a block
	KScale, VScale        CUDAVector
	ScaleBatch, ScaleHead int // steps of KScale and VScale from a batch or page, and from a KV head, to the next
	ScaleKeys             int // keys of a scale
	Causal                Causal
	Splits                int // of the keys of a row
}

// NoCausal is the CausalOffset of a problem without a causal mask.
const NoCausal = math.MaxInt32

// CUDABackwardProblem is all that the choice of backward kernels depends on.
type CUDABackwardProblem struct {
	CUDAProblem
	Want           [3]bool // dQ, dK, dV
	TotalQ, TotalK int     // packed rows and keys; 0: not packed
	// Options that some kernels do not take.
	Lengths, Window, Softcap bool
}

// CUDABackwardChoice is the chosen kernels and the reasons.
type CUDABackwardChoice struct {
	Launcher     CUDABackward
	Kernels      []PlanKernel // in the order in which they run
	Validation   bool         // slow kernels to validate others with; taken only if the caller asks for tier cuda
	ScratchBytes uint64       // device memory of a call in addition to its tensors
	Rejected     []string     // better kernels and why they were not taken
}

// CUDABackward is the backward kernels of a problem on a device.
type CUDABackward interface {
	// Load makes the kernels ready, so that Launch compiles nothing.
	Load() error
	// Launch launches the kernels on the stream, as CUDAKernel.Launch does.
	Launch(s *vk.Stream, c *CUDABackwardCall) error
}

// CUDABackwardCall holds the arguments of backward kernels.
type CUDABackwardCall struct {
	Shape                                // with Hkv set
	Tensors                [8]CUDATensor // Q, K, V, O, DO, DQ, DK, DV; without memory: not asked for
	LSE, DLSE              CUDAVector
	CuQ, CuK, UsedQ, UsedK CUDAVector
	TotalQ, TotalK         int // packed rows and keys; 0: not packed
	HeadDim, HeadDimV      int
	BottomRight            bool  // the last row of a sequence is at its last key; otherwise row r is at key r
	Left, Right            int32 // a row at key c attends to keys c - Left to c + Right; NoCausal: no limit
	Scale, Softcap         float32
	Accumulate             bool
	PartialKeys            bool // LSE is of more keys than K has
}
