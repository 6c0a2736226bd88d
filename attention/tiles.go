package attention

import "slices"

// Tile choice: pure functions from the problem and the device's numbers to the
// candidates, best first. The first one within the device's limits is used.

// fragment is a cooperative-matrix shape and the subgroup that holds it.
type fragment struct {
	m, n, k  uint32
	sumN     uint32 // the fewest columns a fragment of m rows and depth k may have
	subgroup uint32
}

// tileChoice is a tile of a cooperative-matrix kernel for head dims up to maxDim
// (the larger of Dqk and Dv).
type tileChoice struct {
	maxDim          uint32
	subgroups       uint32
	mFrags          uint32         // fragments of rows a subgroup owns
	kvTile          uint32         // keys in shared memory
	kvStep          uint32         // keys multiplied at a time
	qSmemChunks     uint32         // chunks of 16 columns of Q in shared memory
	slice           uint32         // columns of O
	splitKV         bool           // the subgroups share keys, not rows
	aliasKV         bool           // V takes K's place in shared memory
	operands        decodeOperands // neither K nor V goes through shared memory
	dimSplit        uint32         // direct: subgroups that walk together, each with some of the columns; 0 is 1
	prefetch        uint32         // direct: what of the next tile of keys is fetched while one is multiplied
	keysPerSubgroup bool           // subgroups carry keys that are side by side
}

// preferred are the tiles of the coopmat2 kernel. Measured on an H200, f16, full
// unless said otherwise, 16x16 fragments, subgroups of 32; docs/log.md has the runs.
// Subgroups x fragments x keys / keys of a step, q: chunks of Q staged. TFLOP/s at
// length 4096:
//
//	 32: 16x2x128/16 272; 16x2x96/16 261; 4x2x64/16 258
//	 64: 8x2x96/16 340; 8x2x64/16 333; 8x2x128/16 319; 16x1x128/16 317; 4x2x64/16 308;
//	     with own keys (another run) 8x2x128/16 346, 8x2x96/16 335, 8x2x64/16 328, 8x2x96/16 without 339
//	 96: 8x2x64/32 q2 346; 8x2x48/16 q1 319; 8x2x48/16 q2 319
//	128: 8x2x32/16 q2 346, q3 324; 8x2x32/32 q3 303
//	160: 8x1x64/32 270; 8x1x48/16 q1 237 (at 2500)
//	192: 8x1x48/16 q1 281; 8x1x48/16 280; 8x1x32/16 267; 8x1x32/32 257
//	256: 8x1x16/16 q7 231, q6 216, q5 210; 8x1x32/16 170 under a causal mask at 2048, where q7 is 195
//
// All workgroups of a multiprocessor together have about 48 KiB of shared memory
// there, so that two of four subgroups run side by side only below 24 KiB each.
var preferred = []tileChoice{
	{32, 16, 2, 128, 16, 0, 32, false, false, noDecodeKernel, 0, 0, false},
	{64, 8, 2, 128, 16, 0, 64, false, false, noDecodeKernel, 0, 0, true},
	{96, 8, 2, 64, 32, 2, 96, false, false, noDecodeKernel, 0, 0, false},
	{128, 8, 2, 32, 16, 2, 128, false, false, noDecodeKernel, 0, 0, false},
	{160, 8, 1, 64, 32, 0, 160, false, false, noDecodeKernel, 0, 0, false},
	{192, 8, 1, 48, 16, 1, 192, false, false, noDecodeKernel, 0, 0, false},
	{256, 8, 1, 16, 16, 7, 256, false, false, noDecodeKernel, 0, 0, false},
	{576, 8, 1, 16, 16, 0, 256, false, false, noDecodeKernel, 0, 0, false},
}

// preferredCausal replace those of the same head dims under a causal mask. TFLOP/s:
//
//	 32: blocks of 512 rows are too few at 4096 with 32 heads: 152 where full is 274
//	 64: 8x2x128/16 248 at 2048 and 290 at 4096; 4x2x64/16 244, 278; 8x2x96/16 234, 289
//	128: 8x2x32/16 q3 246, 296; q2 238, 288; 12x1x48/16 234, 270; 8x1x64/32 233, 262
var preferredCausal = []tileChoice{
	{32, 4, 2, 64, 16, 0, 32, false, false, noDecodeKernel, 0, 0, false},
	{64, 8, 2, 128, 16, 0, 64, false, false, noDecodeKernel, 0, 0, false},
	{128, 8, 2, 32, 16, 3, 128, false, false, noDecodeKernel, 0, 0, false},
}

// preferredShort replace those under a causal mask that leaves a query no more than
// shortKeys on the average: blocks of 256 rows are then mostly diagonal. TFLOP/s at
// length 1024:
//
//	 64: 4x2x64/16 186; 8x1x64/16 184; 16x1x128/16 179; 8x2x128/16 176
//	128: 8x1x64/32 189; 8x2x32/16 q3 176
var preferredShort = []tileChoice{
	{64, 4, 2, 64, 16, 0, 64, false, false, noDecodeKernel, 0, 0, false},
	{128, 8, 1, 64, 32, 0, 128, false, false, noDecodeKernel, 0, 0, false},
}

const shortKeys = 640

// preferredScaled replace those of keys with scales, whose sums take registers too: on an
// H200 1.34 ms with 8x1x64/32 and 12x1x48/16 where 8x2x32/16 takes 1.55 (batch 2, 32 heads
// over 8, length 4096, int8).
var preferredScaled = []tileChoice{
	{128, 8, 1, 64, 32, 0, 128, false, false, noDecodeKernel, 0, 0, false},
}

// preferredPaged replace those of keys in pages smaller than a tile, where nothing is masked:
// finding them takes registers (docs/log.md, 47).
var preferredPaged = []tileChoice{
	{128, 8, 2, 32, 16, 3, 128, false, false, noDecodeKernel, 0, 0, false},
}

// preferredScratch are those of the coopmat kernel, where P goes through a scratch
// in shared memory: 128 is 196 with 8x1x64/16, 194 with 8x1x64/32, 191 with 8x2x32/16
// q1; 64 is 189 with 8x2x64/16 and with 4x2x64/32, 168 with 8x2x64/32.
var preferredScratch = []tileChoice{
	{32, 4, 2, 64, 16, 0, 32, false, false, noDecodeKernel, 0, 0, false},
	{64, 8, 2, 64, 16, 0, 64, false, false, noDecodeKernel, 0, 0, false},
	{128, 8, 1, 64, 16, 0, 128, false, false, noDecodeKernel, 0, 0, false},
	{192, 8, 1, 32, 32, 0, 192, false, false, noDecodeKernel, 0, 0, false},
	{256, 8, 1, 32, 32, 0, 128, false, false, noDecodeKernel, 0, 0, false},
	{576, 8, 1, 16, 16, 0, 256, false, false, noDecodeKernel, 0, 0, false},
}

// untuned is the tile of the ladder's first steps, for every head dim.
var untuned = tileChoice{0, 4, 1, 32, 32, 0, 128, false, false, noDecodeKernel, 0, 0, false}

// choose picks the row of the tables for a problem.
func choose(tier Tier, v variant, s Shape, causal Causal) tileChoice {
	dim := max(v.headDim, v.headDimV)
	pick := func(table []tileChoice) tileChoice {
		return table[slices.IndexFunc(table, func(c tileChoice) bool { return dim <= c.maxDim })]
	}
	switch {
	case !v.experiment.has(stepTiles):
		return untuned
	case tier == TierCoopMat:
		return pick(preferredScratch)
	}
	best := pick(preferred)
	short := s.Cells(causal) <= shortKeys*uint64(s.Sq)
	for _, t := range []struct {
		holds bool
		rows  []tileChoice
	}{{v.causal, preferredCausal}, {v.causal && short, preferredShort}, {v.options.pageSize%best.kvTile != 0 && !v.causal, preferredPaged}, {v.options.kv.Scaled(), preferredScaled}} {
		if i := slices.IndexFunc(t.rows, func(c tileChoice) bool { return c.maxDim == best.maxDim }); t.holds && i >= 0 {
			best = t.rows[i]
		}
	}
	return best
}

// coopmatTiles lists tiles for cooperative-matrix kernels: the preferred one,
// then the same with ever fewer keys at once, rows and subgroups, for devices
// with less shared memory. Few queries take few subgroups.
func coopmatTiles(f fragment, best tileChoice, v variant, sq, maxInvocations uint32) []tile {
	slice := min(v.headDimV, best.slice)
	if slice < v.headDimV {
		slice = ceilDiv(slice, f.n) * f.n
	}
	var list []tile
	for mFrags := best.mFrags; mFrags >= 1; mFrags-- {
		if mFrags > 1 && sq <= f.m {
			continue
		}
		subgroups := best.subgroups
		for subgroups > 1 && (subgroups*f.subgroup > maxInvocations || !best.splitKV && best.operands == noDecodeKernel && subgroups/2*mFrags*f.m >= sq) {
			subgroups /= 2
		}
		for cols := best.kvTile; cols >= 8; cols /= 2 {
			if best.splitKV && cols != subgroups*best.kvStep {
				continue // a step for each
			}
			t := tile{
				local: subgroups * f.subgroup, kvTile: cols, dvSlice: slice,
				m: f.m, n: f.n, k: f.k, sumN: f.sumN, subgroup: f.subgroup, mFrags: mFrags,
				kvStep: uint32(gcd(uint64(best.kvStep), uint64(cols))), qSmemChunks: min(best.qSmemChunks*16/f.k, ceilDiv(v.headDim, f.k)),
				splitKV: best.splitKV, aliasKV: best.aliasKV, operands: best.operands, dimSplit: best.dimSplit, prefetch: best.prefetch, keysPerSubgroup: best.keysPerSubgroup,
			}
			if !t.computes(v.headDimV) {
				continue
			}
			// A lone subgroup would carry a whole K and V tile in its registers.
			if t.operands == noDecodeKernel && t.vecsInFlight(v.headDim) > 16 && cols/2 >= f.m && cols/2%f.n == 0 {
				continue
			}
			list = append(list, t)
			if t.qSmemChunks > 0 {
				t.qSmemChunks = 0
				list = append(list, t)
			}
		}
	}
	return list
}

// carried counts the 16-byte pieces of a K and a V tile that an invocation
// carries while they travel to shared memory.
func (t tile) vecsInFlight(headDim uint32) uint32 {
	return ceilDiv(t.kvTile*ceilDiv(headDim, t.k)*t.k/8, t.local) + ceilDiv(t.kvTile*ceilDiv(t.dvSlice, t.n)*t.n/8, t.local)
}

func ceilDiv(a, b uint32) uint32 { return (a + b - 1) / b }
