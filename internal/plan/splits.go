package plan

import (
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Split keys. Decode has few query rows and many keys: the heads of a group are packed
// into the rows of one workgroup, and several workgroups split the keys of a row. Each
// writes a float32 state: O, and its row max and row sum. The decode kernel or combine.comp
// combines them.

// decodeQueries is the largest Sq of a call that may run the decode path without options.
const decodeQueries = 16

// fewRows is a number of row fragments. Calls with at most that many packed rows use tiles
// of one subgroup, or of subgroups that split the KV tile.
const fewRows = 2

// Decodes reports whether packed rows or split keys make a call without options faster.
func Decodes(caps *vk.Caps, cfg *problem.Config, r *Request) bool {
	if r.Plain {
		return false
	}
	if cfg.FixedSplit > 0 {
		return true
	}
	if r.Shape.Sq > decodeQueries || r.Experiment != (problem.Experiment{}) || generalFits(&caps.Limits, cfg, r.Access) != "" {
		return false
	}
	return r.Shape.Group() > 1 || r.skAtLeast(minSplitKeys)
}

// LeavesCores reports whether splits may make a call without options faster that has more than a few query rows: its row
// blocks leave three of four cores idle, and a row has many keys. It is an estimate, chooseSplits decides. On an H200 splits
// cost such a call 13 us, and a key takes a row block 20 to 30 ns. 64 blocks in two splits lose: 59 us at
// 1024 by 1024, where the causal call without splits takes 37.
func LeavesCores(caps *vk.Caps, cfg *problem.Config, r *Request) bool {
	return !r.Plain && cfg.FixedSplit == 0 && cfg.DType != problem.F32 && r.Shape.Sq > decodeQueries && r.Experiment == (problem.Experiment{}) &&
		generalFits(&caps.Limits, cfg, r.Access) == "" && 4*r.blocks() <= uint64(caps.ShaderCores) && !r.shortCausal(cfg.Causal)
}

// blockRows are the rows of the tiles for few workgroups.
const blockRows = 128

// blocks returns the workgroups of tiles of blockRows rows.
func (r *Request) blocks() uint64 {
	g := r.Options.Grid(&r.Shape, r.TotalQ, 1, blockRows, 1)
	return uint64(g[0]) * uint64(g[1]) * uint64(g[2])
}

// fullRounds: a grid of at least this many rounds of resident workgroups is not split. It
// leaves the device idle at its end for less time than splits would cost.
const fullRounds = 2

// splitCost is the fixed cost of a split, in keys: on an H200 a workgroup takes 2 us to
// start and end, and 30 ns per key.
const splitCost = 64

// minSplitKeys is the fewest keys worth a workgroup of their own.
const minSplitKeys = 256

// minSplitKeys returns the fewest keys of a split: half as many for the decode kernel,
// which has no barriers.
func (v *Variant) minSplitKeys() int {
	if v.IsDecode() {
		return minSplitKeys / 2
	}
	return minSplitKeys
}

// Splitting is what the number of workgroups that split the keys of a row depends on, other than the keys.
type Splitting struct {
	groups, resident uint64 // workgroups without splits, and those that run at once
	least            int    // fewest keys of a split
	fixed            int    // the number, if it is not 0
}

// SplittingOf returns the Splitting of a fixed number; 1 stands for kernels that split no keys.
func SplittingOf(n int) Splitting { return Splitting{fixed: n} }

// splittingOf returns the Splitting of a kernel with a tile. It assumes that as many workgroups run at once as fit in
// the shared memory of the cores, and that every sequence has Sk keys.
func splittingOf(caps *vk.Caps, cfg *problem.Config, v *Variant, r *Request, sharedBytes uint64) Splitting {
	if cfg.FixedSplit > 0 {
		return SplittingOf(cfg.FixedSplit)
	}
	g := v.grid(r, 1)
	const reserved, mostResident = 1024, 8
	most := uint64(mostResident)
	if t, ok := v.Tile.(decodeTile); ok {
		most = uint64(max(decodeSubgroups/t.Subgroups, 1))
	}
	return Splitting{
		groups:   uint64(g[0]) * uint64(g[1]) * uint64(g[2]),
		resident: coresOf(caps) * min(max(uint64(caps.Limits.MaxSharedBytes)/(sharedBytes+reserved), 1), most),
		least:    v.minSplitKeys(),
	}
}

// Of returns how many workgroups split the keys of a row. It is Config.FixedSplit if that is set. Otherwise it is the
// smallest number with the least estimated time, each split with the fewest keys of a split or more. The estimate
// assumes that all workgroups take equally long: the time, in keys, is the rounds of resident workgroups times the
// keys of a split plus its fixed cost. Of all numbers with as many rounds, the largest has the shortest splits, and
// the smallest with splits as short is taken.
func (s *Splitting) Of(r *Request) int {
	switch {
	case s.fixed > 0:
		return s.fixed
	case s.groups == 0 || s.groups >= fullRounds*s.resident:
		return 1
	}
	keys := uint64(r.keys())
	most := uint64(min(max(1, r.keys()/s.least), problem.MaxStates))
	busy := keys * s.groups / s.resident // the time of no number is less, without the fixed costs
	best, time, first := uint64(1), uint64(0), uint64(1)
	for rounds := arith.CeilDiv64(s.groups, s.resident); first <= most && (time == 0 || busy+rounds*splitCost < time); rounds++ {
		last := min(rounds*s.resident/s.groups, most)
		if last < first {
			continue // no number has as many rounds
		}
		each := arith.CeilDiv64(keys, last)
		if t := rounds * (each + splitCost); time == 0 || t < time {
			best, time = max(arith.CeilDiv64(keys, max(each, 1)), first), t
		}
		first = last + 1
	}
	return int(best)
}

// In decode_combine.glsl an invocation combines four columns of a row and loads
// SplitsPerRound of its splits at a time: a round. On an H200 a second dispatch takes as
// long as combineRounds rounds. With sequence lengths it must also find the padding
// rows and takes as long as combineRoundsVarlen. Times in the kernel and with a second
// dispatch: 16 splits 41.0 and 42.4 us (1, 32 over 8, 32768, 128: two rounds), 13.5 and
// 12.0 (1, 8 over 1, 2048, 128: four rounds); 12 splits with lengths 11.4 and 19.7 (two).
const (
	SplitsPerRound      = 8
	combineRounds       = 2
	combineRoundsVarlen = 6
)

// combines reports whether the kernel combines the splits itself. Only the decode kernel
// does, if splits are few. The parameters of LSE then hold the address of scratch memory,
// and those of the ALiBi slopes the address of LSE: a call with both combines separately.
func (v *Variant) combines(r *Request, splits int) bool {
	t, ok := v.Tile.(decodeTile)
	if !ok || r.LSE && r.Options.alibi != 0 || r.SeparateCombine || splits <= 1 || !t.holdsStats(splits) {
		return false
	}
	most := uint32(combineRounds)
	if r.Options.Lengths&(LengthCuQ|LengthUsedQ) != 0 {
		most = combineRoundsVarlen
	}
	rows := min(r.decodeRows(), t.Rows())
	return splits <= SplitsPerRound || arith.CeilDiv32(rows*arith.CeilDiv32(t.DvSlice, 4), t.LocalSize())*arith.CeilDiv32(uint32(splits), SplitsPerRound) <= most
}

// queries returns the queries that share row blocks: those of a sequence, or one if each has a list of sparse tokens.
func (r *Request) queries() int {
	if r.Options.listPerRow() {
		return min(r.Shape.Sq, 1)
	}
	return r.Shape.Sq
}

// sequences returns the sequences that row blocks belong to: those of the batch, or the queries if each has a list of sparse
// tokens.
func (r *Request) sequences() uint64 {
	switch {
	case !r.Options.listPerRow():
		return uint64(r.Shape.B)
	case r.Options.Lengths&LengthCuQ != 0:
		return uint64(max(r.TotalQ, 1))
	}
	return hostmem.Product(r.Shape.B, max(r.Shape.Sq, 1))
}

// decodeRows returns the rows of a KV head when the query heads of its group are packed.
func (r *Request) decodeRows() uint32 {
	return uint32(min(int64(r.queries())*int64(r.Shape.Group()), math.MaxInt32))
}

// keys returns the most keys that a row attends to.
func (r *Request) keys() int {
	if r.Options.sparseTokens != 0 {
		return r.SparseTokens
	}
	return r.Shape.Sk
}

// grid returns the workgroups of a dispatch of the general or decode kernel.
func (v *Variant) grid(r *Request, splits int) [3]uint32 {
	return v.Options.Grid(&r.Shape, r.TotalQ, splits, v.Tile.Rows(), v.Slices())
}

// Grid returns the workgroups of a dispatch with these options: x row blocks, y KV heads
// times splits, z batches times slices of O.
func (o *Options) Grid(s *problem.Shape, totalQ, splits int, rows, slices uint32) [3]uint32 {
	group := max(o.packRows, 1)
	x := arith.CeilDiv64(uint64(s.Sq)*uint64(group), uint64(rows))
	z := uint64(s.B) * uint64(slices)
	switch {
	case o.isDecodePart: // as many row blocks as a short sequence may have
		x = uint64(arith.CeilDiv32(o.decodePartRows, rows))
	case o.listPerRow():
		blocks := arith.CeilDiv64(uint64(group), uint64(rows)) // of a query
		if x = uint64(s.Sq) * blocks; o.Lengths&LengthCuQ != 0 {
			x, z = uint64(totalQ)*blocks, uint64(slices)
		}
	case o.Lengths&LengthCuQ != 0:
		x, z = packedBlocks(uint64(totalQ)*uint64(group), rows, s.B), uint64(slices)
	}
	y := uint64(s.Hq) / uint64(group) * uint64(splits)
	return [3]uint32{clamp32(x), clamp32(y), clamp32(z)}
}

// packedBlocks returns the row blocks of packed sequences, each of which but one may leave its last block partly empty. A
// sequence b begins with block firstRow / block + b, as in work_tile_general.glsl and backward_interface.glsl.
func packedBlocks(rows uint64, block uint32, sequences int) uint64 {
	return arith.CeilDiv64(rows, uint64(block)) + uint64(max(sequences, 1)) - 1
}

// holdsStats reports whether the shared memory in which decode_coopmat.comp combines the
// splits of its rows holds their row maxima and row sums. It has 272 bytes per row and
// subgroup at least (shaders/decode_fragments.glsl).
func (t decodeTile) holdsStats(splits int) bool {
	return uint64(splits+3)/4*32 <= uint64(t.Subgroups)*272
}

// SplitBytes is the scratch memory of splits that a dispatch of its own combines: row max
// and row sum of all states first, then their O.
func SplitBytes(states uint64, dv int) (stats, all uint64) {
	stats = hostmem.Sum(hostmem.Product(states, 8), 15) &^ 15
	return stats, hostmem.Sum(stats, hostmem.Product(states, uint64(dv), 4))
}

// CombinedBytes is the scratch memory of splits that the kernel combines itself: a counter
// for each row block, which must begin as 0, and then O, and row max and row sum for each
// slice of its columns. shaders/decode_combine.glsl defines the layout.
func CombinedBytes(states uint64, dv int, slices uint32, groups [3]uint32, splitWorkgroups int) (counters, bytes uint64) {
	counters = hostmem.Sum(hostmem.Product(uint64(groups[0]), uint64(groups[1]/uint32(splitWorkgroups)), uint64(groups[2]), 4), 255) &^ 255
	return counters, hostmem.Product(states, uint64(dv+2*int(slices)), 4)
}

// workspace is the scratch memory of splits that splitWorkgroups workgroups compute.
func (plan *chosen) workspace(cfg *problem.Config, r *Request, splitWorkgroups int) uint64 {
	if plan.Splits <= 1 {
		return 0
	}
	v, rows := &plan.Variant, hostmem.Product(r.Shape.B, r.Shape.Sq)
	if r.Options.Lengths&LengthCuQ != 0 {
		rows = uint64(r.TotalQ)
	}
	states := hostmem.Product(rows, uint64(r.Shape.Hq), uint64(plan.Splits))
	if v.Options.Combined {
		counters, bytes := CombinedBytes(states, cfg.ValueDim(), v.Slices(), v.grid(r, splitWorkgroups), splitWorkgroups)
		return hostmem.Sum(counters, bytes)
	}
	_, all := SplitBytes(states, cfg.ValueDim())
	return all
}

// workgroups is the number of workgroups in grid.
func (v *Variant) workgroups(r *Request, splits int) uint64 {
	g := v.grid(r, splits)
	return uint64(g[0]) * uint64(g[1]) * uint64(g[2])
}

// coresOf returns the number of shader cores; 16 if the device does not report it.
func coresOf(caps *vk.Caps) uint64 {
	if caps.ShaderCores == 0 {
		return 16
	}
	return uint64(caps.ShaderCores)
}

// clamp32 saturates, so that a grid too large for a dispatch stays too large.
func clamp32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }
