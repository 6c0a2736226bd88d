package plan

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// backwardF32Tile is a tile of the float32 backward kernels on cooperative matrices
// (backward_coopmat_f32_kv.comp, backward_coopmat_f32_add.comp, backward_coopmat_f32_lse.comp).
// In the kernels of dK and dV and of LSE a pair of subgroups owns MFrags fragments of keys; in
// the kernel of dQ = dS K a subgroup owns MFrags fragments of rows. A tile in shared memory is
// there as three terms of 16 bits.
type backwardF32Tile struct {
	fragment
	Subgroups   uint32 `json:"subgroups" try:"4 8"`
	MFrags      uint32 `json:"m_frags" const:"M_FRAGS" try:"1 2"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 64"`        // of the kernel of dQ: keys in shared memory
	RowTile     uint32 `json:"row_tile" const:"ROW_TILE" try:"16 32"`         // of the other two: rows in shared memory
	QSmemChunks uint32 `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS" try:"0 1"` // of the other two: chunks of K and V, of K columns each, in shared memory
	Fences      uint32 `json:"fences" const:"FENCES" try:"0 1"`               // 1: loads of fragments are not hoisted over chunks
	Group       uint32 `json:"group" const:"GROUP" try:"1 2 4"`               // fragments that a subgroup multiplies at the same time
	InSmem      uint32 `json:"terms_in_smem" const:"TERMS_IN_SMEM"`           // 1: P and dS become operands in shared memory; 0: in registers, where the device's order allows it
}

func (t backwardF32Tile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t backwardF32Tile) SubgroupSize() uint32 { return t.Subgroup }
func (t backwardF32Tile) keys() uint32         { return max(t.KVTile, t.RowTile) }
func (t backwardF32Tile) columns() uint32      { return maxF32GradientDim }
func (t backwardF32Tile) Splits() int          { return 1 }
func (t backwardF32Tile) describe() string     { return t.String() }

// Rows returns what a workgroup owns: rows of dQ, or keys.
func (t backwardF32Tile) Rows() uint32 {
	if t.RowTile != 0 {
		return t.Subgroups / 2 * t.MFrags * t.M
	}
	return t.Subgroups * t.MFrags * t.M
}

func (t backwardF32Tile) computes(d, dv uint32) bool {
	return t.MFrags > 0 && t.Subgroups > 0 && (t.RowTile == 0 || t.Subgroups%2 == 0) && t.Group > 0 && t.keys() > 0 && t.keys()%t.N == 0 &&
		t.RowTile <= t.LocalSize() && max(d, dv) <= maxF32GradientDim && t.MFrags*arith.CeilDiv32(max(d, dv), t.K) <= maxGradientFragments
}

// String returns owned x streamed rows, the fragment, subgroups and M fragments, with g for
// groups and f for fences.
func (t backwardF32Tile) String() string {
	s := fmt.Sprintf("%dx%d %dx%d %dsg%d g%d", t.Rows(), t.keys(), t.M, t.N, t.Subgroups, t.MFrags, t.Group)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.Fences != 0 {
		s += " f"
	}
	if t.InSmem != 0 {
		s += " smem"
	}
	return s
}

// shortened returns t with the smallest tile: drivers on the CPU compile every fragment that
// the kernels write out.
func (t backwardF32Tile) shortened() backwardF32Tile {
	t.KVTile, t.RowTile, t.Group, t.QSmemChunks = min(t.KVTile, 2*t.N), min(t.RowTile, 2*t.N), 1, 0
	return t
}

// backwardF32Row is a tile without a fragment for head dims up to maxDim.
type backwardF32Row struct {
	maxDim uint32
	backwardF32Tile
}

// Tables of the float32 backward kernels on cooperative matrices, best first. TFLOP/s of a pass on
// an H100 (batch 4, 8 heads, length 4096, no mask; docs/log/backward.md, 13), by the tile of dK and dV:
//
//	 64: 8x1x32 g2 43.4
//	128: 8x1x16 g2 44.4; g2 q1 f 43.8; g4 f 42.6; g2 f 41.8
//
// dQ = dS K in tiles of 8x1x32 takes as long at 128. Its other tiles were not measured.
var (
	backwardF32KeyTiles = []backwardF32Row{
		{64, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 32, Group: 2}},
		{128, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 16, Group: 2}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, RowTile: 16, Fences: 1, Group: 2}},
	}
	backwardF32AddTiles = []backwardF32Row{
		{64, backwardF32Tile{Subgroups: 8, MFrags: 2, KVTile: 32, Group: 2}},
		{128, backwardF32Tile{Subgroups: 8, MFrags: 2, KVTile: 16, Fences: 1, Group: 2}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, KVTile: 16, Fences: 1, Group: 2}},
	}
	// Most workgroups of the kernel of LSE return at once: one tile, not tuned.
	backwardF32LSETiles = []backwardF32Row{
		{128, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 16, Group: 1}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, RowTile: 16, Group: 1}},
	}
)

// backwardF32Tiles lists the tiles of a table for a head dim and a fragment that the device has,
// best first.
func backwardF32Tiles(limits *vk.Limits, table []backwardF32Row, f fragment, d, dv uint32, inRegisters bool) []backwardF32Tile {
	var list []backwardF32Tile
	for _, row := range table {
		t := row.backwardF32Tile
		t.fragment = f
		t.InSmem = dispatch.BoolConstant(!inRegisters)
		if max(d, dv) <= row.maxDim && t.computes(d, dv) && t.LocalSize() <= min(limits.MaxInvocations, limits.MaxWorkGroupSize[0]) {
			list = append(list, t)
		}
	}
	return list
}

// backwardF32Refusal says why gradients of float32 do not run on cooperative matrices with
// fragment f, or "".
func backwardF32Refusal(cfg *problem.Config, f fragment, r *BackwardRequest) string {
	switch {
	case r.Options.Any(), r.Want.Bias, r.Want.Sinks:
		return "gradients of f32 on cooperative matrices take no options"
	case max(cfg.HeadDim, cfg.ValueDim()) > maxF32GradientDim:
		return fmt.Sprintf("gradients of f32 on cooperative matrices take head dims up to %d", maxF32GradientDim)
	case f.M != f.N || f.M != f.K || f.M*f.N != 8*f.Subgroup:
		return fmt.Sprintf("gradients of f32 take square fragments of eight elements an invocation, the device's are %dx%dx%d among %d", f.M, f.N, f.K, f.Subgroup)
	}
	return ""
}

// f32ChunksOf divides dS of float32, which the kernel of dQ always reads from memory: into
// chunks of heads, or of keys of a head where budget does not hold a head.
func f32ChunksOf(f fragment, r *BackwardRequest, budget uint64) (c BackwardChunks) {
	if !r.Want.Q {
		return c
	}
	s := &r.Shape
	rows := (s.Sq*s.Group() + rowUnit - 1) / rowUnit * rowUnit
	keys := (s.Sk + keyUnit - 1) / keyUnit * keyUnit
	heads, rowBytes := s.B*s.KVHeads(), hostmem.Product(rows, 4)
	c.Heads, c.Keys = int(min(uint64(heads), budget/hostmem.Product(rowBytes, uint64(keys)), maxGridY)), keys
	if c.Heads == 0 {
		c.Heads, c.Keys = 1, max(int(budget/rowBytes)/keyUnit, 1)*keyUnit
		chunks := (keys + c.Keys - 1) / c.Keys
		c.Keys = ((keys+chunks-1)/chunks + keyUnit - 1) / keyUnit * keyUnit // chunks of equal size
	}
	chunks := (heads + c.Heads - 1) / c.Heads
	c.Heads = (heads + chunks - 1) / chunks
	c.KeyFrags, c.RowFrags = uint32(c.Keys)/f.M, uint32(rows)/f.M
	c.DSBytes = hostmem.Product(uint64(c.Heads), rowBytes, uint64(c.Keys))
	return c
}

// f32TileFits is the part of tileFits that is about t.
func (v *BackwardVariant) f32TileFits(t backwardF32Tile) string {
	switch ofRows := v.Kernel == KernelDSK; {
	case t.KVTile != 0 != ofRows, t.RowTile != 0 == ofRows:
		return fmt.Sprintf("tile %v is not one of the kernel of %s", t, backwardKernelNames[v.Kernel])
	case t.InSmem == 0 && !v.inRegisters:
		return fmt.Sprintf("tile %v: the device orders the elements of accumulators and operands differently", t)
	case ofRows && keyUnit%t.KVTile != 0, v.Kernel == KernelDKDV && v.storeDS && keyUnit%t.Rows() != 0:
		return fmt.Sprintf("tile %v: its keys do not divide %d, the unit of the keys of dS", t, keyUnit)
	case v.Kernel == KernelDKDV && v.storeDS && rowUnit%t.RowTile != 0:
		return fmt.Sprintf("tile %v: %d rows do not divide %d, the unit of the rows of dS", t, t.RowTile, rowUnit)
	case t.QSmemChunks >= arith.CeilDiv32(v.dim(), t.K):
		return fmt.Sprintf("tile %v: head dim %d has %d chunks", t, v.dim(), arith.CeilDiv32(v.dim(), t.K))
	}
	return ""
}

// registers estimates the registers of an invocation: gradients, terms of what is owned, scores,
// products in flight, and the vectors of the next tile.
func (t backwardF32Tile) registers(v *BackwardVariant) int {
	sums, operand := arith.CeilDiv32(t.M*t.N, t.Subgroup), arith.CeilDiv32(t.M*t.K, 2*t.Subgroup)
	chunks, tensors := arith.CeilDiv32(v.dim(), t.K), uint32(2)
	owned, scores := terms*(chunks-t.QSmemChunks)*operand, t.RowTile/t.N*sums
	if v.Kernel == KernelDSK {
		owned, scores, tensors = 0, t.KVTile/t.N*sums, 1
	}
	const rest = 36 // a fragment, addresses, loop counters
	vectors := arith.CeilDiv32(tensors*t.keys()*chunks*t.K/8, t.LocalSize())
	return int(t.MFrags*(chunks*sums+owned+scores+terms*operand+t.Group*sums) + 12*vectors + rest)
}
