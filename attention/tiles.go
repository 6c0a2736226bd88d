package attention

// Tile choice: pure functions from the problem and the device's numbers to the
// candidates, best first. The first one within the device's limits is used.

// fragment is a cooperative-matrix shape and the subgroup that holds it.
type fragment struct {
	m, n, k  uint32
	subgroup uint32
}

// registerBudget is how many 32-bit registers an invocation may hold by
// registers' count before a tile is thought to spill. 255 is the hardware's
// limit on NVIDIA; the count takes no notice of addresses, nor of what the
// compiler need not keep at once. 240 at head dim 64 (256x64) and 192 at 128
// (128x64) did not spill on an H200, 288 (256x32 at 128) did.
const registerBudget = 270

// registers estimates what an invocation holds through the walk over the keys:
// O, Q, the scores and their rounded copy, the row statistics, and the part of
// the next K and V tiles.
func (t tile) registers(qkChunks, outTiles uint32) uint32 {
	acc := t.m * t.n / t.subgroup
	operand := t.m * t.k / 2 / t.subgroup
	keys := t.blockCols / t.n
	perRowTile := outTiles*acc + qkChunks*operand + keys*(acc+operand) + 2*acc
	return t.rowTiles*perRowTile + 4*t.parts(qkChunks, outTiles)
}

// parts counts the 16-byte pieces of a K and a V tile that an invocation carries.
func (t tile) parts(qkChunks, outTiles uint32) uint32 {
	return ceilDiv(t.blockCols*qkChunks*t.k/8, t.local) + ceilDiv(t.blockCols*outTiles*t.n/8, t.local)
}

// coopmatTiles lists tiles for cooperative-matrix kernels. A workgroup has up
// to eight subgroups, fewer when the queries are few. Two row tiles a subgroup
// halve the shared-memory reads per multiplication and come first where
// registers allow; then more keys a step, which share the two barriers.
func coopmatTiles(f fragment, headDim, headDimV, sq, maxInvocations uint32) []tile {
	slice := headDimV
	if slice > MaxHeadDim {
		slice = MaxHeadDim // S is computed again for each slice
	}
	qkChunks, outTiles := ceilDiv(headDim, f.k), ceilDiv(slice, f.n)
	var fit, rest []tile
	for _, rowTiles := range []uint32{2, 1} {
		if rowTiles > 1 && sq <= f.m {
			continue
		}
		subgroups := uint32(8)
		for subgroups > 1 && (subgroups*f.subgroup > maxInvocations || (subgroups/2)*rowTiles*f.m >= sq) {
			subgroups /= 2
		}
		for _, cols := range []uint32{64, 48, 32, 16, 8} {
			if cols%f.n != 0 || cols < f.m {
				continue
			}
			t := tile{
				local: subgroups * f.subgroup, blockCols: cols, dvSlice: slice,
				m: f.m, n: f.n, k: f.k, subgroup: f.subgroup, rowTiles: rowTiles,
			}
			// A lone subgroup would carry a whole K and V tile in its registers.
			if t.registers(qkChunks, outTiles) <= registerBudget && t.parts(qkChunks, outTiles) <= 16 {
				fit = append(fit, t)
			} else {
				rest = append(rest, t)
			}
		}
	}
	// What is over the budget still computes the right thing: least registers first.
	for i := len(rest) - 1; i >= 0; i-- {
		fit = append(fit, rest[i])
	}
	return fit
}

func ceilDiv(a, b uint32) uint32 { return (a + b - 1) / b }
