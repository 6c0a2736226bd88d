package plan

import (
	"fmt"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// scalarTile is a tile of the scalar forward kernels, dense and general
// (forward_scalar.comp, forward_scalar_general.comp). The invocations form a grid, x =
// ThreadsX by y = Invocations / ThreadsX; each computes BlockRows/y x KVTile/x scores.
type scalarTile struct {
	Invocations uint32 `json:"invocations" try:"128 256 512"`
	ThreadsX    uint32 `json:"threads_x" const:"THREADS_X" try:"8 16"` // invocations along the keys
	BlockRows   uint32 `json:"rows" const:"Q_TILE" try:"16 32 64 128"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 64 128"`
	ChunkD      uint32 `json:"chunk_d" const:"CHUNK_D" try:"16 32"` // columns of Q and K in shared memory
	ChunkV      uint32 `json:"chunk_v" const:"CHUNK_V" try:"8 16"`  // keys of V in shared memory
	DvSlice     uint32 `json:"dv_slice" const:"DV_SLICE"`
}

func (t scalarTile) LocalSize() uint32    { return t.Invocations }
func (t scalarTile) SubgroupSize() uint32 { return 0 }
func (t scalarTile) Rows() uint32         { return t.BlockRows }
func (t scalarTile) keys() uint32         { return t.KVTile }
func (t scalarTile) columns() uint32      { return t.DvSlice }
func (t scalarTile) Splits() int          { return 1 }

// threadsY returns the invocations along the query rows.
func (t scalarTile) threadsY() uint32 { return t.Invocations / t.ThreadsX }

func (t scalarTile) computes(_, headDimV uint32) bool {
	return t.Invocations%t.ThreadsX == 0 && (t.DvSlice >= headDimV || t.DvSlice%8 == 0) &&
		t.ThreadsX%4 == 0 && t.KVTile%t.ThreadsX == 0 && t.BlockRows%t.threadsY() == 0 &&
		t.ChunkD%8 == 0 && t.ChunkV%4 == 0 && t.KVTile%t.ChunkV == 0
}

// String returns rows x KV tile and the invocations: "64x32 128t".
func (t scalarTile) String() string {
	return fmt.Sprintf("%dx%d %dt", t.BlockRows, t.KVTile, t.Invocations)
}

func (t scalarTile) describe() string {
	return fmt.Sprintf("%v %dx d%d v%d", t, t.ThreadsX, t.ChunkD, t.ChunkV)
}

// scalarTable lists the tiles of the scalar kernel, best first. In the largest an
// invocation computes 4x4 scores, which pays for the reads of shared memory. The first
// takes 24 KiB, so that a multiprocessor of the H200 holds two workgroups (docs/log/vulkan.md).
// With it f32 at length 4096 runs at 19.6 TFLOP/s at head dim 64 and 20.7 at 128, with the
// second tile at 17.9 and 20.5; under a causal mask at 18.5 and 20.4 against 16.2 and 18.7.
// The last tile fits the limits that Vulkan 1.1 guarantees: 128 invocations and 16 KiB.
var scalarTable = []scalarTile{
	{Invocations: 128, ThreadsX: 8, BlockRows: 64, KVTile: 32, ChunkD: 32, ChunkV: 16},
	{Invocations: 256, ThreadsX: 16, BlockRows: 64, KVTile: 64, ChunkD: 32, ChunkV: 16},
	{Invocations: 256, ThreadsX: 16, BlockRows: 64, KVTile: 32, ChunkD: 32, ChunkV: 16},
	{Invocations: 128, ThreadsX: 16, BlockRows: 32, KVTile: 32, ChunkD: 32, ChunkV: 8},
	{Invocations: 128, ThreadsX: 16, BlockRows: 32, KVTile: 32, ChunkD: 16, ChunkV: 4},
}

// scalarTiles lists the tiles of the table within the device's invocations. Tiles with
// twice the rows of the call or more are halved.
func scalarTiles(limits *vk.Limits, headDimV, rows uint32) []tile {
	var list []tile
	for _, t := range scalarTable {
		if t.Invocations > limits.MaxInvocations || t.Invocations > limits.MaxWorkGroupSize[0] {
			continue
		}
		for t.BlockRows > t.threadsY() && t.BlockRows/2 >= rows {
			t.BlockRows /= 2
		}
		t.DvSlice = min(headDimV, problem.MaxHeadDim)
		if t.ThreadsX == 8 && t.DvSlice > 128 {
			continue // an invocation would hold 128 elements of O
		}
		if t.ThreadsX == 8 && t.DvSlice > 64 {
			t.ChunkV = 8 // half as many of these wide rows of V: the tile stays within 24 KiB
		}
		list = append(list, t)
	}
	return list
}
