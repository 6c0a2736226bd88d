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

// cSet has the kernels in C for an instruction set.
type cSet struct{ c *C.simd_kernels }

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

func init() {
	for i := C.int32_t(0); ; i++ {
		c := C.simd_set(i)
		if c == nil {
			return
		}
		inC = append(inC, &Kernels{cSet{c}, C.GoString(c.name), int(c.lanes), int(c.vector), c.pairs != 0})
	}
}

func floats(x []float32) *C.float   { return (*C.float)(unsafe.SliceData(x)) }
func ints(x []int32) *C.int32_t     { return (*C.int32_t)(unsafe.SliceData(x)) }
func ints64(x []int64) *C.int64_t   { return (*C.int64_t)(unsafe.SliceData(x)) }
func doubles(x []float64) *C.double { return (*C.double)(unsafe.SliceData(x)) }
func pointer(b []byte) *C.uint8_t   { return (*C.uint8_t)(unsafe.SliceData(b)) }

func (k cSet) packQ(g *Group, q []byte, t Type) (least int) {
	return int(C.simd_pack_q(k.c, floats(g.q), pointer(q), ints64(g.QAt), C.int32_t(g.vectors), C.int32_t(g.d), C.int32_t(t)))
}

func (k cSet) attend(g *Group, scores []float32) {
	t := &g.tile
	C.simd_attend(k.c, (*C.simd_tile)(unsafe.Pointer(&g.c)), floats(g.q), floats(g.o), floats(scores), floats(g.state), ints(g.Span),
		doubles(g.Position), (*C.float)(t.K), (*C.float)(t.V), ints(t.Keys), floats(t.Bias), ints(t.Mask),
		(*C.uint32_t)(unsafe.SliceData(g.Slots)))
}

func (k cSet) finish(g *Group, o []byte, t Type, rows int, keep float32) {
	C.simd_finish(k.c, floats(g.o), floats(g.state), pointer(o), ints64(g.OAt), C.int32_t(rows), C.int32_t(g.vectors), C.int32_t(g.dv),
		C.int32_t(t), C.float(keep))
}

func (k cSet) Widen(dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) (least int) {
	return int(C.simd_widen(k.c, floats(dst), pointer(rows), ints64(at), floats(scales), C.int32_t(len(at)), C.int32_t(d), C.int32_t(t)))
}

func (k cSet) readBias(g *Group, dst []float32, bias []byte, keys []int32, t Type) {
	C.simd_read_bias(k.c, floats(dst), pointer(bias), ints64(g.BiasAt), ints(keys), C.int32_t(g.vectors), C.int32_t(len(keys)), C.int32_t(t))
}

func (k cSet) readMask(g *Group, dst []int32, mask []byte, keys []int32) bool {
	return C.simd_read_mask(k.c, ints(dst), pointer(mask), ints64(g.MaskAt), ints(keys), C.int32_t(g.vectors), C.int32_t(len(keys))) != 0
}

func (k cSet) readBlocks(g *Group, dst []int32, bitmap []byte, keys []int32, shift int) bool {
	return C.simd_read_blocks(k.c, ints(dst), pointer(bitmap), ints64(g.MaskAt), ints(keys), C.int32_t(g.vectors), C.int32_t(len(keys)), C.int32_t(shift)) != 0
}

func (k cSet) Exp(x []float32) {
	C.simd_map(k.c, 0, floats(x), C.int32_t(len(x)/int(k.c.vector)))
}

func (k cSet) Tanh(x []float32) {
	C.simd_map(k.c, 1, floats(x), C.int32_t(len(x)/int(k.c.vector)))
}

func (b *Backward) tile() *C.simd_backward { return (*C.simd_backward)(unsafe.Pointer(&b.c)) }

func rowsOf(b *Backward) *C.simd_row {
	return (*C.simd_row)(unsafe.Pointer(unsafe.SliceData(b.Rows)))
}

func (set cSet) backwardKeys(b *Backward, k, v []byte, t Type) bool {
	return C.simd_backward_keys(set.c, b.tile(), floats(b.slab), pointer(k), ints64(b.KAt), pointer(v), ints64(b.VAt),
		C.int32_t(b.n), C.int32_t(t)) != 0
}

func (k cSet) backwardRows(b *Backward, q, dO []byte, t Type) {
	C.simd_backward_rows(k.c, b.tile(), floats(b.slab), pointer(q), ints64(b.QAt), pointer(dO), ints64(b.DOAt), C.int32_t(t))
}

func (k cSet) backwardDelta(b *Backward, sums []float64, o []byte, t Type) bool {
	return C.simd_backward_delta(k.c, b.tile(), floats(b.slab), doubles(sums), pointer(o),
		ints64(b.OAt), C.int32_t(t)) != 0
}

func (k cSet) backwardTile(b *Backward) {
	C.simd_backward_tile(k.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(b.Count), floats(b.bias),
		ints(b.mask), C.int32_t(b.n))
}

func (k cSet) backwardSums(b *Backward, sums []float64) {
	C.simd_backward_sums(k.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(b.Count), floats(b.bias),
		ints(b.mask), C.int32_t(b.n), doubles(sums))
}

func (k cSet) backwardQuery(b *Backward, sums []float32) {
	C.simd_backward_query(k.c, b.tile(), floats(b.slab), rowsOf(b), ints(b.Keys), floats(sums), C.int32_t(b.n))
}

func (k cSet) backwardBias(b *Backward, dBias []byte) {
	C.simd_backward_bias(k.c, b.tile(), floats(b.slab), (*C.float)(unsafe.Pointer(pointer(dBias))), ints64(b.DBiasAt), ints(b.Keys), C.int32_t(b.n))
}

func (k cSet) backwardBiasSum(b *Backward, sums []float64, first, heads int) {
	C.simd_backward_bias_sum(k.c, b.tile(), floats(b.slab), doubles(sums), C.int32_t(first), C.int32_t(heads))
}

func (k cSet) fold(total, part []float32) {
	C.simd_backward_fold(k.c, floats(total), floats(part), C.int32_t(len(part)))
}

func (k cSet) storeRows(b *Backward, x []float32, base []byte, at []int64, n int, accumulate bool, t Type) {
	C.simd_backward_store(k.c, floats(x), C.int64_t(b.c.Stride), pointer(base), ints64(at), C.int32_t(n), C.int32_t(b.c.D),
		C.float(b.c.Scale), C.int32_t(flag(accumulate)), C.int32_t(t))
}

func (k cSet) storeKeys(b *Backward, x []float32, base []byte, at []int64, d int32, scale float32, t Type) {
	C.simd_backward_store_keys(k.c, b.tile(), floats(b.slab), floats(x), pointer(base), ints64(at), C.int32_t(b.n),
		C.int32_t(d), C.float(scale), C.int32_t(t))
}

func (k cSet) backwardReadBias(b *Backward, bias []byte, t Type) {
	C.simd_backward_read_bias(k.c, b.tile(), floats(b.bias), pointer(bias), ints64(b.BiasAt), ints(b.Keys), C.int32_t(b.n), C.int32_t(t))
}

func (k cSet) backwardReadMask(b *Backward, mask []byte) bool {
	return C.simd_backward_read_mask(k.c, b.tile(), ints(b.mask), pointer(mask), ints64(b.MaskAt), ints(b.Keys), C.int32_t(b.n)) != 0
}

func (k cSet) backwardReadBlocks(b *Backward, bitmap []byte, shift int) bool {
	return C.simd_backward_read_blocks(k.c, b.tile(), ints(b.mask), pointer(bitmap), ints64(b.MaskAt), ints(b.Keys),
		C.int32_t(b.n), C.int32_t(shift)) != 0
}
