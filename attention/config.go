package attention

import (
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// Config says what to compute, except for sizes. It is comparable and can be a map key.
// The zero value of every field but HeadDim is a useful default.
type Config struct {
	DType    DType  // storage type of Q, K, V and O
	HeadDim  int    // elements per row of Q and K
	HeadDimV int    // elements per row of V and O; 0: HeadDim
	Causal   Causal // which keys a row attends to
	Scale    Scale  // factor on Q Kᵀ; zero value: 1/sqrt(HeadDim); see MaxFastScore for large ones; on devices at most 2.358e38
	Tier     Tier   // implementation; zero value: the fastest for the call
	Access   Access // how kernels reach tensors; zero value: chosen by the buffers
	Tuning   Tuning // how tiles are chosen; zero value: tuned tiles if the user's cache has them

	// Score modifiers that are the same for every call. [Args] has those that need tensors.
	Window Window // keys near a row's position
	// AttentionChunk cuts the keys of each sequence into chunks of that many (chunked local attention, as in
	// Llama 4): of the keys that the causal mask leaves to a row, it attends to those in the chunk of its own
	// position. 0: no chunks. It needs a causal mask and excludes a Window.
	AttentionChunk int

	Align   Causal  // alignment of rows with keys for Window and ALiBi; CausalNone: as Causal says
	Softcap float32 // scores become Softcap * tanh(score / Softcap) before any bias; 0: off; devices take one above 2^104 as 2^104

	// ScoreMod changes scores, after softcap, bias and ALiBi, and MaskMod says which slots a row attends to, of those that
	// the other masks leave: expressions that package score builds or parses. [Args].Tables has the memory of the tables
	// that they read. Positions are those of the causal mask; with CausalNone in both Causal and Align the last row of a
	// sequence is at its last key. Backward takes the derivative of ScoreMod. Tiers cuda and cubin refuse both.
	ScoreMod, MaskMod score.Expr

	// Dropout is the probability that a weight P is dropped, at least 0 and below 1.
	// Weights that remain are multiplied by 1 / (1 - Dropout). LSE is the LSE of the
	// softmax before dropout. [Args].DropoutSeed and DropoutOffset choose the mask.
	Dropout float32

	// How K and V are stored; zero value: as DType. Both are stored as DType, or each in one
	// of the Scaled types, or each in one of the Blocked types.
	KeyType, ValueType KVType

	KVBlock int // consecutive keys per entry of Args.KScale and VScale, or KVBlockHead or KVBlockTensor; 0: 1

	// FixedSplit cuts the keys of every sequence into this many splits, 1 to MaxStates,
	// which are computed in parallel and combined. 0: as many as keep the device busy
	// (see [Plan].Splits). With FixedSplit the bits of a sequence depend only on its own
	// rows and keys and on FixedSplit, never on the rest of the batch; tuned tiles are
	// not used. The tier then depends on the Config and the device alone.
	FixedSplit int

	// F32O makes O float32 whatever DType: a partial result over some of the keys, which a
	// Merge with MergeConfig.F32States rounds once. Backward then reads such an O.
	// F32Gradients makes DQ, DK and DV float32, for sums over several calls with
	// BackwardArgs.Accumulate. With DTypes of 16 bits, tiers cuda and cubin have neither, and
	// Backward takes a float32 O on tier cpu alone.
	F32O, F32Gradients bool

	// Check makes Forward and Backward read the lengths, cumulative lengths, pages and offsets of a call
	// that lie in device memory, and refuse those out of their range, as calls do whose vectors lie in host
	// memory. The call waits for what its stream has recorded. Without it kernels clamp such numbers or skip
	// what they name, and never reach other memory. Record refuses a call that would have to be
	// checked. VKATTN_CHECK=1 in the environment checks every Forward and Backward.
	Check bool

	// Kernel is the family of kernels that TierCUDA uses, one of CUDAKernels. "": the
	// fastest that can compute the problem; the Plan names it.
	Kernel string
}

// ValueDim is HeadDimV, or HeadDim if HeadDimV is 0.
func (c Config) ValueDim() int { return problem.Config(c).ValueDim() }

// OType is the storage type of O: DType, or F32 with F32O.
func (c Config) OType() DType { return problem.Config(c).OType() }

// GradientType is the storage type of DQ, DK and DV: DType, or F32 with F32Gradients.
func (c Config) GradientType() DType { return problem.Config(c).GradientType() }

// ScaleValue is the factor on Q Kᵀ.
func (c Config) ScaleValue() float32 { return problem.Config(c).ScaleValue() }

// Validate reports the first field that no tier accepts, as a *ShapeError. Fields that no tier
// computes together match [ErrUnsupported] too.
func (c Config) Validate() error { return problem.Config(c).Validate() }

// String is a short form for logs, for example "f16 d128/64 top-left scale 0.5 scalar".
func (c Config) String() string { return problem.Config(c).String() }
