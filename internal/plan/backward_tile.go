package plan

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// backwardTile is a tile of the scalar backward kernels (shaders/backward_scalar_tile.glsl).
// The invocations form a grid, x = ThreadsX by y = Invocations / ThreadsX. The kernel of dK
// and dV owns KVTile keys along y, the others own QTile rows.
type backwardTile struct {
	Invocations uint32 `json:"invocations" try:"128 256"`
	ThreadsX    uint32 `json:"threads_x" const:"THREADS_X" try:"8 16"` // invocations along what the workgroup loops over
	QTile       uint32 `json:"rows" const:"Q_TILE" try:"16 32 64 128"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 64 128"`
	ChunkD      uint32 `json:"chunk_d" const:"CHUNK_D" try:"16 32"`  // columns of both tiles in shared memory
	ChunkV      uint32 `json:"chunk_v" const:"CHUNK_V" try:"4 8 16"` // whole rows in shared memory
	OwnsKeys    bool   `json:"owns_keys"`
}

func (t backwardTile) LocalSize() uint32    { return t.Invocations }
func (t backwardTile) SubgroupSize() uint32 { return 0 }
func (t backwardTile) Rows() uint32         { return t.QTile }
func (t backwardTile) keys() uint32         { return t.KVTile }
func (t backwardTile) columns() uint32      { return problem.MaxHeadDim }
func (t backwardTile) Splits() int          { return 1 }

func (t backwardTile) computes(_, _ uint32) bool {
	own, stream := t.QTile, t.KVTile
	if t.OwnsKeys {
		own, stream = stream, own
	}
	if t.ThreadsX == 0 || t.Invocations < t.ThreadsX || t.ChunkD == 0 || t.ChunkV == 0 {
		return false
	}
	return t.ThreadsX%4 == 0 && t.Invocations%t.ThreadsX == 0 && own%(t.Invocations/t.ThreadsX) == 0 &&
		stream%t.ThreadsX == 0 && stream%t.ChunkV == 0 && t.ChunkD%8 == 0 && t.ChunkV%4 == 0
}

// String returns rows x KV tile and the invocations: "64x32 128t".
func (t backwardTile) String() string {
	return fmt.Sprintf("%dx%d %dt", t.QTile, t.KVTile, t.Invocations)
}

func (t backwardTile) describe() string {
	return fmt.Sprintf("%v %dx d%d v%d", t, t.ThreadsX, t.ChunkD, t.ChunkV)
}

// Tables of the tiles of the scalar backward kernels, best first. The last of each fits
// what Vulkan 1.1 guarantees: 128 invocations and 16 KiB of shared memory. An invocation
// holds 4x4 scores and their gradients, and 16 or 32 elements of each gradient at head dim
// 64 or 128.
var (
	backwardRowTiles = []backwardTile{
		{Invocations: 256, ThreadsX: 16, QTile: 64, KVTile: 64, ChunkD: 32, ChunkV: 16},
		{Invocations: 128, ThreadsX: 16, QTile: 32, KVTile: 32, ChunkD: 32, ChunkV: 8},
		{Invocations: 128, ThreadsX: 16, QTile: 32, KVTile: 32, ChunkD: 16, ChunkV: 4},
	}
	backwardKeyTiles = []backwardTile{
		{Invocations: 256, ThreadsX: 16, QTile: 64, KVTile: 64, ChunkD: 32, ChunkV: 16, OwnsKeys: true},
		{Invocations: 256, ThreadsX: 16, QTile: 64, KVTile: 32, ChunkD: 32, ChunkV: 8, OwnsKeys: true},
		{Invocations: 128, ThreadsX: 16, QTile: 32, KVTile: 32, ChunkD: 32, ChunkV: 8, OwnsKeys: true},
		{Invocations: 128, ThreadsX: 16, QTile: 32, KVTile: 16, ChunkD: 16, ChunkV: 4, OwnsKeys: true},
	}
)

// holds reports whether an invocation holds its gradients. It holds the columns of dK and of
// dV of its keys: above head dim 128 it has two keys.
func (t backwardTile) holds(dim uint32) bool {
	return !t.OwnsKeys || dim <= 128 || t.KVTile*t.ThreadsX <= 2*t.Invocations
}

// backwardTiles lists the tiles of a table within the device's invocations.
func backwardTiles(limits *vk.Limits, table []backwardTile, dim uint32) []backwardTile {
	var list []backwardTile
	for _, t := range table {
		tooMany := t.Invocations > limits.MaxInvocations || t.Invocations > limits.MaxWorkGroupSize[0]
		if !tooMany && t.holds(dim) {
			list = append(list, t)
		}
	}
	return list
}

// backwardCoopmatTile is a tile of the backward kernels on cooperative matrices
// (backward_coopmat_q.comp, backward_coopmat_kv.comp). Each subgroup owns MFrags fragments of
// rows, or of keys in the kernel of dK and dV, alone; a workgroup loops over Stream keys or
// rows at a time.
type backwardCoopmatTile struct {
	fragment
	Subgroups   uint32 `json:"subgroups" try:"4 8"`
	MFrags      uint32 `json:"m_frags" const:"M_FRAGS" try:"1 2"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 48 64 128"`     // of the dQ kernel: keys in shared memory
	RowTile     uint32 `json:"row_tile" const:"ROW_TILE" try:"16 32 48 64 96"`    // of the dK and dV kernel: rows in shared memory
	Step        uint32 `json:"kv_step" const:"KV_STEP" try:"16 32 64"`            // keys or rows of a tile multiplied at a time
	QSmemChunks uint32 `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS" try:"0 1 2 3"` // of the dK and dV kernel: chunks of K in shared memory
	InSmem      uint32 `json:"operands_in_smem" const:"OPERANDS_IN_SMEM"`         // 1: P and dS become operands in shared memory; 0: in registers, where the device's order allows it
}

func (t backwardCoopmatTile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t backwardCoopmatTile) SubgroupSize() uint32 { return t.Subgroup }
func (t backwardCoopmatTile) Rows() uint32         { return t.Subgroups * t.MFrags * t.M }
func (t backwardCoopmatTile) keys() uint32         { return max(t.KVTile, t.RowTile) }
func (t backwardCoopmatTile) columns() uint32      { return problem.MaxHeadDim }
func (t backwardCoopmatTile) Splits() int          { return 1 }
func (t backwardCoopmatTile) describe() string     { return t.String() }

func (t backwardCoopmatTile) computes(d, dv uint32) bool {
	return t.MFrags > 0 && t.MFrags <= mostMFrags && t.Subgroups > 0 && t.Step > 0 && t.Step%t.N == 0 && t.keys() > 0 &&
		t.keys()%t.Step == 0 && t.MFrags*arith.CeilDiv32(max(d, dv), t.K) <= maxGradientFragments
}

// String returns owned x streamed rows / step, the fragment, subgroups and M fragments.
func (t backwardCoopmatTile) String() string {
	s := fmt.Sprintf("%dx%d/%d %dx%d %dsg%d", t.Rows(), t.keys(), t.Step, t.M, t.N, t.Subgroups, t.MFrags)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.InSmem != 0 {
		s += " smem"
	}
	return s
}

// shortened returns t with at most two steps a tile. Drivers on the CPU compile every step that
// the kernels write out: with four, lavapipe takes 2.5 times as long for head dim 64.
func (t backwardCoopmatTile) shortened() backwardCoopmatTile {
	t.KVTile, t.RowTile = min(t.KVTile, 2*t.Step), min(t.RowTile, 2*t.Step)
	return t
}

// maxGradientFragments is how many fragments of a gradient the kernels store.
const maxGradientFragments = 16

// Tables of the backward kernels on cooperative matrices, measured on an H200 (docs/log/backward.md): f16,
// length 4096, no mask, TFLOP/s of the kernel's own products. A tile is subgroups x M
// fragments x streamed rows / step.
//
//	dQ     64: 8x2x64/32 408; 8x2x64/16 392; 8x2x128/16 364; 8x1x64/16 278
//	      128: 8x1x64/32 342; 8x1x64/64 328; 8x1x64/16 313; 8x1x32/16 282
//	dK dV  64: 8x2x64/16 q2 375; 4x2x64/16 332; 8x1x64/16 305; 8x2x64/16 q0 285
//	      128: 8x1x64/16 335; 8x1x48/16 328; 8x1x32/16 310
//
// dK and dV of tier coopmat spill registers with more than one fragment of S. TFLOP/s of the
// pass at head dim 64: 8x1x64/16 237; 8x1x64/16 q2 227; 4x1x64/16 q2 186; 8x2x64/16 q2 54.
var (
	backwardCoopmatRowTiles = []backwardTableTile{
		{64, backwardCoopmatTile{Subgroups: 8, MFrags: 2, KVTile: 64, Step: 32}},
		{128, backwardCoopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, Step: 32}},
		{256, backwardCoopmatTile{Subgroups: 8, MFrags: 1, KVTile: 32, Step: 16}},
		{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 16, Step: 16}},
	}
	backwardCoopmat2KeyTiles = append([]backwardTableTile{
		{64, backwardCoopmatTile{Subgroups: 8, MFrags: 2, RowTile: 64, Step: 16, QSmemChunks: 2}},
	}, backwardCoopmatKeyTiles...)
	backwardCoopmatKeyTiles = []backwardTableTile{
		{128, backwardCoopmatTile{Subgroups: 8, MFrags: 1, RowTile: 64, Step: 16}},
		{256, backwardCoopmatTile{Subgroups: 8, MFrags: 1, RowTile: 32, Step: 16}},
		{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, RowTile: 16, Step: 16}},
	}
	// The same for RDNA 3, see rdna3Table. Head dim 256 spills with every tile.
	rdna3RowTiles = []backwardTableTile{
		{64, backwardCoopmatTile{Subgroups: 4, MFrags: 2, KVTile: 64, Step: 16}},
		{128, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, Step: 32}},
		{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 16, Step: 16}},
	}
	rdna3KeyTiles = []backwardTableTile{
		{64, backwardCoopmatTile{Subgroups: 4, MFrags: 2, RowTile: 32, Step: 16}},
		{128, backwardCoopmatTile{Subgroups: 4, MFrags: 1, RowTile: 32, Step: 16}},
		{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, RowTile: 16, Step: 16, QSmemChunks: 3}},
	}
)

// backwardLSETiles are the tiles of the rests of LSE, which most workgroups return from at
// once: small ones, not tuned.
var backwardLSETiles = []backwardTableTile{
	{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, Step: 16}},
	{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 16, Step: 16}},
}

// backwardAddTiles are the tiles of dQ = dS K, KVTile keys at a time. With
// them, head dims in (minChunkedDim, maxChunkedDim] store dS for a chunk of heads.
//
// With dS of two steps in shared memory, on an H100 at length 16384, in ms for 32 heads:
//
//	128: 8x2x64/16 8.6; 4x2x64/16 with dS of one step 9.5; at length 4096 8x2x64/16 is better than 4x2x32/16 and 4x1x64/16 too
var backwardAddTiles = []backwardTableTile{
	{128, backwardCoopmatTile{Subgroups: 8, MFrags: 2, KVTile: 64, Step: 16}},
	{128, backwardCoopmatTile{Subgroups: 4, MFrags: 2, KVTile: 32, Step: 16}},
	{256, backwardCoopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, Step: 16}},
}

const (
	minChunkedDim, maxChunkedDim = 64, 128

	keyUnit      = 256       // divides the keys of dS of a head; the keys of every workgroup divide it
	rowUnit      = 192       // divides the rows of dS of a head; every row tile divides it
	maxDSBytes   = 5 << 29   // of dS of a chunk: four heads of length 16384
	minChunkKeys = 256 * 128 // of all heads of a chunk: 256 workgroups of 128 keys

	mostMFrags   = 4 // M fragments that the kernels write out
	mostSteps    = 4 // steps of a tile that the kernels of dQ and of dK and dV write out
	mostAddSteps = 8 // steps of a tile that the kernel of dQ = dS K writes out
)

// backwardTableTile is a tile without a fragment for head dims up to maxDim.
type backwardTableTile struct {
	maxDim uint32
	backwardCoopmatTile
}

// backwardCoopmatTiles lists the tiles of a table for a head dim and a fragment that the
// device has, best first. inRegisters says that P and dS become operands in registers.
func backwardCoopmatTiles(limits *vk.Limits, table []backwardTableTile, f fragment, d, dv uint32, inRegisters bool) []backwardCoopmatTile {
	var list []backwardCoopmatTile
	for _, row := range table {
		t := row.backwardCoopmatTile
		t.fragment = f
		t.InSmem = dispatch.BoolConstant(!inRegisters)
		t.Step = max(t.Step, f.N)
		t.QSmemChunks = min(t.QSmemChunks*16/f.K, arith.CeilDiv32(d, f.K)-1)
		if max(d, dv) <= row.maxDim && t.computes(d, dv) && t.LocalSize() <= min(limits.MaxInvocations, limits.MaxWorkGroupSize[0]) {
			list = append(list, t)
		}
	}
	return list
}
