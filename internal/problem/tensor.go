package problem

import (
	"vkattn/vk"
)

// Strides are the distances in elements between neighbours in each outer dimension.
// The innermost dimension is contiguous. The zero value means packed BHSD. Inputs may
// have any non-negative stride; stride 0 repeats one block, for example to share a key
// head. Rows of an output must not overlap, so its row stride is at least its head
// dimension.
type Strides struct {
	Batch, Head, Seq int64

	// Expanded says that the strides are meant even if all three are 0: one row stands for all, as in
	// the gradient of a sum.
	Expanded bool
}

// BHSD returns the strides of the packed layout [batch, head, row, dim].
func BHSD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(heads) * int64(seq) * int64(dim),
		Head:  int64(seq) * int64(dim),
		Seq:   int64(dim),
	}
}

// BSHD returns the strides of the packed layout [batch, row, head, dim].
func BSHD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(seq) * int64(heads) * int64(dim),
		Head:  int64(dim),
		Seq:   int64(heads) * int64(dim),
	}
}

// Resolve returns s, or packed BHSD if s is the zero value.
func (s Strides) Resolve(heads, seq, dim int) Strides {
	if s == (Strides{}) {
		return BHSD(heads, seq, dim)
	}
	return s
}

// Tensor names the memory of a tensor: a device buffer or host memory, exactly one of
// the two. Host holds little-endian elements and is used only during the call. A Device
// makes tensors that know their type and shape.
type Tensor struct {
	Buffer  *vk.Buffer
	Host    []byte
	Offset  int64 // of element [0,0,0,0], in elements
	Strides Strides

	made *made
}

// Given reports whether t names memory.
func (t Tensor) Given() bool { return t.Buffer != nil || t.Host != nil }

// Args are the tensors of one call. All lie on the same side, device or host. K and V
// may overlap each other and Q. O and LSE must not overlap anything.
type Args struct {
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

	// DropoutSeed and DropoutOffset choose the mask of Config.Dropout, which
	// attention.DropoutMask returns. Forward and backward of a training step take the same
	// two numbers; each step takes another seed or offset. A command buffer keeps the
	// numbers that it was recorded with.
	DropoutSeed   uint64
	DropoutOffset uint32

	// Scales of quantized K and V (KVInt8 and KVFP8), float32, one per key and head:
	// packed [B, Hkv, Sk]; with Pages [Count, Hkv, PageSize]; for packed sequences
	// [Hkv, TotalK]. With Config.KVBlock n > 1, one scale covers n consecutive keys, and
	// the last dimension is ceil(Sk/n), ceil(PageSize/n) or ceil(TotalK/n).
	KScale, VScale Vector
}
