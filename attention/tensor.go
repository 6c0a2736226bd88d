package attention

import "vkattn/vk"

// Strides are the distances between neighbours of each outer dimension, in
// elements. The innermost dimension is contiguous. The zero value means packed
// BHSD. For inputs any non-negative stride will do, 0 included (a dimension of
// stride 0 repeats one block, as when a key head is shared); the rows of an
// output must not overlap, so its row stride is at least its head dimension.
type Strides struct {
	Batch, Head, Seq int64
}

// BHSD is the packed layout [batch, head, row, dim].
func BHSD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(heads) * int64(seq) * int64(dim),
		Head:  int64(seq) * int64(dim),
		Seq:   int64(dim),
	}
}

// BSHD is the packed layout [batch, row, head, dim].
func BSHD(heads, seq, dim int) Strides {
	return Strides{
		Batch: int64(seq) * int64(heads) * int64(dim),
		Head:  int64(dim),
		Seq:   int64(heads) * int64(dim),
	}
}

// Resolve fills in packed BHSD for the zero value.
func (s Strides) Resolve(heads, seq, dim int) Strides {
	if s == (Strides{}) {
		return BHSD(heads, seq, dim)
	}
	return s
}

// Tensor is where a tensor's elements lie: in a device buffer or in host
// memory, exactly one of the two. Host holds little-endian elements and is
// used during the call only.
type Tensor struct {
	Buffer  *vk.Buffer
	Host    []byte
	Offset  int64 // of element [0,0,0,0], in elements
	Strides Strides
}

// Given reports whether t names any memory.
func (t Tensor) Given() bool { return t.Buffer != nil || t.Host != nil }

// Args are the tensors of one call. All lie on the same side, device or host.
// K and V may overlap each other and Q; O and LSE overlap nothing.
type Args struct {
	Shape
	Q, K, V Tensor
	O       Tensor
	LSE     Tensor // optional; float32, packed [B, Hq, Sq]

	// What inference needs besides, each optional and in any combination that the
	// error of a call does not refuse by name. They lie on the side of the tensors
	// and overlap neither O nor LSE.
	Varlen       *Varlen       // sequences with lengths of their own
	Pages        *Pages        // K and V in pages
	SparseTokens *SparseTokens // tokens attended to, by list
	Blocks       *Blocks       // blocks attended to, by bitmap
	Bias         *Bias         // added to the scores
	Mask         *Mask         // slots attended to
	ALiBi        Vector        // float32 [Hq]: slopes; the score of the row at position i and key j loses slope * |i - j|
	Sinks        Vector        // float32 [Hq]: a logit beside the scores that takes weight, adds no value, and counts in LSE

	// Scales of quantised K and V (KVInt8 and KVFP8), float32, one for each key and
	// head: packed [B, Hkv, Sk], with Pages [Count, Hkv, PageSize], packed sequences
	// [Hkv, TotalK]. With Config.KVBlock the last of these counts blocks of so many
	// keys, the last one short: [B, Hkv, ceil(Sk/KVBlock)].
	KScale, VScale Vector
}
