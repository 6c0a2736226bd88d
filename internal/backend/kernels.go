package backend

import (
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Kernels are the operations of a device that is neither Vulkan's nor the CPU. The errors of its methods, and of theirs,
// match problem.ErrUnsupported and name the reason where the device does not compute something. Operations are safe for
// concurrent use, and Close frees what they hold once no work in flight uses it.
type Kernels interface {
	// Attention has a valid Config.
	Attention(cfg problem.Config) (Attention, error)
	Append(cfg AppendConfig) (Append, error)
	Merge(cfg MergeConfig) (Merge, error)
}

// Attention computes calls whose arguments were checked: Forward and Backward begin them on a stream and may return
// before they are done. Prepare compiles and allocates what such a call takes, so that the call does neither. Plan and
// Prepare may be given a Shape without tensors: then these are packed, and gradients those of Q, K and V.
type Attention interface {
	Plan(a problem.Args) (problem.Plan, error)
	PlanBackward(a problem.BackwardArgs) (problem.BackwardPlan, error)
	Prepare(a problem.Args) error
	PrepareBackward(a problem.BackwardArgs) error
	Forward(s Stream, a problem.Args) error
	Backward(s Stream, a problem.BackwardArgs) error
	Close() error
}

// MergeConfig says what a Merge takes.
type MergeConfig struct {
	DType, StateType problem.DType // of O in the result and in the states
	HeadDim          int
	Sum              bool // the states are added, and have no LSE
}

// State is a tensor of some states at equal distances. The layout is the first state's.
type State struct {
	tensors.Layout
	States int64 // 0: left out
	Step   int64 // elements between consecutive states
}

// MergeCall is a call that was checked: states of First come before those of Second.
type MergeCall struct{ First, FirstLSE, Second, SecondLSE, O, LSE State }

// Merge computes what merge.Merge or merge.Sum documents.
type Merge interface {
	Prepare() error
	Merge(s Stream, c MergeCall) error
	Close() error
}

// AppendConfig says what an Append takes.
type AppendConfig struct {
	DType                  problem.DType
	HeadDim, HeadDimV      int
	KeyType, ValueType     problem.KVType
	RotaryDim, RotaryFirst int
	RotaryHalfSplit        bool
	CosSinOfDType          bool // Cos and Sin are of DType, not float32
}

// AppendCall is a call that was checked. A tensor that is left out has no Field.
type AppendCall struct {
	K, V, Q, Used, Lengths, Table, Cos, Sin tensors.Layout
	KCache, VCache, QOut, KScale, VScale    tensors.Layout

	Sequences   int
	Rows        int   // new rows per sequence; of all sequences if Packed
	Packed      bool  // Lengths is CuNew
	Counted     bool  // Lengths is UsedNew
	Limit       int64 // positions from Limit on are not written to the cache
	LimitQ      int64 // nor from LimitQ on to QOut
	OwnRowsQ    bool  // Lengths does not count rows of Q
	QAtUsed     bool  // all rows of Q are at position Used
	Paged       bool
	PageRows    int // keys per page; without pages, keys per sequence
	Pages       int
	TableStride int
}

// Append computes what kvcache.Append documents.
type Append interface {
	Prepare() error
	Append(s Stream, c AppendCall) error
	Close() error
}
