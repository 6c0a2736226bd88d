package simd

/*
#include "kernels.h"

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

static int32_t simd_backward_keys(const simd_kernels *x, const simd_backward *t, float *slab, const void *k, const int64_t *k_at,
	const void *v, const int64_t *v_at, int32_t n, int32_t type) {
	return x->backward_keys(t, slab, k, k_at, v, v_at, n, type);
}
static void simd_backward_rows(const simd_kernels *x, const simd_backward *t, float *slab, const void *q, const int64_t *q_at,
	const void *dO, const int64_t *dO_at, int32_t type) {
	x->backward_rows(t, slab, q, q_at, dO, dO_at, type);
}
static int32_t simd_backward_delta(const simd_kernels *x, const simd_backward *t, float *slab, double *sums, const void *o,
	const int64_t *o_at, int32_t type) {
	return x->backward_delta(t, slab, sums, o, o_at, type);
}
static void simd_backward_tile(const simd_kernels *x, const simd_backward *t, float *slab, const void *row,
	const int32_t *keys, const float *count, const float *bias, const int32_t *mask, int32_t n) {
	x->backward_tile(t, slab, row, keys, count, bias, mask, n);
}
static void simd_backward_sums(const simd_kernels *x, const simd_backward *t, float *slab, const void *row,
	const int32_t *keys, const float *count, const float *bias, const int32_t *mask, int32_t n, double *sums) {
	x->backward_sums(t, slab, row, keys, count, bias, mask, n, sums);
}
static void simd_backward_query(const simd_kernels *x, const simd_backward *t, const float *slab, const void *row,
	const int32_t *keys, float *dq, int32_t n) {
	x->backward_query(t, slab, row, keys, dq, n);
}
static void simd_backward_bias(const simd_kernels *x, const simd_backward *t, const float *slab, void *base,
	const int64_t *at, const int32_t *keys, int32_t n) {
	x->backward_bias(t, slab, base, at, keys, n);
}
static void simd_backward_bias_sum(const simd_kernels *x, const simd_backward *t, const float *slab, double *sums,
	int32_t first, int32_t n) {
	x->backward_bias_sum(t, slab, sums, first, n);
}
static void simd_backward_fold(const simd_kernels *x, float *total, float *part, int32_t n) {
	x->backward_fold(total, part, n);
}
static void simd_backward_store(const simd_kernels *x, const float *rows, int64_t stride, void *base, const int64_t *at,
	int32_t n, int32_t d, float scale, int32_t accumulate, int32_t type) {
	x->backward_store(rows, stride, base, at, n, d, scale, accumulate, type);
}
static void simd_backward_store_keys(const simd_kernels *x, const simd_backward *t, float *slab, const float *sums, void *base,
	const int64_t *at, int32_t n, int32_t d, float scale, int32_t type) {
	x->backward_store_keys(t, slab, sums, base, at, n, d, scale, type);
}
static void simd_backward_read_bias(const simd_kernels *x, const simd_backward *t, float *dst, const void *base,
	const int64_t *at, const int32_t *keys, int32_t n, int32_t type) {
	x->backward_read_bias(t, dst, base, at, keys, n, type);
}
static int32_t simd_backward_read_mask(const simd_kernels *x, const simd_backward *t, int32_t *dst, const void *base,
	const int64_t *at, const int32_t *keys, int32_t n) {
	return x->backward_read_mask(t, dst, base, at, keys, n);
}
static int32_t simd_backward_read_blocks(const simd_kernels *x, const simd_backward *t, int32_t *dst, const void *base,
	const int64_t *at, const int32_t *keys, int32_t n, int32_t shift) {
	return x->backward_read_blocks(t, dst, base, at, keys, n, shift);
}
*/
import "C"

import "unsafe"

// Go calls of the C kernels of the gradients (backward.h): their memory, and one method per
// kernel.

// Rows and keys of a tile of the backward pass.
const (
	BackwardRows = C.SIMD_ROWS
	BackwardKeys = C.SIMD_COLUMNS
)

// BackwardRow is a query row of a tile of the backward pass; C has the same struct.
type BackwardRow struct {
	Position   float64 // among the keys, for ALiBi
	LSE, Delta float32 // Delta is rowsum(dO * O) - dLSE
	First, End int32   // keys that the row attends to
	Slope      float32 // for ALiBi
	Factor     float32 // of P: corrects the rounding of a large LSE
	Row, Head  uint32  // for dropout: the row in its sequence, and b*Hq + h
}

var _ [unsafe.Sizeof(BackwardRow{})]byte = [C.sizeof_simd_row]byte{}

// Backward is the memory of one worker of the backward pass: a block of keys with the sums
// of its dK and dV, a block of query rows, and a tile of their scores.
type Backward struct {
	kernels *Kernels
	c       C.simd_backward
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
func (k *Kernels) backwardLayout(c *C.simd_backward) (slab, sums int) {
	d, dv := int(c.d), int(c.dv)
	c.stride = C.int32_t((d + k.Vector - 1) / k.Vector * k.Vector)
	for _, array := range []struct {
		at   *C.int32_t
		size int
	}{
		{&c.q, BackwardRows * d}, {&c.dO, BackwardRows * dv}, {&c.k, BackwardKeys * int(c.stride)},
		{&c.kt, BackwardKeys * d}, {&c.vt, BackwardKeys * dv}, {&c.dkt, BackwardKeys * d}, {&c.dvt, BackwardKeys * dv},
		{&c.s, BackwardRows * BackwardKeys}, {&c.ds, BackwardRows * BackwardKeys},
		{&c.scratch, BackwardKeys * max(d, dv, BackwardRows)},
	} {
		*array.at = C.int32_t(slab)
		slab += (array.size + 15) / 16 * 16
	}
	return slab, BackwardKeys * (d + dv)
}

// BackwardBytes is about the memory of a Backward.
func (k *Kernels) BackwardBytes(d, dv int) uint64 {
	c := C.simd_backward{d: C.int32_t(d), dv: C.int32_t(dv)}
	slab, sums := k.backwardLayout(&c)
	return 4*uint64(slab+sums) + BackwardRows*(uint64(unsafe.Sizeof(BackwardRow{}))+6*8+2*4*BackwardKeys)
}

// NewBackward allocates the memory of a worker.
func (k *Kernels) NewBackward(d, dv int, o BackwardOptions) *Backward {
	b := &Backward{kernels: k, c: C.simd_backward{
		d: C.int32_t(d), dv: C.int32_t(dv), scale: C.float(o.Scale), softcap: C.float(o.Softcap),
		bias: flag(o.Bias), mask: flag(o.Mask), alibi: flag(o.ALiBi), want_k: flag(o.DK), want_v: flag(o.DV), accumulate: flag(o.Accumulate),
		dropout: o.Dropout.c(),
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
	b.c.vectors = C.int32_t((n + b.kernels.Vector - 1) / b.kernels.Vector)
	for i := n; i < BackwardKeys; i++ {
		b.Keys[i] = -1
	}
	b.c.keys_finite = C.simd_backward_keys(b.kernels.c, &b.c, floats(b.slab), pointer(k), ints64(b.KAt), pointer(v),
		ints64(b.VAt), C.int32_t(n), C.int32_t(t))
	clear(b.slab[b.c.dkt:][:BackwardKeys*int(b.c.d)])
	clear(b.slab[b.c.dvt:][:BackwardKeys*int(b.c.dv)])
	clear(b.sums)
}

// Last is the largest key; Keys ascend.
func (b *Backward) Last() int32 { return b.Keys[b.n-1] }

// ReadRows reads n rows of Q and dO at QAt and DOAt.
func (b *Backward) ReadRows(q, dO []byte, n int, t Type) {
	b.c.rows = C.int32_t(n)
	C.simd_backward_rows(b.kernels.c, &b.c, floats(b.slab), pointer(q), ints64(b.QAt), pointer(dO), ints64(b.DOAt), C.int32_t(t))
}

// Delta sets sums to rowsum(dO * O) of the rows that ReadRows has read, with O at OAt. It
// reports whether the rows of Q and dO are finite.
func (b *Backward) Delta(sums []float64, o []byte, t Type) (finite bool) {
	return C.simd_backward_delta(b.kernels.c, &b.c, floats(b.slab), (*C.double)(unsafe.SliceData(sums)), pointer(o),
		ints64(b.OAt), C.int32_t(t)) != 0
}

// Tile computes P, dS and the gradient of the products of a tile and adds to the sums of dK
// and dV. full says that every row attends to every key, finite that the rows of Q and dO
// are.
func (b *Backward) Tile(full, finite bool) {
	b.c.full, b.c.rows_finite = flag(full), flag(finite)
	C.simd_backward_tile(b.kernels.c, &b.c, floats(b.slab), unsafe.Pointer(unsafe.SliceData(b.Rows)), ints(b.Keys),
		floats(b.Count), floats(b.bias), ints(b.mask), C.int32_t(b.n))
}

// RowSums adds the row sums of P of a tile to sums.
func (b *Backward) RowSums(sums []float64, full bool) {
	b.c.full = flag(full)
	C.simd_backward_sums(b.kernels.c, &b.c, floats(b.slab), unsafe.Pointer(unsafe.SliceData(b.Rows)), ints(b.Keys),
		floats(b.Count), floats(b.bias), ints(b.mask), C.int32_t(b.n), (*C.double)(unsafe.SliceData(sums)))
}

// AddQuery adds the tile to the sums of dQ of its rows. Scale is not applied.
func (b *Backward) AddQuery(sums []float32) {
	C.simd_backward_query(b.kernels.c, &b.c, floats(b.slab), unsafe.Pointer(unsafe.SliceData(b.Rows)), ints(b.Keys),
		floats(sums), C.int32_t(b.n))
}

// AddBias adds dS of the tile to dBias, float32 at DBiasAt.
func (b *Backward) AddBias(dBias []byte) {
	C.simd_backward_bias(b.kernels.c, &b.c, floats(b.slab), pointer(dBias), ints64(b.DBiasAt), ints(b.Keys), C.int32_t(b.n))
}

// SumBias adds dS of the tile to sums [heads][BackwardKeys] over the rows of each head. Row
// i of the block is of head (first + i) % heads.
func (b *Backward) SumBias(sums []float64, first, heads int) {
	C.simd_backward_bias_sum(b.kernels.c, &b.c, floats(b.slab), (*C.double)(unsafe.SliceData(sums)), C.int32_t(first), C.int32_t(heads))
}

// Fold adds the sums of dK and dV to their totals, from which they start again at 0.
func (b *Backward) Fold() {
	total, part, n := b.sums, b.slab[b.c.dkt:], BackwardKeys*int(b.c.d)
	if b.c.want_k != 0 {
		C.simd_backward_fold(b.kernels.c, floats(total), floats(part), C.int32_t(n))
	}
	if b.c.want_v != 0 {
		C.simd_backward_fold(b.kernels.c, floats(total[n:]), floats(b.slab[b.c.dvt:]), C.int32_t(BackwardKeys*int(b.c.dv)))
	}
}

// Sums are the totals of dK and dV of all keys.
func (b *Backward) Sums() []float32 { return b.sums }

// AddSums adds part to the totals and sets it to 0.
func (b *Backward) AddSums(part []float32) {
	C.simd_backward_fold(b.kernels.c, floats(b.sums), floats(part), C.int32_t(len(part)))
}

// StoreDK stores the total of dK at the byte offsets at. StoreDV does the same for dV.
func (b *Backward) StoreDK(dK []byte, at []int64, t Type) {
	C.simd_backward_store_keys(b.kernels.c, &b.c, floats(b.slab), floats(b.sums), pointer(dK), ints64(at), C.int32_t(b.n),
		b.c.d, b.c.scale, C.int32_t(t))
}

// StoreDV is StoreDK of dV.
func (b *Backward) StoreDV(dV []byte, at []int64, t Type) {
	C.simd_backward_store_keys(b.kernels.c, &b.c, floats(b.slab), floats(b.sums[BackwardKeys*int(b.c.d):]), pointer(dV),
		ints64(at), C.int32_t(b.n), b.c.dv, 1, C.int32_t(t))
}

// StoreDQ stores dQ of n rows, the scale times sums, at the byte offsets at. With accumulate
// it adds to what dQ holds.
func (b *Backward) StoreDQ(dQ []byte, at []int64, sums []float32, n int, accumulate bool, t Type) {
	C.simd_backward_store(b.kernels.c, floats(sums), C.int64_t(b.c.stride), pointer(dQ), ints64(at), C.int32_t(n), b.c.d,
		b.c.scale, flag(accumulate), C.int32_t(t))
}

// ReadBias gathers the bias of the block's rows at the keys.
func (b *Backward) ReadBias(bias []byte, t Type) {
	C.simd_backward_read_bias(b.kernels.c, &b.c, floats(b.bias), pointer(bias), ints64(b.BiasAt), ints(b.Keys), C.int32_t(b.n), C.int32_t(t))
}

// ReadMask gathers a byte mask of the block's rows at the keys. It returns false if the mask
// excludes all slots.
func (b *Backward) ReadMask(mask []byte) bool {
	return C.simd_backward_read_mask(b.kernels.c, &b.c, ints(b.mask), pointer(mask), ints64(b.MaskAt), ints(b.Keys), C.int32_t(b.n)) != 0
}

// ReadBlocks is ReadMask of a bitmap of blocks of 2^shift keys.
func (b *Backward) ReadBlocks(bitmap []byte, shift int) bool {
	return C.simd_backward_read_blocks(b.kernels.c, &b.c, ints(b.mask), pointer(bitmap), ints64(b.MaskAt), ints(b.Keys),
		C.int32_t(b.n), C.int32_t(shift)) != 0
}
