package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Tuning of the backward kernels: dQ, dK with dV, and dQ = dS K, each of its own. The
// kernel of LSE is not tuned, because most of its workgroups return at once, nor are calls
// with options, as in forward.

// backwardClass is the version of the classes of backward kernels. It changes when the
// same text comes to mean another class. Forward classes have no version: they and the
// format of the file are the same as before gradients were tuned.
const backwardClass = 1

// Tunes reports whether tuning varies the tile of v.
func (v *BackwardVariant) Tunes() bool {
	o := v.Options
	o.packRows = 0
	return v.tile() != nil && o == Options{} && (v.Kernel == KernelDQ || v.ownsKeys() || v.Kernel == KernelDSK)
}

// Watches reports whether v runs the kernel of w, whatever their tiles are.
func (v *BackwardVariant) Watches(w *BackwardVariant) bool { return v.Kernel == w.Kernel }

// Flops returns the flops of the products that the kernel computes of the given shape.
func (v *BackwardVariant) Flops(cfg *problem.Config, s problem.Shape) uint64 {
	product := 2 * uint64(s.B) * uint64(s.Hq) * s.Cells(cfg.Causal)
	d, dv := uint64(v.headDim), uint64(v.headDimV)
	switch v.Kernel {
	case KernelDQ: // S, dP and dQ
		return product * (2*d + dv)
	case KernelDSK:
		return product * d
	}
	n := d + dv // S and dP
	if v.Kernel == KernelDV || v.Kernel == KernelDK {
		n = 0
	}
	if v.dK {
		n += d
	}
	if v.dV {
		n += dv
	}
	return product * n
}

// PickBackwardOnly returns a BackwardPicker that picks the tile of v for its kernel and the
// tables' for the others.
func PickBackwardOnly(v BackwardVariant) BackwardPicker {
	return func(w BackwardVariant, _ *problem.Config, _ *BackwardRequest) BackwardPick {
		if w.Kernel != v.Kernel {
			return BackwardPick{}
		}
		return BackwardPick{Tile: v.tile(), Source: problem.TileTuned, Only: true}
	}
}

// Describe returns the tile with every number that tuning varies.
func (v *BackwardVariant) Describe() string {
	if t := v.tile(); t != nil {
		return t.describe()
	}
	return ""
}

// Key returns the key of v's tile.
func (v *BackwardVariant) Key() tileKey { return KeyOf(v.tile()) }

// LocalSize returns the workgroup size, and the subgroup size that the tile needs or 0.
func (v *BackwardVariant) LocalSize() (local, subgroup uint32) {
	if t := v.tile(); t != nil {
		subgroup = t.SubgroupSize()
	}
	return v.localSize(), subgroup
}

// SPIRV returns the hash of v's module as the tuning cache stores it.
func (v *BackwardVariant) SPIRV() string { return hashOf(v.code()) }

// BackwardClassOf is ClassOf for a kernel of gradients.
func BackwardClassOf(v *BackwardVariant, cfg *problem.Config, s *problem.Shape) string {
	causal := cfg.Causal
	if causal == problem.BottomRight && s.Sq == s.Sk {
		causal = problem.TopLeft // the same mask
	}
	var align []string
	for _, t := range []int{tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO, tensors.BackwardDQ, tensors.BackwardDK, tensors.BackwardDV} {
		align = append(align, fmt.Sprint(v.align[t]))
	}
	flags := ""
	for _, f := range []struct {
		on   bool
		name string
	}{{v.ownsKeys() && !v.dK, " dV"}, {v.ownsKeys() && !v.dV, " dK"}, {v.storeDS, " dS"}, {v.accumulate, " accumulate"}} {
		if f.on {
			flags += f.name
		}
	}
	return fmt.Sprintf("%s %v d%d/%d %v%s align%s q%d k%d rows%d group%d bwd%d", v.module, v.dtype, v.headDim, v.headDimV, causal, flags, strings.Join(align, ","),
		bucket(int64(s.Sq), classLength), bucket(int64(s.Sk), classLength), bucket(s.Rows(), classRows), bucket(int64(s.Group()), classGroup), backwardClass)
}

// unused lists the fields of v's tile that its kernel does not read.
func (v *BackwardVariant) unused() []string {
	switch {
	case v.Coopmat == backwardCoopmatTile{} && v.F32 == backwardF32Tile{}:
		return nil
	case v.Kernel == KernelScores:
		return []string{"slices"}
	case v.Kernel == KernelDKDV:
		return []string{"kv_tile", "slices"}
	case v.ownsKeys():
		return []string{"kv_tile", "q_smem_chunks"}
	case v.stages:
		return []string{"row_tile", "q_smem_chunks"}
	}
	return []string{"row_tile", "q_smem_chunks", "slices"}
}

// BackwardTilings lists the tiles that can compute v, first v's own, the table's. It
// ignores the device's limits and the shape.
func BackwardTilings(v BackwardVariant) []tile {
	dims := &Variant{headDim: v.headDim, headDimV: v.headDimV}
	switch t := v.tile().(type) {
	case backwardTile:
		return candidates(dims, t)
	case backwardCoopmatTile:
		return candidates(dims, t, v.unused()...)
	case backwardF32Tile:
		return candidates(dims, t, v.unused()...)
	}
	return nil
}

// backwardTiling is tiling for a kernel of gradients.
func backwardTiling(limits *vk.Limits, v BackwardVariant, key tileKey) (tile, string) {
	t, ok := tileOf(v.tile(), key)
	if !ok || !slices.Contains(BackwardTilings(v), t) {
		return nil, notInTable(key)
	}
	v.setTile(t)
	_, reason := v.fits(limits)
	return t, reason
}

// BackwardOption is Option for a kernel of gradients.
type BackwardOption struct {
	V BackwardVariant
	Judgement
}

// mostBackwardExcess is estimated registers over available ones from which on a tile is not
// tried, unless the table's tile has more. The tiles that were measured best on an H200 at
// head dims 64 and 128 have up to 1.2.
const mostBackwardExcess = 1.35

// PruneBackward is Prune for a kernel of gradients. Its estimate of time only orders the
// candidates: it was not fitted to measured tiles, so none is pruned for its time alone.
func PruneBackward(caps *vk.Caps, v BackwardVariant, s problem.Shape, n int) []BackwardOption {
	table, most := BackwardTilings(v), mostBackwardExcess
	all := make([]BackwardOption, len(table))
	for i, t := range table {
		o := BackwardOption{v, Judgement{Heuristic: i == 0}}
		o.V.setTile(t)
		o.Registers, o.cost = o.V.estimate(t)
		if o.Heuristic {
			most = max(most, excess(t, o.Registers))
		}
		switch over := excess(t, o.Registers); {
		case o.Heuristic:
			o.Shared, o.Out = o.V.fits(&caps.Limits)
		case over > most:
			o.Out = fmt.Sprintf("about %d registers an invocation, %.2f times what there is", o.Registers, over)
		default:
			if o.Out = o.V.tileFits(&caps.Limits, t); o.Out == "" {
				o.Out = cmp.Or(o.V.tooLarge(&s, t), o.V.idleChunks(t))
			}
		}
		all[i] = o
	}
	prune(all, n, func(o *BackwardOption) *Judgement { return &o.Judgement },
		func(o *BackwardOption) (uint64, string) { return o.V.fits(&caps.Limits) })
	return all
}

// owned returns the rows, or the keys of the kernel of dK and dV, that a workgroup owns and
// that it streams.
func (v *BackwardVariant) owned(t tile) (owned, streamed uint32) {
	if s, ok := t.(backwardTile); ok {
		if s.OwnsKeys {
			return s.KVTile, s.QTile
		}
		return s.QTile, s.KVTile
	}
	return t.Rows(), t.keys()
}

// tooLarge is tooLarge for a kernel of gradients.
func (v *BackwardVariant) tooLarge(s *problem.Shape, t tile) string {
	least := uint32(32)
	switch t := t.(type) {
	case backwardCoopmatTile:
		least = t.M
	case backwardF32Tile:
		least = t.M
	}
	rows, keys := s.Sq*max(1, int(v.Options.packRows)), s.Sk
	owned, streamed := rows, keys
	if v.ownsKeys() {
		owned, streamed = keys, rows
	}
	switch o, n := v.owned(t); {
	case o > least && int(o/2) >= owned:
		return fmt.Sprintf("a workgroup owns %d of %d", o, owned)
	case n > least && int(n/2) >= streamed:
		return fmt.Sprintf("a tile of %d for %d", n, streamed)
	}
	return ""
}

// idleChunks returns a reason to prune a tile with chunks of K in shared memory while there
// are registers for one more, or "".
func (v *BackwardVariant) idleChunks(t tile) string {
	c, ok := t.(backwardCoopmatTile)
	if !ok || c.QSmemChunks == 0 {
		return ""
	}
	c.QSmemChunks--
	if registers, _ := v.estimate(c); excess(c, registers) <= 1 {
		return fmt.Sprintf("%d chunks of K in shared memory, while there are registers for one more", c.QSmemChunks+1)
	}
	return ""
}

// estimate returns registers per invocation, and a time that orders candidates.
func (v *BackwardVariant) estimate(t tile) (registers int, cost float64) {
	owned, streamed := v.owned(t)
	both := v.Kernel == KernelDKDV && v.dK && v.dV
	switch t := t.(type) {
	case backwardTile:
		threads := t.Invocations / t.ThreadsX
		rows, columns := owned/threads, streamed/t.ThreadsX
		outs := arith.CeilDiv32(v.headDim, t.ThreadsX)
		if both {
			outs += arith.CeilDiv32(v.headDimV, t.ThreadsX)
		}
		registers = int(2*rows*columns + rows*outs + 8 + 6*rows + 30)
	case backwardF32Tile:
		registers = t.registers(v)
	case backwardCoopmatTile:
		q, o := arith.CeilDiv32(v.headDim, t.K), arith.CeilDiv32(v.headDimV, t.K)
		sums, operand := arith.CeilDiv32(t.M*t.N, t.Subgroup), arith.CeilDiv32(t.M*t.K, 2*t.Subgroup)
		held, steps := q, t.Step/t.N
		operands, tileVecs := q+o-min(t.QSmemChunks, q), t.keys()*(q+o)*t.K/8
		scores := 2 * steps * sums
		if both {
			held += o
		}
		if v.Kernel == KernelDSK {
			operands, scores, tileVecs = t.KVTile/t.K, operand, t.keys()*q*t.K/8
		}
		const vector, rest = 4 + 1, 56 // as of the forward kernel
		registers = int(t.MFrags*(held*sums+operands*operand+scores) + vector*arith.CeilDiv32(tileVecs, t.LocalSize()) + rest)
	}
	over := max(1, excess(t, registers))
	return registers, over * over * (1 + 64/float64(owned) + 16/float64(streamed))
}
