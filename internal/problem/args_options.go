package problem

import "vkattn/vk"

// The types of the optional tensors of a call, fields of Args: varlen, block tables, sparse
// tokens, block bitmaps, bias and mask.

// Vector is a contiguous array of 32-bit elements, int32 or float32 depending on its
// use. It lies on the same side as the tensors: in a device buffer or in host memory
// (little-endian). In host memory a call checks the int32 vectors. In device memory
// kernels clamp what they read from them to the sizes that the call gives: a wrong number
// gives wrong results but never accesses memory outside of the tensors.
type Vector struct {
	Buffer *vk.Buffer
	Host   []byte
	Offset int64 // of the first element, in elements
}

// Given reports whether v names memory.
func (v Vector) Given() bool { return v.Buffer != nil || v.Host != nil }

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
type Varlen struct {
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
type Pages struct {
	Table    Vector // int32 [B, Stride]: the block table
	Stride   int    // entries per row of the block table; 0: as many as Sk needs
	PageSize int    // keys per page, at least 1
	Count    int    // pages in K and V; 0: no sequence has keys, whatever Varlen.UsedK says
}

// SparseTokens lists, per sequence and key head, the tokens that its rows attend to.
// Kernels read no other token, so the cost follows the listed ones. Masks still apply:
// a listed token that the causal mask or the window excludes, or that lies past the
// sequence's end, has weight 0. A token listed twice counts twice.
type SparseTokens struct {
	Offsets Vector // int32 [B*Hkv+1]: the list of sequence b and key head h is Tokens[Offsets[b*Hkv+h]:Offsets[b*Hkv+h+1]]
	Tokens  Vector // int32 [Total]: keys of the sequence, counted from 0
	Total   int    // entries of Tokens; 0: no row attends to a token
}

// Blocks is a bitmap over blocks of BlockQ rows and BlockK keys; a set bit means that
// the rows attend to the keys. Kernels skip a tile whose bits are all clear. Bit j%32
// of word j/32 of a row of blocks stands for keys j*BlockK to (j+1)*BlockK-1.
type Blocks struct {
	Map            Vector // uint32 words [Batches, Heads, ceil(Sq/BlockQ), ceil(ceil(Sk/BlockK)/32)]
	BlockQ, BlockK int    // powers of two, at least 16
	Batches, Heads int    // 1: one map for all; 0: B and Hq
}

// Bias is added to the scores after the scale and the softcap. It is a tensor
// [Batches, Heads, Rows, Sk] with its own element strides; rows and keys count from the
// start of their sequence. A bias of -Inf gives the slot weight 0.
type Bias struct {
	Tensor
	DType                DType // F32, or a 16-bit type
	Batches, Heads, Rows int   // 1: one for all; 0: B, Hq, Sq
}

// Mask excludes slots in addition to lengths, causal mask and window. It holds bytes
// [Batches, Heads, Rows, Sk] with its own strides; 0 excludes the slot. What an
// excluded slot holds never changes a result.
type Mask struct {
	Tensor
	Batches, Heads, Rows int // 1: one for all; 0: B, Hq, Sq
}
