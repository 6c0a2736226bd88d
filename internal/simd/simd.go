// Package simd has the kernels of the CPU tier. They compute attention of a group of query
// rows to a KV tile, in C with vector extensions, compiled for several instruction sets.
// The instruction set of the CPU selects one at run time. body.h explains the algorithm.
// A build without cgo, and one for Windows, has the kernels of package gokernels.
//
// The set avx512bf16 is avx512 with products of bfloat16 pairs, see pairs.h.
//
// All sets with fused multiply-add, and gokernels, give the same bits. The set "plain", for CPUs
// without it, gives others.
//
// Kernels trust their arguments: the caller has checked that all rows lie in memory.
package simd

import (
	"math"
	"slices"
	"unsafe"

	"vkattn/internal/gokernels"
)

var minusInf = float32(math.Inf(-1))

// Keys is the largest number of keys of a KV tile.
const Keys = gokernels.Keys

// Summed is how many consecutive keys of a sequence have their values summed before they are
// added to O. Tiles end between such sums.
const Summed = gokernels.Summed

// Type is the storage type of a row.
type Type = gokernels.Type

// Stage is the part of a KV tile that Attend computes; zero value: all of it.
type Stage = gokernels.Stage

// Stages of a tile whose scores are modified between the two.
const (
	StageScores = gokernels.StageScores
	StageRest   = gokernels.StageRest
)

// Storage types. Rows of blocks are multiples of 32 elements.
const (
	F16       = gokernels.F16
	BF16      = gokernels.BF16
	F32       = gokernels.F32
	Quantized = gokernels.Quantized // the first of quant.Formats; the others follow
)

// How kernels with Pairs keep rows of bfloat16, see pairs.h: as pairs along a row, for Begin and for K, and as
// pairs of consecutive rows, for V.
const (
	Pairs    = gokernels.Pairs
	RowPairs = gokernels.RowPairs
)

// Kernels are the kernels of one instruction set.
type Kernels struct {
	set
	Name          string // avx512bf16, avx512, avx2, neon, plain or go
	Lanes, Vector int    // query rows per group, and per vector
	Pairs         bool   // whether Begin and Widen take Pairs and RowPairs
}

// set is one implementation of the kernels: goSet, or cSet where there is C. GCC does not align the stack on Windows as
// spilled AVX registers need it.
type set interface {
	packQ(g *Group, q []byte, t Type) (least int)
	attend(g *Group, scores []float32)
	finish(g *Group, o []byte, t Type, rows int, keep float32)
	readBias(g *Group, dst []float32, bias []byte, keys []int32, t Type)
	readMask(g *Group, dst []int32, mask []byte, keys []int32) bool
	readBlocks(g *Group, dst []int32, bitmap []byte, keys []int32, shift int) bool

	// Widen converts rows of d elements to float32 in dst, packed. Row i begins at byte at[i]
	// and is multiplied by scales[i] if scales is not nil. As Pairs a row has (d+1)/2 of them, each in place of an
	// element; RowPairs have d for two rows. It returns the least exponent of pairs.
	Widen(dst []float32, rows []byte, at []int64, scales []float32, d int, t Type) (least int)

	// Exp replaces elements, which are at most 0, by their exponential, as the softmax does.
	// The length is a multiple of Vector.
	Exp(x []float32)
	// Tanh replaces elements by their hyperbolic tangent, as softcap does.
	Tanh(x []float32)

	backwardKeys(b *Backward, k, v []byte, t Type) bool
	backwardRows(b *Backward, q, dO []byte, t Type)
	backwardDelta(b *Backward, sums []float64, o []byte, t Type) bool
	backwardTile(b *Backward)
	backwardSums(b *Backward, sums []float64)
	backwardQuery(b *Backward, sums []float32)
	backwardBias(b *Backward, dBias []byte)
	backwardBiasSum(b *Backward, sums []float64, first, heads int)
	backwardReadBias(b *Backward, bias []byte, t Type)
	backwardReadMask(b *Backward, mask []byte) bool
	backwardReadBlocks(b *Backward, bitmap []byte, shift int) bool
	fold(total, part []float32)
	storeRows(b *Backward, x []float32, base []byte, at []int64, n int, accumulate bool, t Type)
	storeKeys(b *Backward, x []float32, base []byte, at []int64, d int32, scale float32, t Type)
}

// inGo are the kernels of package gokernels, inC those in C for the instruction sets of this CPU, best first.
var (
	inGo = &Kernels{set: goSet{}, Name: "go", Lanes: gokernels.Lanes, Vector: gokernels.Vector}
	inC  []*Kernels
)

// Sets returns the kernels for the instruction sets of this CPU, best first.
func Sets() []*Kernels {
	if inC == nil {
		return []*Kernels{inGo}
	}
	return slices.Clone(inC)
}

// All returns Sets and the kernels of package gokernels, for tests that compare them.
func All() []*Kernels {
	return append(slices.Clone(inC), inGo)
}

// Group is up to Lanes query rows with their state, one row per vector lane. Lanes past
// the last row repeat it.
type Group struct {
	kernels *Kernels
	d, dv   int
	vectors int
	pairs   bool           // Q lies in pairs
	least   int            // their least exponent
	tile    Tile           // of Attend
	c       gokernels.Tile // likewise

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
	Max      []float32 // the largest score of each lane, without NaN
}

// NewGroup allocates a group.
func (k *Kernels) NewGroup(d, dv int) *Group {
	n := k.Lanes
	state := make([]float32, gokernels.States*n)
	array := func(i int) []float32 { return state[i*n:][:n:n] }
	at := make([]int64, 4*n)
	return &Group{
		kernels: k, d: d, dv: dv,
		q: make([]float32, d*n), o: make([]float32, dv*n), state: state,
		Span: make([]int32, 2*n), Position: make([]float64, n), Slots: make([]uint32, 2*n),
		QAt: at[:n], OAt: at[n:][:n], BiasAt: at[2*n:][:n], MaskAt: at[3*n:][:n],
		Slope: array(gokernels.StateSlope), Sink: array(gokernels.StateSink), LSE: array(gokernels.StateLSE), Max: array(gokernels.StateMax),
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

// Begin reads the rows of Q and resets the softmax state. Tiles of a group that begins with Pairs have K in Pairs.
func (g *Group) Begin(q []byte, t Type) {
	g.pairs, g.least = t == Pairs, g.kernels.packQ(g, q, t)
	clear(g.o)
	n := g.kernels.Lanes
	for i := range n {
		g.state[gokernels.StateMax*n+i] = minusInf
	}
	clear(g.state[gokernels.StateFraction*n : (gokernels.StateStarted+1)*n])
}

// Finish divides by the row sums and by the probability that dropout keeps a weight (1 without
// dropout), stores n rows of O and sets LSE.
func (g *Group) Finish(o []byte, t Type, n int, keep float32) {
	g.kernels.finish(g, o, t, n, keep)
}

// Dropout is the dropout mask of a call, see package dropout. The zero value drops nothing.
type Dropout struct {
	Seed              uint64
	Offset, Threshold uint32
	Scale             float32 // of the weights that remain; the backward pass has it
}

func (d *Dropout) kernels() gokernels.Dropout {
	return gokernels.Dropout{Seed: [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)}, Offset: d.Offset, Threshold: d.Threshold, Scale: d.Scale}
}

// Tile is a KV tile and the part of it that a group attends to. Keys count from its first.
type Tile struct {
	Keys             []int32 // positions of the keys in their sequence; Group.Span limits them
	K, V             unsafe.Pointer
	KStride, VStride int  // float32 elements or pairs from key to key, of RowPairs from pair to pair
	KLeast, VLeast   int  // of pairs: what Widen has returned
	VPairs           bool // V lies in RowPairs
	RoundP           bool // round P to bfloat16 for PV
	From, To         int  // keys that any lane attends to
	FullFrom, FullTo int  // the keys among them that every lane attends to; FullFrom = FullTo: none
	Scale, Softcap   float32
	ALiBi            bool
	Bias             []float32 // from ReadBias; nil: none
	Mask             []int32   // from ReadMask or ReadBlocks; nil: none
	Dropout          Dropout
	Stage            Stage
}

// Attend adds the keys of a tile. scores is scratch memory, Keys times Lanes. With StageScores it only sets the scores,
// [key][lane], from From to To, and with StageRest it takes them from there.
func (g *Group) Attend(t *Tile, scores []float32) {
	g.tile, g.c = *t, gokernels.Tile{
		D: int32(g.d), DV: int32(g.dv), Vectors: int32(g.vectors), From: int32(t.From), To: int32(t.To),
		FullFrom: int32(t.FullFrom), FullTo: int32(t.FullTo),
		Bias: flag(t.Bias != nil), Mask: flag(t.Mask != nil), ALiBi: flag(t.ALiBi),
		KStride: int64(t.KStride), VStride: int64(t.VStride), Scale: t.Scale, Softcap: t.Softcap,
		Dropout: t.Dropout.kernels(), Stage: t.Stage,
		RoundP: flag(t.RoundP), VPairs: flag(t.VPairs), VLeast: int32(t.VLeast),
	}
	if g.pairs {
		g.c.KPairs = gokernels.Paired
		if g.least+t.KLeast < gokernels.Exact {
			g.c.KPairs = gokernels.PairedFMA
		}
	}
	if t.FullFrom >= t.FullTo {
		g.c.FullFrom, g.c.FullTo = g.c.To, g.c.To
	}
	g.kernels.attend(g, scores)
}

// ReadBias gathers the biases of the group's rows at the given keys into dst, Keys times Lanes.
func (g *Group) ReadBias(dst []float32, bias []byte, keys []int32, t Type) {
	g.kernels.readBias(g, dst, bias, keys, t)
}

// ReadMask gathers a byte mask of the group's rows at the given keys into dst, Keys times
// Lanes. It returns false if the mask excludes all of them.
func (g *Group) ReadMask(dst []int32, mask []byte, keys []int32) bool {
	return g.kernels.readMask(g, dst, mask, keys)
}

// ReadBlocks is ReadMask for a bitmap of blocks of 2^shift keys.
func (g *Group) ReadBlocks(dst []int32, bitmap []byte, keys []int32, shift int) bool {
	return g.kernels.readBlocks(g, dst, bitmap, keys, shift)
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
