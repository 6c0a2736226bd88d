//go:build !windows

package simd

/*
#cgo CFLAGS: -O3 -std=c11 -Wall
#cgo LDFLAGS: -lm
#include "kernels.h"

#cgo noescape simd_pack_q
#cgo nocallback simd_pack_q
#cgo noescape simd_attend
#cgo nocallback simd_attend
#cgo noescape simd_finish
#cgo nocallback simd_finish
#cgo noescape simd_widen
#cgo nocallback simd_widen
#cgo noescape simd_read_bias
#cgo nocallback simd_read_bias
#cgo noescape simd_read_mask
#cgo nocallback simd_read_mask
#cgo noescape simd_read_blocks
#cgo nocallback simd_read_blocks
#cgo noescape simd_map
#cgo nocallback simd_map

#define LIST(...) __VA_ARGS__
#define CALL(type, name, parameters, arguments) \
	static type simd_##name(const simd_kernels *set, LIST parameters) { return set->name arguments; }
SIMD_KERNELS(CALL)
static void simd_map(const simd_kernels *k, int32_t which, float *x, int32_t vectors) {
	(which ? k->tanhs : k->exps)(x, vectors);
}

#cgo noescape simd_backward_keys
#cgo nocallback simd_backward_keys
#cgo noescape simd_backward_rows
#cgo nocallback simd_backward_rows
#cgo noescape simd_backward_delta
#cgo nocallback simd_backward_delta
#cgo noescape simd_backward_tile
#cgo nocallback simd_backward_tile
#cgo noescape simd_backward_sums
#cgo nocallback simd_backward_sums
#cgo noescape simd_backward_query
#cgo nocallback simd_backward_query
#cgo noescape simd_backward_bias
#cgo nocallback simd_backward_bias
#cgo noescape simd_backward_bias_sum
#cgo nocallback simd_backward_bias_sum
#cgo noescape simd_backward_fold
#cgo nocallback simd_backward_fold
#cgo noescape simd_backward_store
#cgo nocallback simd_backward_store
#cgo noescape simd_backward_store_keys
#cgo nocallback simd_backward_store_keys
#cgo noescape simd_backward_read_bias
#cgo nocallback simd_backward_read_bias
#cgo noescape simd_backward_read_mask
#cgo nocallback simd_backward_read_mask
#cgo noescape simd_backward_read_blocks
#cgo nocallback simd_backward_read_blocks
*/
import "C"

import (
	"unsafe"

	"vkattn/internal/gokernels"
)

// This file has the calls of the kernels in C. simd_nocgo.go has the same functions for builds without cgo. The
// kernels of package gokernels, which are there too, have no C: tests compare them.

type cKernels = C.simd_kernels

// The layouts and numbers of package gokernels are those of kernels.h: these do not compile otherwise.
var (
	_ [unsafe.Sizeof(gokernels.Tile{})]byte             = [C.sizeof_simd_tile]byte{}
	_ [unsafe.Sizeof(gokernels.Backward{})]byte         = [C.sizeof_simd_backward]byte{}
	_ [unsafe.Sizeof(gokernels.Row{})]byte              = [C.sizeof_simd_row]byte{}
	_ [unsafe.Offsetof(gokernels.Tile{}.Dropout)]byte   = [unsafe.Offsetof(C.simd_tile{}.dropout)]byte{}
	_ [unsafe.Offsetof(gokernels.Backward{}.Rows)]byte  = [unsafe.Offsetof(C.simd_backward{}.rows)]byte{}
	_ [unsafe.Offsetof(gokernels.Backward{}.Scale)]byte = [unsafe.Offsetof(C.simd_backward{}.scale)]byte{}
	_ [unsafe.Offsetof(gokernels.Row{}.Head)]byte       = [unsafe.Offsetof(C.simd_row{}.head)]byte{}

	_ = [1]struct{}{}[gokernels.Keys-C.SIMD_KEYS|gokernels.Summed-C.SIMD_SUMMED|gokernels.Rows-C.SIMD_ROWS|
		gokernels.Columns-C.SIMD_COLUMNS|gokernels.StateLSE-C.SIMD_LSE|gokernels.States-C.SIMD_STATES|
		gokernels.Pairs-C.SIMD_PAIRS|gokernels.RowPairs-C.SIMD_ROW_PAIRS|gokernels.Paired-C.SIMD_PAIRED|
		gokernels.PairedFMA-C.SIMD_PAIRED_FMA|gokernels.Exact-C.SIMD_EXACT|gokernels.StateStarted-C.SIMD_STARTED|gokernels.F32-C.SIMD_F32|gokernels.Quantized-C.SIMD_QUANTIZED]
)

// Sets returns the kernels for the instruction sets of this CPU, best first.
func Sets() (all []*Kernels) {
	for i := C.int32_t(0); ; i++ {
		c := C.simd_set(i)
		if c == nil {
			return all
		}
		all = append(all, &Kernels{c, C.GoString(c.name), int(c.lanes), int(c.vector), c.pairs != 0})
	}
}

func floats(x []float32) *C.float   { return (*C.float)(unsafe.SliceData(x)) }
func ints(x []int32) *C.int32_t     { return (*C.int32_t)(unsafe.SliceData(x)) }
func ints64(x []int64) *C.int64_t   { return (*C.int64_t)(unsafe.SliceData(x)) }
func doubles(x []float64) *C.double { return (*C.double)(unsafe.SliceData(x)) }
func pointer(b []byte) *C.uint8_t   { return (*C.uint8_t)(unsafe.SliceData(b)) }

func packQ(k *Kernels, q []float32, base []byte, at []int64, vectors, d int, t Type) (least int) {
	if k.c == nil {
		gokernels.PackQ(q, base, at, vectors, d, t)
		return 0
	}
	return int(C.simd_pack_q(k.c, floats(q), pointer(base), ints64(at), C.int32_t(vectors), C.int32_t(d), C.int32_t(t)))
}

func attend(g *Group, c *gokernels.Tile, t *Tile, scores []float32) {
	if g.kernels.c == nil {
		attendInGo(g, c, t, scores)
		return
	}
	C.simd_attend(g.kernels.c, (*C.simd_tile)(unsafe.Pointer(c)), floats(g.q), floats(g.o), floats(scores), floats(g.state), ints(g.Span),
		doubles(g.Position), (*C.float)(t.K), (*C.float)(t.V), ints(t.Keys), floats(t.Bias), ints(t.Mask),
		(*C.uint32_t)(unsafe.SliceData(g.Slots)))
}

func finish(k *Kernels, o, state []float32, base []byte, at []int64, rows, vectors, dv int, t Type, keep float32) {
	if k.c == nil {
		gokernels.Finish(o, state, base, at, rows, vectors, dv, t, keep)
		return
	}
	C.simd_finish(k.c, floats(o), floats(state), pointer(base), ints64(at), C.int32_t(rows), C.int32_t(vectors), C.int32_t(dv), C.int32_t(t), C.float(keep))
}

func widen(k *Kernels, dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) (least int) {
	if k.c == nil {
		gokernels.Widen(dst, rows, at, scales, d, t)
		return 0
	}
	return int(C.simd_widen(k.c, floats(dst), pointer(rows), ints64(at), floats(scales), C.int32_t(len(at)), C.int32_t(d), C.int32_t(t)))
}

func readBias(k *Kernels, dst []float32, bias []byte, at []int64, keys []int32, vectors int, t Type) {
	if k.c == nil {
		gokernels.ReadBias(dst, bias, at, keys, vectors, t)
		return
	}
	C.simd_read_bias(k.c, floats(dst), pointer(bias), ints64(at), ints(keys), C.int32_t(vectors), C.int32_t(len(keys)), C.int32_t(t))
}

func readMask(k *Kernels, dst []int32, mask []byte, at []int64, keys []int32, vectors int) bool {
	if k.c == nil {
		return gokernels.ReadMask(dst, mask, at, keys, vectors)
	}
	return C.simd_read_mask(k.c, ints(dst), pointer(mask), ints64(at), ints(keys), C.int32_t(vectors), C.int32_t(len(keys))) != 0
}

func readBlocks(k *Kernels, dst []int32, bitmap []byte, at []int64, keys []int32, vectors, shift int) bool {
	if k.c == nil {
		return gokernels.ReadBlocks(dst, bitmap, at, keys, vectors, shift)
	}
	return C.simd_read_blocks(k.c, ints(dst), pointer(bitmap), ints64(at), ints(keys), C.int32_t(vectors), C.int32_t(len(keys)), C.int32_t(shift)) != 0
}

func exps(k *Kernels, x []float32) {
	if k.c == nil {
		gokernels.Exp(x)
		return
	}
	C.simd_map(k.c, 0, floats(x), C.int32_t(len(x)/k.Vector))
}

func tanhs(k *Kernels, x []float32) {
	if k.c == nil {
		gokernels.Tanh(x)
		return
	}
	C.simd_map(k.c, 1, floats(x), C.int32_t(len(x)/k.Vector))
}

func (b *Backward) tile() *C.simd_backward { return (*C.simd_backward)(unsafe.Pointer(&b.c)) }

func rowsOf(b *Backward) *C.simd_row {
	return (*C.simd_row)(unsafe.Pointer(unsafe.SliceData(b.Rows)))
}

func backwardKeys(b *Backward, k, v []byte, n int, t Type) bool {
	if b.kernels.c == nil {
		return gokernels.BackwardKeys(&b.c, b.slab, k, b.KAt, v, b.VAt, n, t)
	}
	return C.simd_backward_keys(b.kernels.c, b.tile(), floats(b.slab), pointer(k), ints64(b.KAt), pointer(v), ints64(b.VAt),
		C.int32_t(n), C.int32_t(t)) != 0
}

func backwardRows(b *Backward, q, dO []byte, t Type) {
	if b.kernels.c == nil {
		gokernels.BackwardRows(&b.c, b.slab, q, b.QAt, dO, b.DOAt, t)
		return
	}
	C.simd_backward_rows(b.kernels.c, b.tile(), floats(b.slab), pointer(q), ints64(b.QAt), pointer(dO), ints64(b.DOAt), C.int32_t(t))
}

func backwardDelta(b *Backward, sums []float64, o []byte, t Type) bool {
	if b.kernels.c == nil {
		return gokernels.BackwardDelta(&b.c, b.slab, sums, o, b.OAt, t)
	}
	return C.simd_backward_delta(b.kernels.c, b.tile(), floats(b.slab), doubles(sums), pointer(o),
		ints64(b.OAt), C.int32_t(t)) != 0
}

func backwardTile(b *Backward) {
	if b.kernels.c == nil {
		gokernels.BackwardTile(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n)
		return
	}
	C.simd_backward_tile(b.kernels.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(b.Count), floats(b.bias),
		ints(b.mask), C.int32_t(b.n))
}

func backwardSums(b *Backward, sums []float64) {
	if b.kernels.c == nil {
		gokernels.BackwardSums(&b.c, b.slab, b.Rows, b.Keys, b.Count, b.bias, b.mask, b.n, sums)
		return
	}
	C.simd_backward_sums(b.kernels.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(b.Count), floats(b.bias),
		ints(b.mask), C.int32_t(b.n), doubles(sums))
}

func backwardQuery(b *Backward, sums []float32) {
	if b.kernels.c == nil {
		gokernels.BackwardQuery(&b.c, b.slab, b.Rows, b.Keys, sums, b.n)
		return
	}
	C.simd_backward_query(b.kernels.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(sums), C.int32_t(b.n))
}

func backwardBias(b *Backward, dBias []byte) {
	if b.kernels.c == nil {
		gokernels.BackwardBias(&b.c, b.slab, dBias, b.DBiasAt, b.Keys, b.n)
		return
	}
	C.simd_backward_bias(b.kernels.c, b.tile(), floats(b.slab), (*C.float)(unsafe.Pointer(pointer(dBias))), ints64(b.DBiasAt), ints(b.Keys), C.int32_t(b.n))
}

func backwardBiasSum(b *Backward, sums []float64, first, heads int) {
	if b.kernels.c == nil {
		gokernels.BackwardBiasSum(&b.c, b.slab, sums, first, heads)
		return
	}
	C.simd_backward_bias_sum(b.kernels.c, b.tile(), floats(b.slab), doubles(sums), C.int32_t(first), C.int32_t(heads))
}

func fold(k *Kernels, total, part []float32) {
	if k.c == nil {
		gokernels.BackwardFold(total, part)
		return
	}
	C.simd_backward_fold(k.c, floats(total), floats(part), C.int32_t(len(part)))
}

func storeRows(b *Backward, x []float32, base []byte, at []int64, n int, accumulate bool, t Type) {
	if b.kernels.c == nil {
		gokernels.BackwardStore(x, int(b.c.Stride), base, at, n, int(b.c.D), b.c.Scale, accumulate, t)
		return
	}
	C.simd_backward_store(b.kernels.c, floats(x), C.int64_t(b.c.Stride), pointer(base), ints64(at), C.int32_t(n), C.int32_t(b.c.D),
		C.float(b.c.Scale), C.int32_t(flag(accumulate)), C.int32_t(t))
}

func storeKeys(b *Backward, x []float32, base []byte, at []int64, d int32, scale float32, t Type) {
	if b.kernels.c == nil {
		gokernels.BackwardStoreKeys(&b.c, b.slab, x, base, at, b.n, int(d), scale, t)
		return
	}
	C.simd_backward_store_keys(b.kernels.c, b.tile(), floats(b.slab), floats(x), pointer(base), ints64(at), C.int32_t(b.n),
		C.int32_t(d), C.float(scale), C.int32_t(t))
}

func backwardReadBias(b *Backward, bias []byte, t Type) {
	if b.kernels.c == nil {
		gokernels.BackwardReadBias(&b.c, b.bias, bias, b.BiasAt, b.Keys, b.n, t)
		return
	}
	C.simd_backward_read_bias(b.kernels.c, b.tile(), floats(b.bias), pointer(bias), ints64(b.BiasAt), ints(b.Keys), C.int32_t(b.n), C.int32_t(t))
}

func backwardReadMask(b *Backward, mask []byte) bool {
	if b.kernels.c == nil {
		return gokernels.BackwardReadMask(&b.c, b.mask, mask, b.MaskAt, b.Keys, b.n)
	}
	return C.simd_backward_read_mask(b.kernels.c, b.tile(), ints(b.mask), pointer(mask), ints64(b.MaskAt), ints(b.Keys), C.int32_t(b.n)) != 0
}

func backwardReadBlocks(b *Backward, bitmap []byte, shift int) bool {
	if b.kernels.c == nil {
		return gokernels.BackwardReadBlocks(&b.c, b.mask, bitmap, b.MaskAt, b.Keys, b.n, shift)
	}
	return C.simd_backward_read_blocks(b.kernels.c, b.tile(), ints(b.mask), pointer(bitmap), ints64(b.MaskAt), ints(b.Keys),
		C.int32_t(b.n), C.int32_t(shift)) != 0
}
