package attention

import "vkattn/vk"

// Vector is a contiguous array of 32-bit elements, int32 or float32 as its use
// says: on the same side as the tensors, in a device buffer or in host memory
// (little-endian). Kernels bound what they read from int32 vectors by what the
// call says of the tensors, so that a wrong number gives wrong results and never
// reads or writes outside of them.
type Vector struct {
	Buffer *vk.Buffer
	Host   []byte
	Offset int64 // of the first element, in elements
}

// Given reports whether v names any memory.
func (v Vector) Given() bool { return v.Buffer != nil || v.Host != nil }

// Varlen gives the sequences of a batch lengths of their own. The Shape's Sq and
// Sk bound them. Any of the four vectors may be left out. Lengths may be 0: such
// a sequence has no rows, or rows that attend to nothing (O = 0, LSE = -Inf).
//
// A causal mask, a window and ALiBi are those of each sequence: BottomRight puts
// the last row of a sequence at its own last key.
//
// Packed rows may be those of many sequences that are decoded and of a few prompts: where
// a bound by TotalQ says that most are short, the decoding kernel computes these beside
// the kernel for the others ([Plan].DecodeTile). TotalQ is best the number of rows there are.
type Varlen struct {
	// Packed sequences: sequence b of Q and O is rows CuQ[b] to CuQ[b+1]-1 of
	// tensors [1, heads, TotalQ, dim], and LSE is packed [Hq, TotalQ]; likewise CuK
	// for K and V. int32 [B+1], not decreasing. The batch stride of such tensors is
	// not looked at.
	CuQ, CuK       Vector
	TotalQ, TotalK int // rows of the packed tensors, for CuQ and CuK

	// Lengths in use: sequence b has UsedQ[b] rows and UsedK[b] keys, at the start
	// of its place in the tensors. int32 [B]. Rows of O and LSE past them are not
	// written.
	UsedQ, UsedK Vector
}

// Pages puts K and V into pages of a pool that the sequences share. The tensors
// K and V are then [Count, Hkv, PageSize, dim]: key t of sequence b is row
// t % PageSize of page Table[b, t / PageSize], in any order, pages shared between
// sequences or not. Lengths are Varlen.UsedK, or Sk for all. Entries of the table
// past a sequence's last key, and rows of pages past it, are not looked at.
type Pages struct {
	Table    Vector // int32 [B, Stride]
	Stride   int    // entries of a row of the table; 0: as many as Sk needs
	PageSize int    // keys of a page, 1 or more
	Count    int    // pages in K and V
}

// SparseTokens lists, for each sequence and key head, the tokens that its rows attend to;
// the others are not read, so that the cost is that of the kept ones. Masks count
// besides: a listed token that the causal mask or the window excludes, or one past
// the sequence's end, has no weight. One listed twice counts twice.
type SparseTokens struct {
	Offsets Vector // int32 [B*Hkv+1]: the list of sequence b and head h starts at entry Offsets[b*Hkv+h] and ends where the next one starts
	Tokens  Vector // int32 [Total]: keys of the sequence, from 0
	Total   int    // entries of Tokens
}

// Blocks is a bitmap of the blocks of BlockQ rows and BlockK keys that are
// attended to; work is skipped where a whole tile is not. Bit j%32 of word j/32
// of a row of blocks stands for keys j*BlockK and on.
type Blocks struct {
	Map            Vector // uint32 words [Batches, Heads, ceil(Sq/BlockQ), ceil(ceil(Sk/BlockK)/32)]
	BlockQ, BlockK int    // powers of two, at least 16
	Batches, Heads int    // 1: the same for all; 0: B and Hq
}

// Bias is added to the scores, after the scale and the softcap:
// [Batches, Heads, Rows, Sk] with element strides of its own, the rows and keys
// of a sequence counted from its start. -Inf leaves a slot no weight.
type Bias struct {
	Tensor
	DType                DType // F32, or a 16-bit type
	Batches, Heads, Rows int   // 1: the same for all; 0: B, Hq, Sq
}

// Mask says which slots a row attends to, besides what lengths, causal mask and
// window leave: bytes [Batches, Heads, Rows, Sk] with strides of their own, 0 for
// no. A slot it excludes is masked: whatever it holds changes nothing.
type Mask struct {
	Tensor
	Batches, Heads, Rows int // 1: the same for all; 0: B, Hq, Sq
}

// queryExtent are the batches and rows that Q, O and LSE have.
func (a *Args) queryExtent() (batches, rows int) {
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		return 1, a.Varlen.TotalQ
	}
	return a.B, a.Sq
}

// kvExtent are the batches and rows that K and V have.
func (a *Args) kvExtent() (batches, keys int) {
	switch {
	case a.Pages != nil:
		return a.Pages.Count, a.Pages.PageSize
	case a.Varlen != nil && a.Varlen.CuK.Given():
		return 1, a.Varlen.TotalK
	}
	return a.B, a.Sk
}
