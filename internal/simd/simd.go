// Package simd has the kernels of the CPU tier. They compute attention of a group of query
// rows to a KV tile, in C with vector extensions, compiled for several instruction sets.
// The instruction set of the CPU selects one at run time. body.h explains the algorithm.
//
// All sets with fused multiply-add give the same bits. The set "plain", for CPUs without
// it, gives others.
//
// Kernels trust their arguments: the caller has checked that all rows lie in memory.
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

static void simd_pack_q(const simd_kernels *k, float *q, const void *base, const int64_t *at, int32_t vectors, int32_t d,
	int32_t type) {
	k->pack_q(q, base, at, vectors, d, type);
}
static void simd_attend(const simd_kernels *k, const simd_tile *t, const float *q, float *o, float *s, float *state,
	const int32_t *span, const double *position, const void *keys_k, const void *keys_v, const int32_t *keys,
	const float *bias, const int32_t *mask, const uint32_t *slots) {
	k->attend(t, q, o, s, state, span, position, keys_k, keys_v, keys, bias, mask, slots);
}
static void simd_finish(const simd_kernels *k, float *o, float *state, void *base, const int64_t *at, int32_t rows,
	int32_t vectors, int32_t dv, int32_t type, float keep) {
	k->finish(o, state, base, at, rows, vectors, dv, type, keep);
}
static void simd_widen(const simd_kernels *k, float *dst, const void *base, const int64_t *at, const float *scales,
	int32_t rows, int32_t d, int32_t type) {
	k->widen(dst, base, at, scales, rows, d, type);
}
static void simd_read_bias(const simd_kernels *k, float *dst, const void *base, const int64_t *at, const int32_t *keys,
	int32_t vectors, int32_t n, int32_t type) {
	k->read_bias(dst, base, at, keys, vectors, n, type);
}
static int32_t simd_read_mask(const simd_kernels *k, int32_t *dst, const void *base, const int64_t *at, const int32_t *keys,
	int32_t vectors, int32_t n) {
	return k->read_mask(dst, base, at, keys, vectors, n);
}
static int32_t simd_read_blocks(const simd_kernels *k, int32_t *dst, const void *base, const int64_t *at,
	const int32_t *keys, int32_t vectors, int32_t n, int32_t shift) {
	return k->read_blocks(dst, base, at, keys, vectors, n, shift);
}
static void simd_map(const simd_kernels *k, int32_t which, float *x, int32_t vectors) {
	(which ? k->tanhs : k->exps)(x, vectors);
}
*/
import "C"

import (
	"math"
	"unsafe"
)

var minusInf = float32(math.Inf(-1))

// Keys is the largest number of keys of a KV tile.
const Keys = C.SIMD_KEYS

// Summed is how many consecutive keys of a sequence have their values summed before they are
// added to O. Tiles end between such sums.
const Summed = C.SIMD_SUMMED

// Type is the storage type of a row.
type Type int32

// Storage types. Rows of Q80 and Q40 are multiples of 32 elements.
const (
	F16  Type = C.SIMD_F16
	BF16 Type = C.SIMD_BF16
	F32  Type = C.SIMD_F32
	Int8 Type = C.SIMD_INT8
	FP8  Type = C.SIMD_FP8
	Q80  Type = C.SIMD_Q8_0
	Q40  Type = C.SIMD_Q4_0
)

// Kernels are the kernels of one instruction set.
type Kernels struct {
	c             *C.simd_kernels
	Name          string // avx512, avx2, neon or plain
	Lanes, Vector int    // query rows per group, and per vector
}

// Sets returns the kernels for the instruction sets of this CPU, best first.
func Sets() (all []*Kernels) {
	for i := C.int32_t(0); ; i++ {
		c := C.simd_set(i)
		if c == nil {
			return all
		}
		all = append(all, &Kernels{c, C.GoString(c.name), int(c.lanes), int(c.vector)})
	}
}

// Group is up to Lanes query rows with their state, one row per vector lane. Lanes past
// the last row repeat it.
type Group struct {
	kernels *Kernels
	d, dv   int
	vectors int

	q, o, state []float32

	Span     []int32   // [first, end) of the keys that each lane attends to: all firsts, then all ends
	Position []float64 // position of each lane among the keys, for ALiBi
	QAt, OAt []int64   // byte offset of each lane's row in Q and O
	BiasAt   []int64   // byte offset of each lane's row in the bias
	MaskAt   []int64   // byte offset of each lane's row in the mask or bitmap
	Slots    []uint32  // for dropout: the row of each lane in its sequence, then b*Hq + h of each
	Slope    []float32 // ALiBi slope of each lane
	Sink     []float32 // sink of each lane; -Inf: none
	LSE      []float32 // set by Finish
}

// NewGroup allocates a group.
func (k *Kernels) NewGroup(d, dv int) *Group {
	n := k.Lanes
	state := make([]float32, C.SIMD_STATES*n)
	array := func(i int) []float32 { return state[i*n:][:n:n] }
	at := make([]int64, 4*n)
	return &Group{
		kernels: k, d: d, dv: dv,
		q: make([]float32, d*n), o: make([]float32, dv*n), state: state,
		Span: make([]int32, 2*n), Position: make([]float64, n), Slots: make([]uint32, 2*n),
		QAt: at[:n], OAt: at[n:][:n], BiasAt: at[2*n:][:n], MaskAt: at[3*n:][:n],
		Slope: array(C.SIMD_SLOPE), Sink: array(C.SIMD_SINK), LSE: array(C.SIMD_LSE),
	}
}

// Rows sets the number of rows of the group. It returns the number of lanes that the
// caller must describe before Begin.
func (g *Group) Rows(n int) (lanes int) {
	g.vectors = 1
	if n > g.kernels.Vector {
		g.vectors = g.kernels.Lanes / g.kernels.Vector
	}
	return g.vectors * g.kernels.Vector
}

// Begin reads the rows of Q and resets the softmax state.
func (g *Group) Begin(q []byte, t Type) {
	C.simd_pack_q(g.kernels.c, floats(g.q), pointer(q), ints64(g.QAt), C.int32_t(g.vectors), C.int32_t(g.d), C.int32_t(t))
	clear(g.o)
	n := g.kernels.Lanes
	for i := range n {
		g.state[C.SIMD_MAX*n+i] = minusInf
	}
	clear(g.state[C.SIMD_FRACTION*n : (C.SIMD_STARTED+1)*n])
}

// Finish divides by the row sums and by the probability that dropout keeps a weight (1 without
// dropout), stores n rows of O and sets LSE.
func (g *Group) Finish(o []byte, t Type, n int, keep float32) {
	C.simd_finish(g.kernels.c, floats(g.o), floats(g.state), pointer(o), ints64(g.OAt), C.int32_t(n), C.int32_t(g.vectors),
		C.int32_t(g.dv), C.int32_t(t), C.float(keep))
}

// Dropout is the dropout mask of a call, see package dropout. The zero value drops nothing.
type Dropout struct {
	Seed              uint64
	Offset, Threshold uint32
	Scale             float32 // of the weights that remain; the backward pass has it
}

func (d *Dropout) c() C.simd_dropout {
	return C.simd_dropout{seed: [2]C.uint32_t{C.uint32_t(uint32(d.Seed)), C.uint32_t(uint32(d.Seed >> 32))},
		offset: C.uint32_t(d.Offset), threshold: C.uint32_t(d.Threshold), scale: C.float(d.Scale)}
}

// Tile is a KV tile and the part of it that a group attends to. Keys count from its first.
type Tile struct {
	Keys             []int32 // positions of the keys in their sequence; Group.Span limits them
	K, V             unsafe.Pointer
	KStride, VStride int // float32 elements from key to key
	From, To         int // keys that any lane attends to
	FullFrom, FullTo int // the keys among them that every lane attends to; FullFrom = FullTo: none
	Scale, Softcap   float32
	ALiBi            bool
	Bias             []float32 // from ReadBias; nil: none
	Mask             []int32   // from ReadMask or ReadBlocks; nil: none
	Dropout          Dropout
}

// Attend adds the keys of a tile. scores is scratch memory, Keys times Lanes.
func (g *Group) Attend(t *Tile, scores []float32) {
	c := C.simd_tile{
		d: C.int32_t(g.d), dv: C.int32_t(g.dv), vectors: C.int32_t(g.vectors), from: C.int32_t(t.From), to: C.int32_t(t.To),
		full_from: C.int32_t(t.FullFrom), full_to: C.int32_t(t.FullTo),
		bias: flag(t.Bias != nil), mask: flag(t.Mask != nil), alibi: flag(t.ALiBi),
		k_stride: C.int64_t(t.KStride), v_stride: C.int64_t(t.VStride), scale: C.float(t.Scale), softcap: C.float(t.Softcap),
		dropout: t.Dropout.c(),
	}
	if t.FullFrom >= t.FullTo {
		c.full_from, c.full_to = c.to, c.to
	}
	C.simd_attend(g.kernels.c, &c, floats(g.q), floats(g.o), floats(scores), floats(g.state), ints(g.Span),
		(*C.double)(unsafe.SliceData(g.Position)), t.K, t.V, ints(t.Keys), floats(t.Bias), ints(t.Mask),
		(*C.uint32_t)(unsafe.SliceData(g.Slots)))
}

// ReadBias gathers the biases of the group's rows at the given keys into dst, Keys times Lanes.
func (g *Group) ReadBias(dst []float32, bias []byte, keys []int32, t Type) {
	C.simd_read_bias(g.kernels.c, floats(dst), pointer(bias), ints64(g.BiasAt), ints(keys), C.int32_t(g.vectors),
		C.int32_t(len(keys)), C.int32_t(t))
}

// ReadMask gathers a byte mask of the group's rows at the given keys into dst, Keys times
// Lanes. It returns false if the mask excludes all of them.
func (g *Group) ReadMask(dst []int32, mask []byte, keys []int32) bool {
	return C.simd_read_mask(g.kernels.c, ints(dst), pointer(mask), ints64(g.MaskAt), ints(keys), C.int32_t(g.vectors),
		C.int32_t(len(keys))) != 0
}

// ReadBlocks is ReadMask for a bitmap of blocks of 2^shift keys.
func (g *Group) ReadBlocks(dst []int32, bitmap []byte, keys []int32, shift int) bool {
	return C.simd_read_blocks(g.kernels.c, ints(dst), pointer(bitmap), ints64(g.MaskAt), ints(keys), C.int32_t(g.vectors),
		C.int32_t(len(keys)), C.int32_t(shift)) != 0
}

// Widen converts rows of d elements to float32 in dst, packed. Row i begins at byte at[i]
// and is multiplied by scales[i] if scales is not nil.
func (k *Kernels) Widen(dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) {
	C.simd_widen(k.c, floats(dst), pointer(rows), ints64(at), floats(scales), C.int32_t(len(at)), C.int32_t(d), C.int32_t(t))
}

// Exp replaces elements, which are at most 0, by their exponential, as the softmax does.
// The length is a multiple of Vector.
func (k *Kernels) Exp(x []float32) { C.simd_map(k.c, 0, floats(x), C.int32_t(len(x)/k.Vector)) }

// Tanh replaces elements by their hyperbolic tangent, as softcap does.
func (k *Kernels) Tanh(x []float32) { C.simd_map(k.c, 1, floats(x), C.int32_t(len(x)/k.Vector)) }

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }
func ints(x []int32) *C.int32_t   { return (*C.int32_t)(unsafe.SliceData(x)) }
func ints64(x []int64) *C.int64_t { return (*C.int64_t)(unsafe.SliceData(x)) }
func pointer(b []byte) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(b))
}
