package plan

import (
	"fmt"

	"vkattn/attention/problem"
	"vkattn/vk"
)

// backwardTile is a tile of the scalar backward kernels (shaders/backward_scalar_tile.glsl).
// The invocations form a grid, x = ThreadsX by y = Invocations / ThreadsX. The kernel of dK
// and dV owns KVTile keys along y, the others own QTile rows.
type backwardTile struct {
	Invocations uint32 `json:"invocations" try:"128 256"`
	ThreadsX    uint32 `json:"threads_x" const:"THREADS_X" try:"8 16"` // invocations along what the workgroup loops over
	QTile       uint32 `json:"rows" const:"Q_TILE" try:"32 64 128"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"32 64 128"`
	ChunkD      uint32 `json:"chunk_d" const:"CHUNK_D" try:"16 32"` // columns of both tiles in shared memory
	ChunkV      uint32 `json:"chunk_v" const:"CHUNK_V" try:"8 16"`  // whole rows in shared memory
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

// backwardTiles lists the tiles of a table within the device's invocations. An invocation
// holds the columns of dK and of dV of its keys: above head dim 128 it has two keys.
func backwardTiles(limits *vk.Limits, table []backwardTile, dim uint32) []backwardTile {
	var list []backwardTile
	for _, t := range table {
		tooMany := t.Invocations > limits.MaxInvocations || t.Invocations > limits.MaxWorkGroupSize[0]
		wide := t.OwnsKeys && dim > 128 && t.KVTile*t.ThreadsX > 2*t.Invocations
		if !tooMany && !wide {
			list = append(list, t)
		}
	}
	return list
}
