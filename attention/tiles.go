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
	maxDim    uint32
	subgroups uint32
	rowTiles  uint32 // fragments of rows a subgroup owns
	cols      uint32 // keys in shared memory
	step      uint32 // keys multiplied at a time
	staged    uint32 // chunks of 16 columns of Q in shared memory
	slice     uint32 // columns of O
}

// preferred are the tiles of the coopmat2 kernel. Measured on an H200, f16, length
// 4096, full, 16x16 fragments, subgroups of 32; docs/log.md has the runs. Subgroups
// x fragments x keys / keys of a step, q: chunks of Q staged. TFLOP/s:
//
//	 32: 4x2x64/16 255; 8x2x128/32 253; 4x2x64/32 253; 8x2x64/32 201
//	 64: 4x2x64/16 306 (271 causal); 8x2x64/16 306 (265); 4x2x64/32 303; 16x1x64/32 294; 8x2x64/32 294
//	 96: 8x2x48/16 q2 327; 8x2x32/16 308; 8x2x32/16 q2 292; 12x1x64/16 290; 8x1x64/32 257
//	128: 8x2x32/16 q2 318, q3 315; 8x2x32/32 q3 310; 12x1x64/16 291; 8x1x64/32 273
//	192: 8x1x32/32 261; 8x1x32/16 259; 8x1x32/16 q4 252
//	256: 8x1x16/16 q7 232; 8x1x32/32 q3 172 (spills)
//
// All workgroups of a multiprocessor together have about 48 KiB of shared memory
// there, so that two of four subgroups run side by side only below 24 KiB each.
var preferred = []tileChoice{
	{32, 4, 2, 64, 16, 0, 32},
	{64, 4, 2, 64, 16, 0, 64},
	{96, 8, 2, 48, 16, 2, 96},
	{128, 8, 2, 32, 16, 2, 128},
	{192, 8, 1, 32, 32, 0, 192},
	{256, 8, 1, 16, 16, 7, 256},
	{576, 8, 1, 16, 16, 0, 256},
}

// preferredScratch are those of the coopmat kernel, where P goes through a scratch
// in shared memory: 128 is 196 with 8x1x64/16, 194 with 8x1x64/32, 191 with 8x2x32/16
// q1; 64 is 189 with 8x2x64/16 and with 4x2x64/32, 168 with 8x2x64/32.
var preferredScratch = []tileChoice{
	{32, 4, 2, 64, 16, 0, 32},
	{64, 8, 2, 64, 16, 0, 64},
	{128, 8, 1, 64, 16, 0, 128},
	{192, 8, 1, 32, 32, 0, 192},
	{256, 8, 1, 32, 32, 0, 128},
	{576, 8, 1, 16, 16, 0, 256},
}

// shortCausal is the tile of head dims in (96, 128] for few queries under a causal
// mask: blocks of 256 rows are then mostly diagonal (178 against 160 at 1024; even
// at 2048, 224 both; 253 against 274 at 4096).
var shortCausal = tileChoice{128, 8, 1, 64, 32, 0, 128}

const shortCausalRows = 1024

// untuned is the tile of the ladder's first steps, for every head dim.
var untuned = tileChoice{0, 4, 1, 32, 32, 0, 128}

// choose picks the row of the table for a problem.
func choose(tier Tier, v variant, sq uint32) tileChoice {
	dim := max(v.headDim, v.headDimV)
	table := preferred
	if tier == TierCoopMat {
		table = preferredScratch
	}
	switch {
	case !v.lab.has(stepTiles):
		return untuned
	case tier == TierCoopMat2 && v.causal && sq <= shortCausalRows && dim > 96 && dim <= 128:
		return shortCausal
	}
	return table[slices.IndexFunc(table, func(c tileChoice) bool { return dim <= c.maxDim })]
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
	for rowTiles := best.rowTiles; rowTiles >= 1; rowTiles-- {
		if rowTiles > 1 && sq <= f.m {
			continue
		}
		subgroups := best.subgroups
		for subgroups > 1 && (subgroups*f.subgroup > maxInvocations || subgroups/2*rowTiles*f.m >= sq) {
			subgroups /= 2
		}
		for cols := best.cols; cols >= 8; cols /= 2 {
			t := tile{
				local: subgroups * f.subgroup, blockCols: cols, dvSlice: slice,
				m: f.m, n: f.n, k: f.k, sumN: f.sumN, subgroup: f.subgroup, rowTiles: rowTiles,
				stepCols: uint32(gcd(uint64(best.step), uint64(cols))), qStaged: min(best.staged*16/f.k, ceilDiv(v.headDim, f.k)),
			}
			if !t.computes(v.headDimV) {
				continue
			}
			// A lone subgroup would carry a whole K and V tile in its registers.
			if t.parts(v.headDim) > 16 && cols/2 >= f.m && cols/2%f.n == 0 {
				continue
			}
			list = append(list, t)
			if t.qStaged > 0 {
				t.qStaged = 0
				list = append(list, t)
			}
		}
	}
	return list
}

// parts counts the 16-byte pieces of a K and a V tile that an invocation
// carries while they travel to shared memory.
func (t tile) parts(headDim uint32) uint32 {
	return ceilDiv(t.blockCols*ceilDiv(headDim, t.k)*t.k/8, t.local) + ceilDiv(t.blockCols*ceilDiv(t.dvSlice, t.n)*t.n/8, t.local)
}

func ceilDiv(a, b uint32) uint32 { return (a + b - 1) / b }
