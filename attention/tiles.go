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

// preferred are the tiles of cooperative-matrix kernels for head dims up to
// maxDim (the larger of Dqk and Dv). Measured on an H200, f16, length 4096,
// full, 16x16 fragments, subgroups of 32; docs/log.md has the runs. TFLOP/s:
//
//	 32: 4 subgroups x 2 fragments x 64 keys 226; 8x2x64 214; 8x1x64 205; 8x4x32 148
//	 64: 8x2x64 287 (229 causal); 4x2x64 268 (244 causal); 4x2x32 264; 16x1x64 255; 8x1x128 251; 8x1x64 239
//	 96: 8x2x32 275; 8x1x64 267; 8x1x80 248; 8x1x48 231; 8x2x64 218 (spills)
//	128: 8x1x64 273; 8x1x80 269; 8x1x48 256; 8x1x32 238; 4x1x64 202; 12x1x64 198 (spills)
//	192: 8x1x32 248; 8x1x48 238; 8x1x16 205
//	256: 8x1x32 in slices of 128 columns of O 172, though S is computed twice; 8x1x16 whole 140 (spills)
//
// Two workgroups of four subgroups beat one of eight under a causal mask, where
// the subgroups of one have unequal work and wait for each other.
var preferred = []tileChoice{
	{32, 4, 2, 64, 32},
	{64, 8, 2, 64, 64},
	{96, 8, 2, 32, 96},
	{128, 8, 1, 64, 128},
	{192, 8, 1, 32, 192},
	{256, 8, 1, 32, 128},
	{576, 8, 1, 16, 256},
}

// causalSubgroups is the number of subgroups at head dims up to 64 under a
// causal mask.
const causalSubgroups = 4

type tileChoice struct{ maxDim, subgroups, rowTiles, cols, slice uint32 }

// coopmatTiles lists tiles for cooperative-matrix kernels: the preferred one,
// then the same with ever fewer keys a step, rows and subgroups, for devices
// with less shared memory. Few queries take few subgroups.
func coopmatTiles(f fragment, headDim, headDimV, sq, maxInvocations uint32, causal bool) []tile {
	dim := max(headDim, headDimV)
	best := preferred[slices.IndexFunc(preferred, func(p tileChoice) bool { return dim <= p.maxDim })]
	if causal && dim <= 64 {
		best.subgroups = causalSubgroups
	}
	slice := min(headDimV, best.slice)
	if slice < headDimV {
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
			// Q is staged in the space of a tile: as many keys as a fragment has rows, at least.
			if cols%f.n != 0 || cols < f.m {
				continue
			}
			t := tile{
				local: subgroups * f.subgroup, blockCols: cols, dvSlice: slice,
				m: f.m, n: f.n, k: f.k, sumN: f.sumN, subgroup: f.subgroup, rowTiles: rowTiles,
			}
			// A lone subgroup would carry a whole K and V tile in its registers.
			if t.parts(headDim) > 16 && cols/2 >= f.m && cols/2%f.n == 0 {
				continue
			}
			list = append(list, t)
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
