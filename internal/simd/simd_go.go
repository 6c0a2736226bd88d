package simd

import "vkattn/internal/gokernels"

// goSet has the kernels of package gokernels.
type goSet struct{}

func (goSet) packQ(g *Group, q []byte, t Type) (least int) {
	gokernels.PackQ(g.q, q, g.QAt, g.vectors, g.d, t)
	return 0
}

func (goSet) attend(g *Group, scores []float32) {
	t := &g.tile
	gokernels.Attend(&g.c, g.q, g.o, scores, g.state, g.Span, g.Position, t.K, t.V, t.Keys, t.Bias, t.Mask, g.Slots)
}

func (goSet) finish(g *Group, o []byte, t Type, rows int, keep float32) {
	gokernels.Finish(g.o, g.state, o, g.OAt, rows, g.vectors, g.dv, t, keep)
}

func (goSet) readBias(g *Group, dst []float32, bias []byte, keys []int32, t Type) {
	gokernels.ReadBias(dst, bias, g.BiasAt, keys, g.vectors, t)
}

func (goSet) readMask(g *Group, dst []int32, mask []byte, keys []int32) bool {
	return gokernels.ReadMask(dst, mask, g.MaskAt, keys, g.vectors)
}

func (goSet) readBlocks(g *Group, dst []int32, bitmap []byte, keys []int32, shift int) bool {
	return gokernels.ReadBlocks(dst, bitmap, g.MaskAt, keys, g.vectors, shift)
}

func (goSet) Widen(dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) (least int) {
	gokernels.Widen(dst, rows, at, scales, d, t)
	return 0
}

func (goSet) Exp(x []float32)            { gokernels.Exp(x) }
func (goSet) Tanh(x []float32)           { gokernels.Tanh(x) }
func (goSet) fold(total, part []float32) { gokernels.BackwardFold(total, part) }

func (goSet) backwardKeys(b *Backward, k, v []byte, t Type) bool {
	return gokernels.BackwardKeys(&b.c, b.slab, k, b.KAt, v, b.VAt, b.n, t)
}

func (goSet) backwardRows(b *Backward, q, dO []byte, t Type) {
	gokernels.BackwardRows(&b.c, b.slab, q, b.QAt, dO, b.DOAt, t)
}

func (goSet) backwardDelta(b *Backward, sums []float64, o []byte, t Type) bool {
	return gokernels.BackwardDelta(&b.c, b.slab, sums, o, b.OAt, t)
}

func (goSet) backwardTile(b *Backward) {
	gokernels.BackwardTile(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n)
}

func (goSet) backwardSums(b *Backward, sums []float64) {
	gokernels.BackwardSums(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n, sums)
}

func (goSet) backwardQuery(b *Backward, sums []float32) {
	gokernels.BackwardQuery(&b.c, b.slab, b.Rows, b.Keys, sums, b.n)
}

func (goSet) backwardBias(b *Backward, dBias []byte) {
	gokernels.BackwardBias(&b.c, b.slab, dBias, b.DBiasAt, b.Keys, b.n)
}

func (goSet) backwardBiasSum(b *Backward, sums []float64, first, heads int) {
	gokernels.BackwardBiasSum(&b.c, b.slab, sums, first, heads)
}

func (goSet) storeRows(b *Backward, x []float32, base []byte, at []int64, n int, accumulate bool, t Type) {
	gokernels.BackwardStore(x, int(b.c.Stride), base, at, n, int(b.c.D), b.c.Scale, accumulate, t)
}

func (goSet) storeKeys(b *Backward, x []float32, base []byte, at []int64, d int32, scale float32, t Type) {
	gokernels.BackwardStoreKeys(&b.c, b.slab, x, base, at, b.n, int(d), scale, t)
}

func (goSet) backwardReadBias(b *Backward, bias []byte, t Type) {
	gokernels.BackwardReadBias(&b.c, b.bias, bias, b.BiasAt, b.Keys, b.n, t)
}

func (goSet) backwardReadMask(b *Backward, mask []byte) bool {
	return gokernels.BackwardReadMask(&b.c, b.mask, mask, b.MaskAt, b.Keys, b.n)
}

func (goSet) backwardReadBlocks(b *Backward, bitmap []byte, shift int) bool {
	return gokernels.BackwardReadBlocks(&b.c, b.mask, bitmap, b.MaskAt, b.Keys, b.n, shift)
}
