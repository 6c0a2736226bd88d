package problem

// The tensors of a backward call, and the results of its float64 reference.

// BackwardArgs are the tensors of one backward call: the forward call, the gradients of
// its outputs, and the outputs for the gradients of its inputs. All lie on the same side,
// device or host. Sequences are packed or padded as in the forward call (see [Varlen]).
// Q, K, V, O and DO may overlap each other. DQ, DK, DV, DBias and DSinks must not overlap
// anything; they may be interleaved, for example DQ, DK and DV in one [B, S, 3, H, D].
type BackwardArgs struct {
	Args // of the forward call, with O and LSE as it has written them

	DO   Tensor // [B, Hq, Sq, HeadDimV]: gradient of O, in the storage type
	DLSE Tensor // optional gradient of LSE; float32, packed as LSE

	// Gradients to compute, each of them optional. DQ, DK and DV are in the storage type and
	// have the sizes of Q, K and V. DK and DV are sums over the query heads of a group.
	DQ, DK, DV Tensor
	DBias      Tensor // float32 [Batches, Heads, Rows, Sk] of Bias, summed over each dimension of size 1
	DSinks     Vector // float32 [Hq], summed over the batch

	Accumulate bool // add to what DQ, DK and DV hold; false: overwrite it

	// PartialKeys says that O and LSE are of more keys than K and V hold, as in ring attention:
	// the gradients are the terms of these keys, and the sum over all calls is exact. Without it
	// Backward may take the keys of a row to be all that its LSE counts, and corrects a large LSE
	// for float32 rounding. With it P errs by that rounding, about |LSE| 2^-24 of itself.
	PartialKeys bool
}

// Gradients are the results of attention.ReferenceBackward, packed. A slice is nil if its gradient
// was not asked for.
type Gradients struct {
	DQ     []float64 // [B, Hq, Sq, HeadDim]
	DK     []float64 // [B, Hkv, Sk, HeadDim]
	DV     []float64 // [B, Hkv, Sk, HeadDimV]
	DBias  []float64 // [Batches, Heads, Rows, Sk] of Bias
	DSinks []float64 // [Hq]
}
