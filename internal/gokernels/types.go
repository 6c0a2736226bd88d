// Package gokernels has the kernels of the CPU tier in Go, for builds without cgo. internal/simd has them in C;
// its body.h and backward.h explain the algorithms. A function here has the name and the steps of the one there.
//
// The kernels give the bits of those C kernels that have fused multiply-add: each sum has the same order, and
// each multiply-add is rounded once. The products are in assembly for AVX2 and NEON. What takes exp or log in
// float64 calls package math, whose last bit may differ from the C library's: rows with scores beyond far,
// sinks, and LSE.
//
// Products are written float32(x*y) where a sum may follow: Go may fuse them otherwise, and does on arm64.
package gokernels

// Sizes of tiles and groups.
const (
	Keys    = 128 // of a KV tile
	Summed  = 32  // consecutive keys of a sequence whose values are summed before they are added to O
	Rows    = 64  // of a tile of the backward pass
	Columns = 64  // keys of a tile of the backward pass

	Vector = 8  // query rows of a vector
	Lanes  = 16 // query rows of a group
)

// Type is the storage type of a row.
type Type int32

// Storage types.
const (
	F16 Type = iota
	BF16
	F32
	Quantized // the first of quant.Formats; the others follow
)

// How kernels with pairs keep rows of bfloat16: as pairs along a row, and as pairs of rows. The kernels here do not.
const (
	Pairs    Type = -1
	RowPairs Type = -2
)

// How pairs of Q and K are multiplied: as pairs if the least exponents of both have a sum of at least Exact, else
// one by one.
const (
	Paired    = 1
	PairedFMA = 2
	Exact     = -112
)

// Arrays of the state of a group, of one element for each lane.
const (
	StateMax = iota
	StateFraction
	StateSum
	StateCarry
	StateRounded
	StateStarted
	StateSlope
	StateSink
	StateLSE
	States
)

// Dropout is simd_dropout of kernels.h.
type Dropout struct {
	Seed              [2]uint32
	Offset, Threshold uint32
	Scale             float32
}

// Stage is the part of a KV tile that Attend computes: a caller that modifies the scores asks for them, and then for what
// follows them.
type Stage int32

// Stages.
const (
	StageAll Stage = iota
	StageScores
	StageRest
)

// Tile is simd_tile of kernels.h.
type Tile struct {
	D, DV                               int32
	Vectors, From, To, FullFrom, FullTo int32
	Bias, Mask, ALiBi                   int32
	Stage                               Stage
	RoundP                              int32
	KPairs, VPairs, VLeast              int32 // 0 here: these kernels have no pairs
	KStride, VStride                    int64
	Scale, Softcap                      float32
	Dropout                             Dropout
}

// Backward is simd_backward of kernels.h.
type Backward struct {
	Q, DO                  int32
	K                      int32
	KT, VT                 int32
	DKT, DVT               int32
	S, DS                  int32
	Scratch                int32
	D, DV                  int32
	Stride                 int32
	Rows                   int32
	Vectors                int32
	Full                   int32
	RowsFinite, KeysFinite int32
	Bias, Mask, ALiBi      int32
	WantK, WantV           int32
	Accumulate             int32
	Stage                  Stage
	Scale, Softcap         float32
	Dropout                Dropout
}

// Row is simd_row of kernels.h: a query row of a tile of the backward pass.
type Row struct {
	Position   float64 // among the keys, for ALiBi
	LSE, Delta float32 // Delta is rowsum(dO * O) - dLSE
	First, End int32   // keys that the row attends to
	Slope      float32 // for ALiBi
	Factor     float32 // of P: corrects the rounding of a large LSE
	Row, Head  uint32  // for dropout: the row in its sequence, and b*Hq + h
}
