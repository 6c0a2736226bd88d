//go:build !cgo || windows

package simd

import "vkattn/internal/gokernels"

// This file stands in for simd_cgo.go in builds without cgo, and for Windows, where GCC does not align the stack
// as spilled AVX registers need it: all kernels are those of package gokernels.

type cKernels struct{}

// Sets returns the kernels for the instruction sets of this CPU, best first.
func Sets() []*Kernels { return []*Kernels{inGo} }

func packQ(_ *Kernels, q []float32, base []byte, at []int64, vectors, d int, t Type) (least int) {
	gokernels.PackQ(q, base, at, vectors, d, t)
	return 0
}

func attend(g *Group, c *gokernels.Tile, t *Tile, scores []float32) { attendInGo(g, c, t, scores) }

func finish(_ *Kernels, o, state []float32, base []byte, at []int64, rows, vectors, dv int, t Type, keep float32) {
	gokernels.Finish(o, state, base, at, rows, vectors, dv, t, keep)
}

func widen(_ *Kernels, dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) (least int) {
	gokernels.Widen(dst, rows, at, scales, d, t)
	return 0
}

func readBias(_ *Kernels, dst []float32, bias []byte, at []int64, keys []int32, vectors int, t Type) {
	gokernels.ReadBias(dst, bias, at, keys, vectors, t)
}

func readMask(_ *Kernels, dst []int32, mask []byte, at []int64, keys []int32, vectors int) bool {
	return gokernels.ReadMask(dst, mask, at, keys, vectors)
}

func readBlocks(_ *Kernels, dst []int32, bitmap []byte, at []int64, keys []int32, vectors, shift int) bool {
	return gokernels.ReadBlocks(dst, bitmap, at, keys, vectors, shift)
}

func exps(_ *Kernels, x []float32)  { gokernels.Exp(x) }
func tanhs(_ *Kernels, x []float32) { gokernels.Tanh(x) }

func backwardKeys(b *Backward, k, v []byte, n int, t Type) bool {
	return gokernels.BackwardKeys(&b.c, b.slab, k, b.KAt, v, b.VAt, n, t)
}

func backwardRows(b *Backward, q, dO []byte, t Type) {
	gokernels.BackwardRows(&b.c, b.slab, q, b.QAt, dO, b.DOAt, t)
}

func backwardDelta(b *Backward, sums []float64, o []byte, t Type) bool {
	return gokernels.BackwardDelta(&b.c, b.slab, sums, o, b.OAt, t)
}

func backwardTile(b *Backward) {
	gokernels.BackwardTile(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n)
}

func backwardSums(b *Backward, sums []float64) {
	gokernels.BackwardSums(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n, sums)
}

func backwardQuery(b *Backward, sums []float32) {
	gokernels.BackwardQuery(&b.c, b.slab, b.Rows, b.Keys, sums, b.n)
}

func backwardBias(b *Backward, dBias []byte) {
	gokernels.BackwardBias(&b.c, b.slab, dBias, b.DBiasAt, b.Keys, b.n)
}

func backwardBiasSum(b *Backward, sums []float64, first, heads int) {
	gokernels.BackwardBiasSum(&b.c, b.slab, sums, first, heads)
}

func fold(_ *Kernels, total, part []float32) { gokernels.BackwardFold(total, part) }

func storeRows(b *Backward, x []float32, base []byte, at []int64, n int, accumulate bool, t Type) {
	gokernels.BackwardStore(x, int(b.c.Stride), base, at, n, int(b.c.D), b.c.Scale, accumulate, t)
}

func storeKeys(b *Backward, x []float32, base []byte, at []int64, d int32, scale float32, t Type) {
	gokernels.BackwardStoreKeys(&b.c, b.slab, x, base, at, b.n, int(d), scale, t)
}

func backwardReadBias(b *Backward, bias []byte, t Type) {
	gokernels.BackwardReadBias(&b.c, b.bias, bias, b.BiasAt, b.Keys, b.n, t)
}

func backwardReadMask(b *Backward, mask []byte) bool {
	return gokernels.BackwardReadMask(&b.c, b.mask, mask, b.MaskAt, b.Keys, b.n)
}

func backwardReadBlocks(b *Backward, bitmap []byte, shift int) bool {
	return gokernels.BackwardReadBlocks(&b.c, b.mask, bitmap, b.MaskAt, b.Keys, b.n, shift)
}
