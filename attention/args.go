package attention

import (
	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// The tensors of a call. Package problem has the same structs without their docs.

// Args are the tensors of one call. All lie on the same side, device or host. K and V
// may overlap each other and Q. O and LSE must not overlap anything.
type Args = struct {
	Shape // B may be 0: then a call checks its arguments, and clears what Backward sums over the batches

	Q, K, V Tensor
	O       Tensor
	LSE     Tensor // optional; float32, packed [B, Hq, Sq]

	// Options, each of them nil or zero by default. Any combination is allowed unless the
	// call's error names it. Their memory lies on the side of the tensors and must not
	// overlap O or LSE.
	Varlen       *Varlen       // a length for each sequence
	Pages        *Pages        // paged KV cache
	SparseTokens *SparseTokens // lists of the tokens to attend to
	Blocks       *Blocks       // bitmap of the blocks to attend to
	Bias         *Bias         // added to the scores
	Mask         *Mask         // slots to attend to
	ALiBi        Vector        // float32 [Hq]: slopes; the score of the row at position i and key j loses slope * |i - j|
	Sinks        Vector        // float32 [Hq]: an additional logit in each row's softmax that counts in LSE and has no value

	Tables   []Table   // memory of the tables that Config.ScoreMod and MaskMod read
	BlockMap *BlockMap // which tiles the masks exclude, forward and backward, made by [Op.BlockMap]; nil: the call finds out

	// DropoutSeed and DropoutOffset choose the mask of Config.Dropout, which
	// attention.DropoutMask returns. Forward and backward of a training step take the same
	// two numbers; each step takes another seed or offset. A command buffer keeps the
	// numbers that it was recorded with.
	DropoutSeed   uint64
	DropoutOffset uint32

	// DropoutState is a seed and an offset that the kernel reads, two uint64 of 32-bit words, low word first: a CUDA graph
	// that was captured draws another mask at each replay if something in it changes them. They are added to DropoutSeed
	// and DropoutOffset: with sum = DropoutState[1] + DropoutOffset, of 64 bits, the mask is that of the seed
	// DropoutSeed + DropoutState[0] + sum>>32 and of the offset that the low word of sum is. Tiers cpu and cuda take it.
	DropoutState Vector

	ALiBiPerSequence bool // ALiBi is [B, Hq]: each sequence has slopes of its own

	// MaxLogits is an output of Forward, float32 [Hq]: the largest score of each query head over all sequences, rows and
	// the keys that they attend to, as QK-clip takes it. Scores are those of the softmax, behind the scale and every
	// modifier; sinks do not count, NaN neither. A head without scores has -Inf. The bits are the same in every run. Tiers
	// cpu and cuda compute it, the latter in K and V that are not quantized. Backward takes no notice of it.
	MaxLogits Vector

	// Scales of K and V of Scaled types (KVInt8, KVFP8, KVFP8E5M2), float32, one per key and head:
	// packed [B, Hkv, Sk]; with Pages [Count, Hkv, PageSize]; for packed sequences
	// [Hkv, TotalK]. With Config.KVBlock n > 1, one scale covers n consecutive keys, and
	// the last dimension is ceil(Sk/n), ceil(PageSize/n) or ceil(TotalK/n). With KVBlockHead they are
	// [Hkv], of all sequences and pages, and with KVBlockTensor [1].
	KScale, VScale Vector
}

// BackwardArgs are the tensors of one backward call: the forward call, the gradients of
// its outputs, and the outputs for the gradients of its inputs. All lie on the same side,
// device or host. Sequences are packed or padded as in the forward call (see [Varlen]).
// Q, K, V, O and DO may overlap each other. DQ, DK, DV, DBias, DSinks and DTables must not overlap
// anything; they may be interleaved, for example DQ, DK and DV in one [B, S, 3, H, D].
type BackwardArgs = struct {
	Args // of the forward call, with O and LSE as it has written them

	DO   Tensor // [B, Hq, Sq, HeadDimV]: gradient of O, in the storage type
	DLSE Tensor // optional gradient of LSE; float32, packed as LSE

	// Gradients to compute, each of them optional. DQ, DK and DV are in the storage type and
	// have the sizes of Q, K and V. DK and DV are sums over the query heads of a group.
	DQ, DK, DV Tensor
	DBias      Tensor // float32 [Batches, Heads, Rows, Sk] of Bias, summed over each dimension of size 1
	DSinks     Vector // float32 [Hq], summed over the batch

	// Gradients of float tables that Config.ScoreMod reads, by name: float32 with the sizes of the table in Args.Tables. Dims
	// may be zero. Each element is the sum over all slots that read it, also those whose index was moved to the end of an axis,
	// and 0 if none does. If the first index is h wherever the modifier reads the table, a head has entries of its own;
	// otherwise the entries are shared by all heads. A head may have [score.MaxTableEntries] of them; more are
	// [ErrUnsupported]. A table that a condition, a floor or an index alone reads has gradient 0.
	DTables []Table

	Accumulate bool // add to what DQ, DK and DV hold; false: overwrite it

	// PartialKeys says that O and LSE are of more keys than K and V hold, as in ring attention:
	// the gradients are the terms of these keys, and the sum over all calls is exact. Without it
	// Backward may take the keys of a row to be all that its LSE counts, and corrects a large LSE
	// for float32 rounding. With it P errs by that rounding, about |LSE| 2^-24 of itself.
	PartialKeys bool
}

// Varlen gives each sequence of a batch its own length, at most the Shape's Sq and Sk.
// Each of the four vectors is optional. Lengths may be 0: such a sequence has no rows,
// or its rows attend to nothing (O = 0, LSE = -Inf).
//
// The causal mask, the window and ALiBi apply to each sequence on its own: BottomRight
// aligns the last row of a sequence with its own last key.
//
// A packed batch may mix many decodes with a few prefills. If TotalQ shows that most
// sequences are short, the decode kernel computes the short ones in a dispatch of its
// own ([Plan].DecodeTile). Set TotalQ to the actual number of rows for the best plan.
type Varlen = struct {
	// Cumulative lengths of packed sequences (cu_seqlens), int32 [B+1], not decreasing.
	// Sequence b of Q and O is rows CuQ[b] to CuQ[b+1]-1 of tensors [1, heads, TotalQ,
	// dim], and LSE is packed [Hq, TotalQ]. CuK does the same for K and V. The batch
	// stride of packed tensors is ignored.
	CuQ, CuK       Vector
	TotalQ, TotalK int // rows of the packed tensors, for CuQ and CuK; 0: no sequence has rows, or keys

	// Lengths in use (seqused), int32 [B]: sequence b has UsedQ[b] rows and UsedK[b]
	// keys, from the start of its range in the tensors. Rows of O and LSE past UsedQ[b]
	// are not written.
	UsedQ, UsedK Vector
}

// Pages is the layout of a paged KV cache. K and V are tensors [Count, Hkv, PageSize,
// dim] that all sequences share: key t of sequence b is row t % PageSize of page
// Table[b, t / PageSize]. Table is the block table; pages may come in any order, and
// sequences may share pages. Lengths are Varlen.UsedK, or Sk for all. Entries of the
// table past a sequence's last key, and rows of its last page past that key, are not
// read.
type Pages = struct {
	Table    Vector // int32 [B, Stride]: the block table
	Stride   int    // entries per row of the block table; 0: as many as Sk needs
	PageSize int    // keys per page, at least 1
	Count    int    // pages in K and V; 0: no sequence has keys, whatever Varlen.UsedK says
}

// SparseTokens lists the tokens that rows attend to. There is a list for each sequence and
// key head, or with PerRow for each query row and key head, as DeepSeek's sparse attention
// selects them. Kernels read no other token, so the cost follows the listed ones. Masks
// still apply: a listed token that the causal mask or the window excludes, or that lies
// past the sequence's end, has weight 0, and so has a negative one, which pads a list. A
// token listed twice counts twice. A row with an empty list has O = 0 and LSE = -Inf.
//
// Lists lie one after the other, those of the key heads of a sequence or row together: the
// list of key head h is number b*Hkv+h, or with PerRow row*Hkv+h. Row i of sequence b is
// row b*Sq+i, or CuQ[b]+i of packed Q. Either Offsets says where lists begin, or all have
// TopK entries. No tier computes gradients with PerRow.
type SparseTokens = struct {
	Offsets Vector // int32 [lists+1]: list n is Tokens[Offsets[n]:Offsets[n+1]]
	Tokens  Vector // int32 [Total]: keys of the sequence, counted from 0
	Total   int    // entries of Tokens; 0: no row attends to a token, or with TopK all of its entries
	TopK    int    // without Offsets: list n is Tokens[n*TopK:(n+1)*TopK]
	PerRow  bool   // each query row has lists of its own: Tokens with TopK are [B, Sq, Hkv, TopK], or [TotalQ, Hkv, TopK]
}

// Blocks is a bitmap over blocks of BlockQ rows and BlockK keys; a set bit means that
// the rows attend to the keys, those that Mask leaves. Kernels skip a tile whose bits are all clear. Bit j%32
// of word j/32 of a row of blocks stands for keys j*BlockK to (j+1)*BlockK-1.
type Blocks = struct {
	Map            Vector // uint32 words [Batches, Heads, ceil(Sq/BlockQ), ceil(ceil(Sk/BlockK)/32)]
	BlockQ, BlockK int    // powers of two, at least 16
	Batches, Heads int    // 1: one map for all; 0: B and Hq
}

// Bias is added to the scores after the scale and the softcap. It is a tensor
// [Batches, Heads, Rows, Sk] with its own element strides; rows and keys count from the
// start of their sequence. A bias of -Inf gives the slot weight 0.
type Bias = struct {
	Tensor
	DType                DType // F32, or a 16-bit type
	Batches, Heads, Rows int   // 1: one for all; 0: B, Hq, Sq
}

// Table is the memory of a table that a modifier reads, packed int32 or float32 as the modifier declares it, the last
// axis fastest. Kernels move an index beyond an axis to its end.
type Table = struct {
	Vector
	Name string             // as the modifier declares it
	Dims [score.MaxRank]int // elements of each axis, at least 1; 0 behind the last axis
}

// Mask excludes slots in addition to lengths, causal mask, window, Blocks and SparseTokens. It
// holds bytes [Batches, Heads, Rows, Sk] with its own strides; 0 excludes the slot. What an
// excluded slot holds never changes a result. With Bias, and Blocks or SparseTokens, only the
// CPU tier takes it.
type Mask = struct {
	Tensor
	Batches, Heads, Rows int // 1: one for all; 0: B, Hq, Sq
}

// Gradients are the results of attention.ReferenceBackward, packed. A slice is nil if its gradient
// was not asked for.
type Gradients = struct {
	DQ     []float64 // [B, Hq, Sq, HeadDim]
	DK     []float64 // [B, Hkv, Sk, HeadDim]
	DV     []float64 // [B, Hkv, Sk, HeadDimV]
	DBias  []float64 // [Batches, Heads, Rows, Sk] of Bias
	DSinks []float64 // [Hq]

	DTables [][]float64 // of each of Args.Tables, with its sizes; nil: not asked for, or it has none
}

// Rows names some query rows of one (batch, query head), in any order.
type Rows = struct {
	B, H int
	Rows []int
}

// Shape, tensors and vectors.
type (
	// Shape holds the sizes of a problem. Each is at least 1 and at most [MaxLength]; B of a call may be 0.
	//
	//	B   int  // batch
	//	Hq  int  // query heads
	//	Hkv int  // key/value heads; divides Hq; 0: Hq
	//	Sq  int  // query rows
	//	Sk  int  // key rows
	//
	//	func (s Shape) KVHeads() int           // Hkv with its default filled in
	//	func (s Shape) Group() int             // query heads that share a key head; 0 where there are no heads
	//	func (s Shape) Rows() int64            // B * Hq * Sq, the number of softmax rows
	//	func (s Shape) Cells(c Causal) uint64  // unmasked (row, col) pairs of one (batch, query head)
	//	func (s Shape) Validate() error        // the first wrong size, as a *ShapeError
	Shape = problem.Shape

	// Tensor names the memory of a tensor: a Vulkan buffer, host memory or memory of a device of another
	// kind, exactly one of them. A program fills the fields in for memory of its own:
	//
	//	Buffer  *vk.Buffer
	//	Host    []byte   // little-endian elements, used only during the call
	//	Memory  *Memory
	//	Offset  int64    // of element [0,0,0,0], in elements
	//	Strides Strides  // zero: packed [batch, head, row, dim]
	//
	// [Device.Tensor] makes tensors that also know their storage type and their shape, which calls
	// check, and [Device.Wrap] says both of memory of the program's own. A program writes and reads
	// all elements of such a tensor, the last dimension first:
	//
	//	func (t Tensor) SetFloats(x []float32) error  // rounds x; behind earlier calls on the default stream
	//	func (t Tensor) SetBytes(b []byte) error      // elements as they are stored, little-endian
	//	func (t Tensor) Floats(ctx context.Context) ([]float32, error)  // waits for the calls on the default stream
	//	func (t Tensor) Bytes(ctx context.Context) ([]byte, error)      // elements as they are stored
	//	func (t Tensor) Slice(dim, from, to int) (Tensor, error)  // a view of [from, to) of one dimension
	//	func (t Tensor) Expand(shape ...int) (Tensor, error)      // a view that repeats dimensions of size 1; read only
	//	func (t Tensor) DType() (dtype DType, ok bool)
	//	func (t Tensor) Shape() []int  // outermost first; nil without one
	//	func (t *Tensor) Sizes() []int // Shape without a copy
	//	func (t Tensor) Made() bool    // it knows its type and its shape
	//	func (t Tensor) Given() bool   // it names memory
	//	func (t Tensor) Close() error  // frees the memory that t and its views share, once no work in flight holds it, if a Device made it
	Tensor = problem.Tensor

	// Strides are the distances in elements between neighbours in each outer dimension. The
	// innermost dimension is contiguous. The zero value means packed BHSD. Inputs may have any
	// non-negative stride; stride 0 repeats one block, for example to share a key head. Rows of an
	// output must not overlap, so its row stride is at least its head dimension.
	//
	//	Batch, Head, Seq int64
	//	Expanded         bool  // the strides are meant even if all three are 0: one row stands for all, as in the gradient of a sum
	//
	//	func (s Strides) Resolve(heads, seq, dim int) Strides  // s, or packed BHSD if s is the zero value
	Strides = problem.Strides

	// Vector is a contiguous array of 32-bit elements, int32 or float32 depending on its use. It
	// lies on the same side as the tensors: in a device buffer or in host memory (little-endian).
	// In host memory a call checks the int32 vectors. In device memory kernels clamp what they read
	// from them to the sizes that the call gives: a wrong number gives wrong results but never
	// accesses memory outside of the tensors. [Device.Ints] and [Device.Floats] make vectors.
	//
	//	Buffer *vk.Buffer
	//	Host   []byte
	//	Memory *Memory
	//	Offset int64  // of the first element, in elements
	//
	//	func (v Vector) Given() bool     // it names memory
	//	func (v Vector) Tensor() Tensor  // the same memory
	//	func (v Vector) Close() error    // frees the memory, once no work in flight holds it
	Vector = problem.Vector

	// Memory is memory of a device that is neither Vulkan's nor the CPU. The device makes it.
	//
	//	func (m *Memory) Size() uint64  // bytes
	//	func (m *Memory) Closed() bool
	//	func (m *Memory) Close() error  // frees it, once no work in flight holds it
	Memory = problem.Memory

	// HostView reads and writes the rows of a host tensor as float32, for any storage type and
	// strides. Like an index its methods panic if a row lies outside of the memory or a slice is too short.
	//
	//	func (v HostView) Dim() int                                       // elements of a row
	//	func (v HostView) ReadRow(dst []float32, b, h, row int)           // widens row (b, h, row)
	//	func (v HostView) ReadRows(dst []float32, b, h, row, n int)       // widens n consecutive rows
	//	func (v HostView) WriteRow(src []float32, b, h, row int)          // rounds src to row (b, h, row)
	HostView = problem.HostView
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
func CheckArgs(cfg Config, a Args) error { return tensors.CheckArgs(problem.Config(cfg), a) }

// DecodeKV returns the elements that EncodeKV's result represents, in float32, packed
// [batches, heads, keys, dim]. Sizes that do not match give a *ShapeError.
func DecodeKV(t KVType, block, batches, heads, keys, dim int, data, scales []byte) ([]float32, error) {
	return tensors.DecodeKV(t, block, batches, heads, keys, dim, data, scales)
}

// EncodeKV quantizes K or V. x is packed [batches, heads, keys, dim], and so is data. For
// pages, batches are pages and keys is PageSize; for packed sequences, batches is 1 and keys
// is TotalK. For Scaled types scales are the float32 of Args.KScale or VScale, one for block
// consecutive keys of a head (0: 1; or KVBlockHead or KVBlockTensor, as in Config.KVBlock). Each maps the largest magnitude
// of its elements to the type's largest number. For other types scales is nil. Package
// quant documents the rounding.
func EncodeKV(t KVType, block, batches, heads, keys, dim int, x []float32) (data, scales []byte, err error) {
	return tensors.EncodeKV(t, block, batches, heads, keys, dim, x)
}
