package simd

import (
	"unsafe"

	"vkattn/internal/gokernels"
)

// Kernels of the gradients (backward.h): their memory, and one method per kernel.

// Rows and keys of a tile of the backward pass.
const (
	BackwardRows = gokernels.Rows
	BackwardKeys = gokernels.Columns
)

// BackwardRow is a query row of a tile of the backward pass; C has the same struct.
type BackwardRow = gokernels.Row

// Backward is the memory of one worker of the backward pass: a block of keys with the sums
// of its dK and dV, a block of query rows, and a tile of their scores.
type Backward struct {
	kernels *Kernels
	c       gokernels.Backward
	slab    []float32
	sums    []float32 // dK^T and dV^T of blocks of rows that are complete
	n       int       // keys

	Rows     []BackwardRow // of the block
	Keys     []int32       // positions of the keys in their sequence; of the others a negative number
	Count    []float32     // how often a list has each key; nil: once
	QAt, OAt []int64       // byte offsets of rows in Q and dQ, and in O; negative: the row is read as 0
	DOAt     []int64       // byte offsets of rows in dO
	KAt, VAt []int64       // byte offsets of keys
	BiasAt   []int64       // byte offset of each row in the bias
	MaskAt   []int64       // byte offset of each row in the mask or bitmap
	DBiasAt  []int64       // element offset of each row in dBias
	Changes  []float32     // [BackwardRows][BackwardKeys]: gradients of modified scores, which TileOf sets; nil: nobody asks
	Used     []bool        // likewise: whether a slot has a weight
	bias     []float32
	mask     []int32
}

// BackwardOptions say what a Backward computes.
type BackwardOptions struct {
	Scale, Softcap float32
	ALiBi          bool
	Bias, Mask     bool // there is a bias; there is a mask or bitmap
	Counts         bool // keys have a Count
	DK, DV         bool // gradients to compute
	Accumulate     bool // add to what dK and dV hold
	Dropout        Dropout
}

// backwardLayout sets the offsets of a slab. It returns the number of elements of the slab
// and of the sums.
func (k *Kernels) backwardLayout(c *gokernels.Backward) (slab, sums int) {
	d, dv := int(c.D), int(c.DV)
	c.Stride = int32((d + k.Vector - 1) / k.Vector * k.Vector)
	for _, array := range []struct {
		at   *int32
		size int
	}{
		{&c.Q, BackwardRows * d}, {&c.DO, BackwardRows * dv}, {&c.K, BackwardKeys * int(c.Stride)},
		{&c.KT, BackwardKeys * d}, {&c.VT, BackwardKeys * dv}, {&c.DKT, BackwardKeys * d}, {&c.DVT, BackwardKeys * dv},
		{&c.S, BackwardRows * BackwardKeys}, {&c.DS, BackwardRows * BackwardKeys},
		{&c.Scratch, BackwardKeys * max(d, dv, BackwardRows)},
	} {
		*array.at = int32(slab)
		slab += (array.size + 15) / 16 * 16
	}
	return slab, BackwardKeys * (d + dv)
}

// BackwardBytes is about the memory of a Backward.
func (k *Kernels) BackwardBytes(d, dv int) uint64 {
	c := gokernels.Backward{D: int32(d), DV: int32(dv)}
	slab, sums := k.backwardLayout(&c)
	return 4*uint64(slab+sums) + BackwardRows*(uint64(unsafe.Sizeof(BackwardRow{}))+6*8+2*4*BackwardKeys)
}

// NewBackward allocates the memory of a worker.
func (k *Kernels) NewBackward(d, dv int, o BackwardOptions) *Backward {
	b := &Backward{kernels: k, c: gokernels.Backward{
		D: int32(d), DV: int32(dv), Scale: o.Scale, Softcap: o.Softcap,
		Bias: flag(o.Bias), Mask: flag(o.Mask), ALiBi: flag(o.ALiBi), WantK: flag(o.DK), WantV: flag(o.DV), Accumulate: flag(o.Accumulate),
		Dropout: o.Dropout.kernels(),
	}}
	slab, sums := k.backwardLayout(&b.c)
	b.slab, b.sums = make([]float32, slab), make([]float32, sums)
	b.Keys = make([]int32, BackwardKeys)
	for _, at := range []*[]int64{&b.QAt, &b.OAt, &b.DOAt, &b.KAt, &b.VAt, &b.BiasAt, &b.MaskAt, &b.DBiasAt} {
		*at = make([]int64, max(BackwardRows, BackwardKeys))
	}
	if o.Counts {
		b.Count = make([]float32, BackwardKeys)
	}
	if o.Bias {
		b.bias = make([]float32, BackwardRows*BackwardKeys)
	}
	if o.Mask {
		b.mask = make([]int32, BackwardRows*BackwardKeys)
	}
	return b
}

// Stride is the number of elements from row to row of the float32 sums of dQ.
func (k *Kernels) Stride(d int) int { return (d + k.Vector - 1) / k.Vector * k.Vector }

// BeginKeys reads n keys at KAt and VAt and sets the sums of their gradients to 0. The
// caller has set Keys and Count.
func (b *Backward) BeginKeys(k, v []byte, n int, t Type) {
	b.n = n
	b.c.Vectors = int32((n + b.kernels.Vector - 1) / b.kernels.Vector)
	for i := n; i < BackwardKeys; i++ {
		b.Keys[i] = -1
	}
	b.c.KeysFinite = flag(b.kernels.backwardKeys(b, k, v, t))
	clear(b.slab[b.c.DKT:][:BackwardKeys*int(b.c.D)])
	clear(b.slab[b.c.DVT:][:BackwardKeys*int(b.c.DV)])
	clear(b.sums)
}

// Last is the largest key; Keys ascend.
func (b *Backward) Last() int32 { return b.Keys[b.n-1] }

// ReadRows reads n rows of Q and dO at QAt and DOAt.
func (b *Backward) ReadRows(q, dO []byte, n int, t Type) {
	b.c.Rows = int32(n)
	b.kernels.backwardRows(b, q, dO, t)
}

// Delta sets sums to rowsum(dO * O) of the rows that ReadRows has read, with O at OAt. It
// reports whether the rows of Q and dO are finite.
func (b *Backward) Delta(sums []float64, o []byte, t Type) (finite bool) {
	return b.kernels.backwardDelta(b, sums, o, t)
}

// Tile computes P, dS and the gradient of the products of a tile and adds to the sums of dK
// and dV. full says that every row attends to every key, finite that the rows of Q and dO
// are.
func (b *Backward) Tile(full, finite bool) {
	b.c.Full, b.c.RowsFinite = flag(full), flag(finite)
	b.kernels.backwardTile(b)
}

// Scores begins Tile or RowSums for a caller that modifies scores: it computes the scores of a tile, [BackwardRows]
// [BackwardKeys], and sets slope to their derivatives with respect to scaled products, of the same sizes. Bias is part of
// them.
func (b *Backward) Scores(slope []float32, full bool) (scores []float32) {
	b.c.Full, b.c.Stage = flag(full), StageScores
	b.kernels.backwardTile(b)
	gokernels.BackwardScores(&b.c, b.slab, b.Rows, b.Keys, b.bias, slope, b.n)
	return b.slab[b.c.S:][:BackwardRows*BackwardKeys]
}

// TileOf is Tile behind Scores, which the caller has modified. product has the derivatives of the modified scores with
// respect to scaled products, score those with respect to the scores that the caller has found, which dS takes.
func (b *Backward) TileOf(product, score []float32, finite bool) {
	b.c.RowsFinite, b.c.Stage = flag(finite), StageRest
	gokernels.BackwardWeigh(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.mask, product, score, b.Changes, b.Used, b.n)
	b.kernels.backwardTile(b)
}

// RowSumsOf is RowSums behind Scores.
func (b *Backward) RowSumsOf(sums []float64) {
	gokernels.BackwardWeights(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.mask, b.n, sums)
}

// Mask is the mask of a tile, [BackwardRows][BackwardKeys]: slots of 0 are excluded. ReadMask and ReadBlocks set it.
func (b *Backward) Mask() []int32 { return b.mask }

// RowSums adds the row sums of P of a tile to sums.
func (b *Backward) RowSums(sums []float64, full bool) {
	b.c.Full = flag(full)
	b.kernels.backwardSums(b, sums)
}

// AddQuery adds the tile to the sums of dQ of its rows. Scale is not applied.
func (b *Backward) AddQuery(sums []float32) {
	b.kernels.backwardQuery(b, sums)
}

// AddBias adds dS of the tile to dBias, float32 at DBiasAt.
func (b *Backward) AddBias(dBias []byte) {
	b.kernels.backwardBias(b, dBias)
}

// SumBias adds dS of the tile to sums [heads][BackwardKeys] over the rows of each head. Row
// i of the block is of head (first + i) % heads.
func (b *Backward) SumBias(sums []float64, first, heads int) {
	b.kernels.backwardBiasSum(b, sums, first, heads)
}

// Fold adds the sums of dK and dV to their totals, from which they start again at 0.
func (b *Backward) Fold() {
	total, part, n := b.sums, b.slab[b.c.DKT:], BackwardKeys*int(b.c.D)
	if b.c.WantK != 0 {
		b.kernels.fold(total, part[:n])
	}
	if b.c.WantV != 0 {
		b.kernels.fold(total[n:], b.slab[b.c.DVT:][:BackwardKeys*int(b.c.DV)])
	}
}

// Sums are the totals of dK and dV of all keys.
func (b *Backward) Sums() []float32 { return b.sums }

// AddSums adds part to the totals and sets it to 0.
func (b *Backward) AddSums(part []float32) {
	b.kernels.fold(b.sums, part)
}

// StoreDK stores the total of dK at the byte offsets at. StoreDV does the same for dV.
func (b *Backward) StoreDK(dK []byte, at []int64, t Type) {
	b.kernels.storeKeys(b, b.sums, dK, at, b.c.D, b.c.Scale, t)
}

// StoreDV is StoreDK of dV.
func (b *Backward) StoreDV(dV []byte, at []int64, t Type) {
	b.kernels.storeKeys(b, b.sums[BackwardKeys*int(b.c.D):], dV, at, b.c.DV, 1, t)
}

// StoreDQ stores dQ of n rows, the scale times sums, at the byte offsets at. With accumulate
// it adds to what dQ holds.
func (b *Backward) StoreDQ(dQ []byte, at []int64, sums []float32, n int, accumulate bool, t Type) {
	b.kernels.storeRows(b, sums, dQ, at, n, accumulate, t)
}

// ReadBias gathers the bias of the block's rows at the keys.
func (b *Backward) ReadBias(bias []byte, t Type) {
	b.kernels.backwardReadBias(b, bias, t)
}

// ReadMask gathers a byte mask of the block's rows at the keys. It returns false if the mask
// excludes all slots.
func (b *Backward) ReadMask(mask []byte) bool {
	return b.kernels.backwardReadMask(b, mask)
}

// ReadBlocks is ReadMask of a bitmap of blocks of 2^shift keys.
func (b *Backward) ReadBlocks(bitmap []byte, shift int) bool {
	return b.kernels.backwardReadBlocks(b, bitmap, shift)
}
