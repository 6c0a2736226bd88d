package tensors

import (
	"vkattn/internal/arith"
	"vkattn/internal/problem"
)

// Extents: how many batches, rows and elements the tensors of a call have.

// QueryExtent returns the batches and rows of Q, O and LSE.
func QueryExtent(a *problem.Args) (batches, rows int) {
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		return 1, a.Varlen.TotalQ
	}
	return a.B, a.Sq
}

// KVExtent returns the batches and rows of K and V.
func KVExtent(a *problem.Args) (batches, keys int) {
	switch {
	case a.Pages != nil:
		return a.Pages.Count, a.Pages.PageSize
	case a.Varlen != nil && a.Varlen.CuK.Given():
		return 1, a.Varlen.TotalK
	}
	return a.B, a.Sk
}

// NoRows reports whether a call has no rows of Q, and writes no row of O.
func NoRows(a *problem.Args) bool {
	batches, rows := QueryExtent(a)
	return a.B == 0 || batches == 0 || rows == 0
}

// HasLSE reports whether the caller asked for LSE. An offset or strides without memory
// count too, so that missing memory is an error.
func HasLSE(a *problem.Args) bool {
	return a.LSE.Given() || a.LSE.Offset != 0 || a.LSE.Strides != (problem.Strides{})
}

// HasOptions reports whether a call has options in Args or a KV type of its own. Calls
// without skip the checks of options.
func HasOptions(a *problem.Args, cfg *problem.Config) bool {
	return a.Varlen != nil || a.Pages != nil || a.SparseTokens != nil || a.Blocks != nil || a.Bias != nil || a.Mask != nil ||
		VectorBegun(&a.ALiBi) || VectorBegun(&a.Sinks) || VectorBegun(&a.DropoutState) || VectorBegun(&a.MaxLogits) || VectorBegun(&a.KScale) || VectorBegun(&a.VScale) || cfg.KeyType != problem.KVSame ||
		len(a.Tables) > 0 || cfg.ScoreMod.Given() || cfg.MaskMod.Given()
}

// ScaleSteps says which entry of KScale and VScale a key has: batch*Batch + head*Head + row/Keys. Steps are 0 where a scale is
// shared.
type ScaleSteps struct {
	Batch, Head, Keys int
	shared            int // entries where they do not depend on the batch; 0: they do
}

// ScaleStepsOf returns the steps of a Config.KVBlock for batches of a number of keys.
func ScaleStepsOf(block, heads, keys int) ScaleSteps {
	switch block {
	case problem.KVBlockHead:
		return ScaleSteps{Head: 1, Keys: problem.MaxLength, shared: heads}
	case problem.KVBlockTensor:
		return ScaleSteps{Keys: problem.MaxLength, shared: 1}
	}
	groups := arith.CeilDiv(keys, max(1, block))
	return ScaleSteps{Batch: heads * groups, Head: groups, Keys: max(1, block)}
}

// Entries is the number of scales, MaxInt64 if it overflows.
func (s ScaleSteps) Entries(batches, heads int) int64 {
	if s.shared != 0 {
		return int64(s.shared)
	}
	return product(batches, heads, s.Head)
}

// Broadcast returns the strides with their default, and 0 for dimensions of size 1.
func Broadcast(s problem.Strides, sizes [3]int, dim int) [3]int64 {
	s = s.Resolve(sizes[1], sizes[2], dim)
	steps := [3]int64{s.Batch, s.Head, s.Seq}
	for i, n := range sizes {
		if n == 1 {
			steps[i] = 0
		}
	}
	return steps
}

// BiasSizes returns the batches, heads and rows of a bias.
func BiasSizes(b *problem.Bias, s *problem.Shape) [3]int {
	return [3]int{OrFull(b.Batches, s.B), OrFull(b.Heads, s.Hq), OrFull(b.Rows, s.Sq)}
}

// BiasStrides returns the strides of batch, head and row in elements, 0 where one entry serves all.
func BiasStrides(b *problem.Bias, s problem.Shape) [3]int64 {
	return Broadcast(b.Strides, BiasSizes(b, &s), s.Sk)
}

// maskSizes returns the batches, heads and rows of a mask.
func maskSizes(m *problem.Mask, s *problem.Shape) [3]int {
	return [3]int{OrFull(m.Batches, s.B), OrFull(m.Heads, s.Hq), OrFull(m.Rows, s.Sq)}
}

// MaskStrides returns the strides of batch, head and row in bytes, 0 where one entry serves all.
func MaskStrides(m *problem.Mask, s problem.Shape) [3]int64 {
	return Broadcast(m.Strides, maskSizes(m, &s), s.Sk)
}

// BlocksGrid returns the number of rows of blocks and the words in each.
func BlocksGrid(b *problem.Blocks, s *problem.Shape) (rows, words int) {
	return arith.CeilDiv(s.Sq, b.BlockQ), arith.CeilDiv(arith.CeilDiv(s.Sk, b.BlockK), 32)
}

// BlocksStrides returns the strides of batch, head and row of blocks in words, 0 where one entry serves all.
func BlocksStrides(b *problem.Blocks, s problem.Shape) [3]int64 {
	rows, words := BlocksGrid(b, &s)
	return Broadcast(problem.Strides{}, [3]int{OrFull(b.Batches, s.B), OrFull(b.Heads, s.Hq), rows}, words)
}

// OrFull is a size, or the full size if it is 0.
func OrFull(n, full int) int {
	if n == 0 {
		return full
	}
	return n
}

// sparseLists is the number of lists of sparse tokens.
func sparseLists(a *problem.Args) int64 {
	if a.SparseTokens.PerRow {
		batches, rows := QueryExtent(a)
		return product(batches, rows, a.KVHeads())
	}
	return product(a.B, a.KVHeads())
}

// SparseTotal is SparseTokens.Total, or with TopK the entries of all lists, which checkSparse has bounded.
func SparseTotal(a *problem.Args) int {
	if k := a.SparseTokens; k.TopK == 0 {
		return k.Total
	}
	return int(sparseLists(a)) * a.SparseTokens.TopK
}

// MeanSparseTokens is the mean length of a list of sparse tokens, at least 1.
func MeanSparseTokens(a *problem.Args) int {
	return max(1, SparseTotal(a)/int(max(1, sparseLists(a))))
}

// TableStride is Pages.Stride, or the default if it is 0.
func TableStride(p *problem.Pages, s *problem.Shape) int {
	if p.Stride == 0 {
		return arith.CeilDiv(s.Sk, p.PageSize)
	}
	return p.Stride
}

// HostRows is a HostView that also says where its rows begin.
type HostRows struct {
	problem.HostView
	offset  int64 // of element [0,0,0,0], in elements
	Strides problem.Strides
	size    int64 // bytes of an element
}

// ViewRows is ViewHost.
func ViewRows(t problem.Tensor, dtype problem.DType, heads, seq, dim int) (HostRows, error) {
	view, err := problem.ViewHost(t, dtype, heads, seq, dim)
	return HostRows{view, t.Offset, t.Strides.Resolve(heads, seq, dim), int64(dtype.Size())}, err
}

// ByteOf returns the byte offset of a row.
func (v *HostRows) ByteOf(b, h, row int) int64 { return v.Element(b, h, row) * v.size }

// Element returns the element offset of a row.
func (v *HostRows) Element(b, h, row int) int64 {
	return v.offset + int64(b)*v.Strides.Batch + int64(h)*v.Strides.Head + int64(row)*v.Strides.Seq
}
