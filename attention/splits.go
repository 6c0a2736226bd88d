package attention

import (
	"math"

	"vkattn/vk"
)

// Decoding has few query rows and many keys: the heads of a group are packed into
// the rows of one workgroup, and several workgroups share the keys of a row,
// leaving states in float32 that a second kernel merges.

// decodeQueries is the Sq up to which a call without features is decoding too.
const decodeQueries = 16

// decodeRows is in fragments: calls with no more packed rows use tiles of one subgroup.
const decodeRows = 2

// decodes reports whether a call that asks for no feature is better off with
// packed rows or split keys.
func decodes(caps *vk.Caps, cfg *Config, r *request) bool {
	if r.plain {
		return false
	}
	if cfg.FixedSplit > 0 {
		return true
	}
	if r.shape.Sq > decodeQueries || r.experiment != (Experiment{}) || generalFits(&caps.Limits, r.access) != "" {
		return false
	}
	return r.shape.Group() > 1 || r.shape.Sk >= minSplitKeys
}

// fullRounds of workgroups leave so little of the device idle at the end that parts
// would cost more.
const fullRounds = 2

// splitCost is what a part takes besides its keys, in the time of so many: on an H200
// a workgroup begins and leaves in 2 us, and has a key in 30 ns.
const splitCost = 64

// minSplitKeys is the fewest keys that are worth a workgroup of their own.
const minSplitKeys = 256

// minSplitKeys is half of it where subgroups walk for themselves, without a barrier.
func (t *tile) minSplitKeys() int {
	if t.operands != noDecodeKernel {
		return minSplitKeys / 2
	}
	return minSplitKeys
}

// decodeSubgroups of the kernel that brings keys straight into fragments find room in
// the registers of a core: 150 to 255 of an invocation. A third of four was no faster
// on an H200 where 168 are enough (docs/log.md, 33).
const decodeSubgroups = 8

// splitsOf is how many workgroups share the keys of a row: what the caller fixed, or the
// fewest that are done first if all workgroups take equally long, each with the tile's
// minSplitKeys of keys or more. As many workgroups are taken to run at once as find room
// in the shared memory of the cores. The Shape's Sk stands for every sequence's length.
func splitsOf(caps *vk.Caps, cfg *Config, v *variant, r *request, sharedBytes uint64) int {
	if cfg.FixedSplit > 0 {
		return cfg.FixedSplit
	}
	g := v.grid(r, 1)
	groups := uint64(g[0]) * uint64(g[1]) * uint64(g[2])
	cores := coresOf(caps)
	const reserved, mostResident = 1024, 8
	most := uint64(mostResident)
	if v.tile.operands != noDecodeKernel {
		most = uint64(max(decodeSubgroups/(v.tile.local/v.tile.subgroup), 1))
	}
	resident := cores * min(max(uint64(caps.Limits.MaxSharedBytes)/(sharedBytes+reserved), 1), most)
	if groups >= fullRounds*resident {
		return 1
	}
	splits := min(max(1, r.keys()/v.tile.minSplitKeys()), MaxStates)
	// In keys: rounds of workgroups, each with its part and what it takes to begin and to leave.
	cost := func(n int) uint64 {
		return ceilDiv64(groups*uint64(n), resident) * (ceilDiv64(uint64(r.keys()), uint64(n)) + splitCost)
	}
	best := 1
	for n := 2; n <= splits; n++ {
		if cost(n) < cost(best) {
			best = n
		}
	}
	return best
}

// An invocation of decode_combine.glsl, which puts parts together, has four columns of a row and asks for
// splitsPerRound of its parts: a round. A second dispatch takes an H200 as long as maxCombineRounds;
// with lengths of sequences, where it has to know rows that nobody has, as maxCombineRoundsVarlen. 16
// parts take 41.0 us in the kernel and 42.4 with a second dispatch (1, 32 over 8, 32768, 128:
// two rounds), 13.5 and 12.0 (1, 8 over 1, 2048, 128: four), 12 parts with lengths 11.4 and
// 19.7 (two).
const (
	splitsPerRound         = 8
	maxCombineSplits       = 64 // that their LSE have room in shared memory
	maxCombineRounds       = 2
	maxCombineRoundsVarlen = 6
)

// combines reports whether the kernel puts the parts of split keys together itself: the
// decoding kernel does where it has no LSE to write, which takes the parameters that name
// its scratch memory, and parts are not too many.
func combines(t *tile, r *request, splits int) bool {
	if t.operands == noDecodeKernel || r.lse || r.separateCombine || splits <= 1 || splits > maxCombineSplits {
		return false
	}
	most := uint32(maxCombineRounds)
	if r.options.lengths&(lengthCuQ|lengthUsedQ) != 0 {
		most = maxCombineRoundsVarlen
	}
	rows := min(r.decodeRows(), t.rows())
	return splits <= splitsPerRound || ceilDiv(rows*ceilDiv(t.dvSlice, 4), t.local)*ceilDiv(uint32(splits), splitsPerRound) <= most
}

// decodeRows is how many rows a key head has if the heads of a group are rows side
// by side.
func (r *request) decodeRows() uint32 {
	return uint32(min(int64(r.shape.Sq)*int64(r.shape.Group()), math.MaxInt32))
}

// keys is how many keys a row attends to, at most.
func (r *request) keys() int {
	if r.options.sparseTokens {
		return r.sparseTokens
	}
	return r.shape.Sk
}

// grid is the workgroups of a dispatch with features.
func (v *variant) grid(r *request, splits int) [3]uint32 {
	s := &r.shape
	group := max(v.options.packRows, 1)
	x := ceilDiv64(uint64(s.Sq)*uint64(group), uint64(v.tile.rows()))
	z := uint64(s.B) * uint64(v.slices())
	switch {
	case v.options.isDecodePart: // a row block for each that a short sequence may have
		x = uint64(ceilDiv(v.options.decodePartRows, v.tile.rows()))
	case v.options.lengths&lengthCuQ != 0:
		// Sequences one after another; each may leave a part of a block unused.
		x, z = uint64(r.totalQ)*uint64(group)/uint64(v.tile.rows())+uint64(s.B), uint64(v.slices())
	}
	y := uint64(s.Hq) / uint64(group) * uint64(splits)
	return [3]uint32{clamp32(x), clamp32(y), clamp32(z)}
}

// workgroups of a dispatch with features.
func (v *variant) workgroups(r *request, splits int) uint64 {
	g := v.grid(r, splits)
	return uint64(g[0]) * uint64(g[1]) * uint64(g[2])
}

// coresOf is how many a device has; 16 where it does not say.
func coresOf(caps *vk.Caps) uint64 {
	if caps.ShaderCores == 0 {
		return 16
	}
	return uint64(caps.ShaderCores)
}

func ceilDiv64(a, b uint64) uint64 { return (a + b - 1) / b }

// clamp32 keeps what is too large for a dispatch too large.
func clamp32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

// decodeTiles are for calls with few packed rows, best first: four subgroups that walk
// over keys for themselves, without shared memory, where the device's fragments allow
// it; four that share the keys of a tile; or one, where keys are too few to be parted.
// With the latter two nothing waits for more than a tile of keys, and a core holds two
// to a few of them. docs/log.md has what was measured on an H200: 29 of those, with
// head dim 128 3.55 TB/s of K and V shared (3.2 without reuse) and 3.5 alone, 64 3.2
// with steps of 32 and 3.0 with 16; and 31 of the first.
func decodeTiles(caps *vk.Caps, f fragment, v variant, r *request, fixed bool) (list []tileChoice) {
	dim := max(v.headDim, v.headDimV)
	if r.operands != noDecodeKernel {
		t := tileChoice{maxDim: dim, subgroups: 4, mFrags: 1, kvTile: 16, kvStep: 16, slice: v.headDimV, operands: r.operands}
		if dim <= 64 || dim <= 128 && v.options.kv != KVSame && r.operands == operandsInRegisters {
			t.kvTile, t.kvStep = 32, 32
		}
		sumN := r.operands.fragment(f, r.decodeRows()).sumN
		pairs := v.pairs(dim, sumN)
		switch {
		case dim > 256: // four walk together, each with up to 160 columns of K and 128 of V and O
			t.dimSplit, t.slice = t.subgroups, evenSlice(v.headDimV, 512)
		case dim > 128: // registers hold K of a tile and O of a few rows, but not Q beside them
			t.slice, t.qSmemChunks = evenSlice(v.headDimV, 256*8/sumN), ceilDiv(v.headDim, 16)
			if pairs {
				t.dimSplit, t.slice = 2, evenSlice(v.headDimV, 256)
			}
		}
		if round := decodeSubgroups / max(t.dimSplit, 1) * t.kvTile; (dim <= 128 || pairs) && !fixed && r.fillsCores(caps, ceilDiv(r.decodeRows(), sumN), round) {
			t.subgroups = decodeSubgroups
		}
		t.prefetch = prefetchOf(&v, &t, sumN)
		list = append(list, t)
	}
	alone := tileChoice{maxDim: dim, subgroups: 1, mFrags: decodeRows, kvTile: 16, kvStep: 16, slice: 128}
	switch {
	case dim <= 64:
		alone.kvTile, alone.kvStep = 32, 32
	case dim > 128:
		alone.slice = evenSlice(v.headDimV, 128)
	}
	if fixed || r.keys() < 2*minSplitKeys || dim > 128 { // subgroups that share keys would be parts that the caller did not fix
		return append(list, alone)
	}
	shared := alone
	shared.subgroups, shared.mFrags, shared.splitKV, shared.aliasKV = 4, 1, true, true
	shared.kvTile = shared.subgroups * shared.kvStep
	return append(list, shared, alone)
}

// contiguousRun is how many keys one address is enough for in the decoding kernel, a fragment's,
// where a multiple of them lies one after another.
const contiguousRun = 16

// contiguousKeys reports whether they do.
func (v *variant) contiguousKeys() bool {
	f := &v.options
	return f.kv == KVSame && !f.sparseTokens && f.pageSize%contiguousRun == 0
}

// pairs reports whether two subgroups of the decoding kernel walk together, each with half
// of V and O, which leaves registers for values ahead: on an H200 head dim 256 takes 244 us
// instead of 250, with 16 rows 255 instead of 288, in bfloat16 307 instead of 316. Not at head dim 192
// (200, 186), whose three blocks of columns have no half, and not where keys are quantised and
// take few registers (int8 206, 184), unless rows would be read twice.
func (v *variant) pairs(dim, sumN uint32) bool {
	return dim > 192 && dim <= 256 && (v.options.kv == KVSame || sumN > 8)
}

// prefetchOf is how much of the next tile of keys a subgroup fetches while it multiplies
// one, beside O with its sumN rows: all of it or the values, as registers allow. On an
// H200 with head dim 128 and 8 rows 71.0 us instead of 72.2; with 16 rows the values
// alone are 1 % faster than nothing, and all of it is 2 % slower. Pages of 8 keys
// at head dim 128 take 73.9 us instead of 77.0; at 64, where 41.5 instead of 43.6, pages
// of one key 49.0 instead of 44.7.
func prefetchOf(v *variant, t *tileChoice, sumN uint32) uint32 {
	switch {
	case v.options.kv.Scaled() && t.operands == operandsInRegisters:
		return v.scaledPrefetch(t.maxDim, sumN)
	case v.options.kv != KVSame:
		return 0
	case t.dimSplit == 2 && v.dtype == F16:
		return 1
	case t.maxDim > 128, t.maxDim <= 64 && !v.contiguousKeys():
		return 0
	case v.options.sparseTokens, sumN > 8:
		return 1
	}
	return 2
}

// scaledPrefetch is the same for int8 and float8, which take half of the registers. On an H200
// with head dim 128 53.9 us of int8 instead of 59.0 without, but with 16 rows 66.3 instead
// of 62.9; with 64 37.0 instead of 42.1 and 39.1 instead of 43.9; with 192 the values 144.7
// instead of 138.0, with 256 184 instead of 201.
func (v *variant) scaledPrefetch(dim, sumN uint32) uint32 {
	switch {
	case dim <= 64, dim <= 128 && sumN <= 8:
		return 2
	case dim > 192 && dim <= 256:
		return 1
	}
	return 0
}

// whyNoDecodeKernel says why a call that decodes on a tier of cooperative matrices has not the
// first of decodeTiles; "" where it has it, and for all other calls. device is what
// decodeOperandsOn said.
func (v *variant) whyNoDecodeKernel(r *request, device string) string {
	rows := r.decodeRows()
	switch {
	case v.tile.subgroup == 0, !v.options.any(), v.tile.operands != noDecodeKernel, rows > decodeRows*v.tile.m:
		return ""
	case device != "":
		return device
	}
	return "no tile of it is within the device's limits"
}

// fillsCores reports whether workgroups that take a core for themselves, each with a part
// of the keys of a block of rows, leave few cores without one, and find a round of keys
// each. There are half as many parts then: on an H200, which has 132 cores, 8 blocks of
// 32768 keys 43.2 us instead of 46.0, and 64 of 8192 with head dim 64 40.3 instead of
// 41.0, with 128 the same.
func (r *request) fillsCores(caps *vk.Caps, rowBlocks, round uint32) bool {
	const idle = 16 // one core of so many may be
	blocks := uint64(r.shape.B) * uint64(r.shape.KVHeads()) * uint64(rowBlocks)
	cores := uint64(caps.ShaderCores)
	splits := cores / blocks
	return splits > 1 && splits*blocks >= cores-cores/idle && uint64(r.keys()) >= splits*uint64(round)
}

// evenSlice cuts columns into slices of at most most that are whole fragments and
// leave none over, where there are such; else into one.
func evenSlice(columns, most uint32) uint32 {
	for n := ceilDiv(columns, most); n <= ceilDiv(columns, 16); n++ {
		if columns%n == 0 && columns/n%16 == 0 {
			return columns / n
		}
	}
	return columns
}
