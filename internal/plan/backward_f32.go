package plan

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// backwardF32Tile is a tile of the float32 backward kernels on cooperative matrices. Up to head
// dim 128 these are backward_coopmat_f32_kv.comp, backward_coopmat_f32_add.comp and
// backward_coopmat_f32_lse.comp: in the kernels of dK and dV and of LSE a pair of subgroups owns
// MFrags fragments of keys; in the kernel of dQ = dS K a subgroup owns MFrags fragments of rows.
// Above it they are stages: backward_coopmat_f32_scores.comp stores P and dS in tiles of KVTile
// keys by RowTile rows, and backward_coopmat_f32_product.comp multiplies these; a subgroup owns
// MFrags fragments of a gradient's rows. A tile in shared memory is there as three terms of 16 bits.
type backwardF32Tile struct {
	fragment
	Subgroups   uint32 `json:"subgroups" try:"4 8"`
	MFrags      uint32 `json:"m_frags" const:"M_FRAGS" try:"1 2"`
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 64"`        // of the kernel of dQ: keys in shared memory
	RowTile     uint32 `json:"row_tile" const:"ROW_TILE" try:"16 32"`         // of the other two: rows in shared memory
	QSmemChunks uint32 `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS" try:"0 1"` // of the other two: chunks of K and V, of K columns each, in shared memory; of scores: of all operands
	Fences      uint32 `json:"fences" const:"FENCES" try:"0 1"`               // 1: loads of fragments are not hoisted over chunks
	Group       uint32 `json:"group" const:"GROUP" try:"1 2 4"`               // fragments that a subgroup multiplies at the same time
	Slices      uint32 `json:"slices" const:"SLICES" try:"1 2 4"`             // of products: workgroups that share the columns of a gradient; 0: none
	InSmem      uint32 `json:"terms_in_smem" const:"TERMS_IN_SMEM"`           // 1: P and dS become operands in shared memory; 0: in registers, where the device's order allows it
}

func (t backwardF32Tile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t backwardF32Tile) SubgroupSize() uint32 { return t.Subgroup }
func (t backwardF32Tile) keys() uint32         { return max(t.KVTile, t.RowTile) }
func (t backwardF32Tile) columns() uint32      { return maxF32Dim }
func (t backwardF32Tile) Splits() int          { return 1 }
func (t backwardF32Tile) describe() string     { return t.String() }

// Rows returns what a workgroup owns: rows of dQ, or keys.
func (t backwardF32Tile) Rows() uint32 {
	switch {
	case t.ofScores():
		return t.KVTile
	case t.RowTile != 0 && t.Slices == 0:
		return t.Subgroups / 2 * t.MFrags * t.M
	}
	return t.Subgroups * t.MFrags * t.M
}

// ofScores reports whether t is a tile of backward_coopmat_f32_scores.comp.
func (t backwardF32Tile) ofScores() bool { return t.KVTile != 0 && t.RowTile != 0 }

// divides reports whether the subgroups of a tile of scores divide it evenly.
func (t backwardF32Tile) divides() bool {
	groups := t.KVTile / (t.MFrags * t.M)
	return t.KVTile%(t.MFrags*t.M) == 0 && t.Subgroups%groups == 0 && t.RowTile%(t.Subgroups/groups*t.N) == 0
}

func (t backwardF32Tile) computes(d, dv uint32) bool {
	if t.MFrags == 0 || t.Subgroups == 0 || t.Group == 0 || t.keys() == 0 || t.keys()%t.N != 0 || t.RowTile > t.LocalSize() || max(d, dv) > maxF32Dim {
		return false
	}
	return t.ofScores() || (t.RowTile == 0 || t.Subgroups%2 == 0) && t.MFrags*t.chunks(max(d, dv)) <= maxGradientFragments
}

// chunks returns the chunks of the columns that a workgroup has of a gradient.
func (t backwardF32Tile) chunks(dim uint32) uint32 {
	return arith.CeilDiv32(arith.CeilDiv32(dim, t.K), max(t.Slices, 1))
}

// String returns owned x streamed rows, the fragment, subgroups and M fragments, with g for
// groups, f for fences and s for slices.
func (t backwardF32Tile) String() string {
	s := fmt.Sprintf("%dx%d %dx%d %dsg%d g%d", t.Rows(), t.keys(), t.M, t.N, t.Subgroups, t.MFrags, t.Group)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.Fences != 0 {
		s += " f"
	}
	if t.Slices > 1 {
		s += fmt.Sprintf(" s%d", t.Slices)
	}
	if t.InSmem != 0 {
		s += " smem"
	}
	return s
}

// shortened returns t with the smallest tile: drivers on the CPU compile every fragment that
// the kernels write out.
func (t backwardF32Tile) shortened() backwardF32Tile {
	t.Group = 1
	if t.ofScores() {
		groups := max(t.KVTile/(t.MFrags*t.M), 1)
		t.MFrags, t.KVTile, t.RowTile = 1, groups*t.M, t.Subgroups/groups*t.N
		return t
	}
	t.KVTile, t.RowTile, t.QSmemChunks = min(t.KVTile, 2*t.N), min(t.RowTile, 2*t.N), 0
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
//
// Stages on an H200 (batch 1, length 4096, no mask; docs/log/backward.md, 21): 28.4, 28.7 and 36.8 TFLOP/s at 160, 192 and
// 256. Scores in groups of one take as long, with 64 rows and two chunks 8 % longer.
var backwardF32Tables = map[string][]backwardF32Row{
	"kv": {
		{64, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 32, Group: 2}},
		{128, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 16, Group: 2}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, RowTile: 16, Fences: 1, Group: 2}},
	},
	"add": {
		{64, backwardF32Tile{Subgroups: 8, MFrags: 2, KVTile: 32, Group: 2}},
		{128, backwardF32Tile{Subgroups: 8, MFrags: 2, KVTile: 16, Fences: 1, Group: 2}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, KVTile: 16, Fences: 1, Group: 2}},
	},
	// Most workgroups of the kernel of LSE return at once: one tile, not tuned.
	"lse": {
		{128, backwardF32Tile{Subgroups: 8, MFrags: 1, RowTile: 16, Group: 1}},
		{128, backwardF32Tile{Subgroups: 4, MFrags: 1, RowTile: 16, Group: 1}},
	},
	"scores": {
		{256, backwardF32Tile{Subgroups: 8, MFrags: 2, KVTile: 128, RowTile: 128, QSmemChunks: 1, Group: 2}},
		{256, backwardF32Tile{Subgroups: 4, MFrags: 2, KVTile: 64, RowTile: 64, QSmemChunks: 1, Group: 2}},
		{256, backwardF32Tile{Subgroups: 4, MFrags: 1, KVTile: 16, RowTile: 32, QSmemChunks: 1, Group: 1}}, // of fragments of 8x8
	},
	"product": { // RowTile is KVTile of dQ
		{64, backwardF32Tile{Subgroups: 8, MFrags: 2, RowTile: 32, Group: 2, Slices: 1}},
		{128, backwardF32Tile{Subgroups: 8, MFrags: 2, RowTile: 16, Fences: 1, Group: 2, Slices: 1}},
		{160, backwardF32Tile{Subgroups: 8, MFrags: 2, RowTile: 16, Fences: 1, Group: 5, Slices: 2}},
		{192, backwardF32Tile{Subgroups: 8, MFrags: 2, RowTile: 16, Fences: 1, Group: 3, Slices: 2}},
		{256, backwardF32Tile{Subgroups: 8, MFrags: 2, RowTile: 16, Fences: 1, Group: 2, Slices: 2}},
		{256, backwardF32Tile{Subgroups: 4, MFrags: 1, RowTile: 16, Fences: 1, Group: 2, Slices: 2}},
	},
}

// maxFusedF32Dim is the largest head dim where one kernel computes P, dS, dK and dV: a gradient and the terms of K or V
// take 160 registers of an invocation there.
const maxFusedF32Dim = 128

// inStages reports whether kernels of stages run: above maxFusedF32Dim, or where a measurement names a tile of scores.
func (v BackwardVariant) inStages(cfg *problem.Config, r *BackwardRequest, pick BackwardPicker) bool {
	if v.dim() > maxFusedF32Dim || pick == nil {
		return v.dim() > maxFusedF32Dim
	}
	v = v.forKernel(KernelScores)
	v.F32 = backwardF32Tables["scores"][0].backwardF32Tile
	return pick(v, cfg, r).Source == problem.TileNamed
}

// f32Module returns the part of the module's name that says what the kernel of float32 is.
func (v *BackwardVariant) f32Module() string {
	switch {
	case !v.stages:
		return backwardKernelNames[v.Kernel]
	case v.Kernel == KernelLSE, v.Kernel == KernelScores:
		return "scores"
	}
	return "product"
}

// GridDepth returns the workgroups of a chunk along z: slices of the columns of a gradient, or row tiles of scores.
func (v *BackwardVariant) GridDepth(s *problem.Shape) uint32 {
	if v.Kernel == KernelScores {
		return arith.CeilDiv32(uint32(s.Sq*s.Group()), v.F32.RowTile)
	}
	return max(v.F32.Slices, 1)
}

// f32Tiles lists the tiles of v's table for a fragment that the device has, best first.
func (v *BackwardVariant) f32Tiles(limits *vk.Limits, f fragment) []backwardF32Tile {
	var list []backwardF32Tile
	for _, row := range backwardF32Tables[v.f32Module()] {
		t := row.backwardF32Tile
		t.fragment = f
		t.InSmem = dispatch.BoolConstant(!v.inRegisters)
		if v.stages && v.Kernel == KernelDSK {
			t.KVTile, t.RowTile = t.RowTile, 0
		}
		if v.dim() <= row.maxDim && t.computes(v.headDim, v.headDimV) && t.LocalSize() <= min(limits.MaxInvocations, limits.MaxWorkGroupSize[0]) {
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
	case max(cfg.HeadDim, cfg.ValueDim()) > maxF32Dim:
		return fmt.Sprintf("gradients of f32 on cooperative matrices take head dims up to %d", maxF32Dim)
	case f.M != f.N || f.M != f.K || f.M*f.N != 8*f.Subgroup:
		return fmt.Sprintf("gradients of f32 take square fragments of eight elements an invocation, the device's are %dx%dx%d among %d", f.M, f.N, f.K, f.Subgroup)
	}
	return ""
}

// f32ChunksOf divides dS of float32, which the kernel of dQ always reads from memory, and P too in stages: into
// chunks of heads, or of keys of a head where budget does not hold a head.
func f32ChunksOf(stages bool, f fragment, r *BackwardRequest, budget uint64) (c BackwardChunks) {
	slot := 4
	switch {
	case stages:
		slot = 8
	case !r.Want.Q:
		return c
	}
	s := &r.Shape
	rows := (s.Sq*s.Group() + rowUnit - 1) / rowUnit * rowUnit
	keys := (s.Sk + keyUnit - 1) / keyUnit * keyUnit
	heads, rowBytes := s.B*s.KVHeads(), hostmem.Product(rows, slot)
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
	if v.f32Module() == "scores" {
		switch {
		case !t.ofScores():
			return fmt.Sprintf("tile %v is not one of the kernel of scores", t)
		case !t.divides():
			return fmt.Sprintf("tile %v is not divided by its subgroups", t)
		case t.QSmemChunks == 0:
			return fmt.Sprintf("tile %v has no chunk in shared memory", t)
		case keyUnit%t.KVTile != 0:
			return fmt.Sprintf("tile %v: its keys do not divide %d, the unit of the keys of dS", t, keyUnit)
		}
		return ""
	}
	if v.stages && (t.MFrags > 2 || t.keys() > 4*t.N) {
		return fmt.Sprintf("tile %v: the kernel of %s has up to 2 fragments of rows and 4 of a tile", t, backwardKernelNames[v.Kernel])
	}
	switch ofRows := v.Kernel == KernelDSK; {
	case t.KVTile != 0 != ofRows, t.RowTile != 0 == ofRows, t.Slices != 0 != v.stages:
		return fmt.Sprintf("tile %v is not one of the kernel of %s", t, backwardKernelNames[v.Kernel])
	case t.InSmem == 0 && !v.inRegisters:
		return fmt.Sprintf("tile %v: the device orders the elements of accumulators and operands differently", t)
	case ofRows && keyUnit%t.KVTile != 0, v.ownsKeys() && v.storeDS && keyUnit%t.Rows() != 0:
		return fmt.Sprintf("tile %v: its keys do not divide %d, the unit of the keys of dS", t, keyUnit)
	case v.ownsKeys() && v.storeDS && rowUnit%t.RowTile != 0:
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
	const rest = 36 // a fragment, addresses, loop counters
	if t.ofScores() {
		scores := t.KVTile * t.RowTile / t.Subgroups / (t.M * t.N) * sums
		vectors := arith.CeilDiv32((t.KVTile+t.RowTile)*t.QSmemChunks*t.K/8, t.LocalSize())
		return int(scores+t.MFrags*(terms*operand+t.Group*sums)+12*vectors) + rest
	}
	chunks, tensors := t.chunks(v.dim()), uint32(2)
	owned, scores := terms*(chunks-min(t.QSmemChunks, chunks))*operand, t.RowTile/t.N*sums
	if v.Kernel == KernelDSK || v.stages {
		owned, scores, tensors = 0, t.keys()/t.N*sums, 1
	}
	vectors := arith.CeilDiv32(tensors*t.keys()*chunks*t.K/8, t.LocalSize())
	return int(t.MFrags*(chunks*sums+owned+scores+terms*operand+t.Group*sums) + 12*vectors + rest)
}
