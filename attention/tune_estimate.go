package attention

import (
	"math"
	"strings"

	"vkattn/vk"
)

// What a tile is estimated to take: registers, shared memory and time. The numbers
// are those of the tiles measured on an NVIDIA H200 (docs/log.md; the tests compare
// with testdata/tiles_h200.txt). They order candidates and take hopeless ones out;
// what is within the limits of a device is asked of the device and the SPIR-V.

// What a multiprocessor of the GPUs measured so far has; no API reports it.
const (
	registersEach = 255   // of an invocation
	registerFile  = 65536 // of all invocations
)

// Where estimates end a candidate.
const (
	// mostExcess: what was estimated at 1.15 times the registers there are (head dim
	// 128, 8x2x32/16 q2) was the best of all, spilling 230 bytes an invocation; at
	// 1.16 (head dim 256, 8x1x32/16 q3) it spilled 350 and took 1.4 times as long as
	// the best.
	mostExcess       = 1.155
	mostExcessScalar = 1.34 // nothing was measured to spill
	// slower: an estimate of cost this far from the best is not worth compiling.
	// The estimate is within 1.17 times the truth among tiles measured.
	slower = 1.6
)

// tunable is a tile that tuning varies, with what is estimated of it.
type tunable interface {
	tile
	registers(v *variant) int                                           // of an invocation while it multiplies
	mostExcess() float64                                                // of registers over what there is, from which it is not tried
	leastShared(v *variant) uint32                                      // bytes of shared memory of a workgroup, what pads them left out
	blockTime(v *variant, caps *vk.Caps, s Shape, keys float64) float64 // of a row block; the unit is the family's
	division() [2]uint32                                                // of the workgroup: tiles of one division are alike
}

// excess is an estimate of registers over what there is. Workgroups of more
// invocations have fewer for each; there the compiler does without the loads it
// hoists otherwise: 16x1x64/32 at head dim 64 and 12x1x64/16 at 128 run with 128 and
// 168 registers and hardly a spill where 148 and 202 are estimated.
func excess(t tile, registers int) float64 {
	const hoisted = 30
	there := min(registersEach, registerFile/max(t.invocations(), 1)&^7)
	if t.subgroupSize() != 0 && there < registersEach {
		registers -= hoisted
	}
	return float64(registers) / float64(max(there, 1))
}

func (t scalarTile) mostExcess() float64  { return mostExcessScalar }
func (t coopmatTile) mostExcess() float64 { return mostExcess }

func (t scalarTile) division() [2]uint32  { return [2]uint32{t.Invocations, t.ThreadsX} }
func (t coopmatTile) division() [2]uint32 { return [2]uint32{t.invocations(), t.MFrags} }

func (t scalarTile) registers(*variant) int {
	rows, cols := ceilDiv(t.BlockRows, t.threadsY()), ceilDiv(t.KVTile, t.ThreadsX)
	quads := ceilDiv(t.DvSlice, 4*t.ThreadsX)
	const operands, addressing = 8, 30
	return int(rows*cols + 4*rows*quads + 8*rows + operands + 3*rows + addressing)
}

// registers is within 15 % of the compiler's count on the H200, 3 % on the average, wherever
// that is less than there are. A field of a tile that changes what lives in registers has its
// place here too.
func (t coopmatTile) registers(v *variant) int {
	// 32-bit registers of one fragment in one invocation.
	sums, operand := ceilDiv(t.M*t.N, t.Subgroup), ceilDiv(t.M*t.K, 2*t.Subgroup)
	keys, outs := t.KVStep/t.N, ceilDiv(t.DvSlice, t.N)
	scores := keys * sums
	if t.KVStep < t.KVTile {
		// Those of the next step, too, while the present ones turn into P and are half as large then.
		scores += keys * (sums + operand) / 2
	}
	statistics := ceilDiv(t.M*t.SumN, t.Subgroup) + 2 // row sums; row maxima, of which a fragment has two
	if v.lse {
		statistics += sums
	}
	if !v.reduces() {
		statistics -= min(statistics, sums) // P leaves through scratch, a fragment at a time
	}
	const vector, rest = 4 + 1, 56 // 16 bytes on their way and where to; K and V fragments under way, addresses, loops
	return int(t.MFrags*(outs*sums+t.qRegisterChunks(v.headDim)*operand+scores+statistics) + vector*t.vectors(v.headDim) + rest)
}

// qRegisterChunks is the number of chunks of Q in registers.
func (t coopmatTile) qRegisterChunks(headDim uint32) uint32 { return t.chunks(headDim) - t.QSmemChunks }

func (t scalarTile) leastShared(*variant) uint32 { return 0 }

// leastShared is the KV tile and the chunks of Q in shared memory.
func (t coopmatTile) leastShared(v *variant) uint32 {
	return t.tileBytes(v.headDim) + 2*t.rows()*t.QSmemChunks*t.K
}

// tileBytes is the memory of a K and a V tile.
func (t coopmatTile) tileBytes(headDim uint32) uint32 {
	return 2 * t.KVTile * (t.chunks(headDim)*t.K + ceilDiv(t.DvSlice, t.N)*t.N)
}

// reduces reports whether the kernel reduces and converts fragments in registers:
// otherwise they go through shared memory.
func (v variant) reduces() bool { return strings.HasPrefix(v.module, TierCoopMat2.String()) }

// cost orders candidates; its unit is of no meaning. It is the time that all row
// blocks take, over what the end of the grid leaves idle.
func (v *variant) cost(t tunable, caps *vk.Caps, s Shape) float64 {
	keys, longest := v.walk(s)
	groups := float64(workgroups(*v, s))
	return groups * t.blockTime(v, caps, s, keys) * idle(caps, groups, longest/keys, v.causal)
}

// walk is how many keys row blocks walk over, in whole tiles: on the average, and
// the longest one. Where there are more keys than queries a causal mask is taken to
// end at the last key.
func (v variant) walk(s Shape) (mean, longest float64) {
	cols, rows := float64(v.tile.keys()), float64(v.tile.rows())
	all := math.Ceil(float64(s.Sk)/cols) * cols
	if !v.causal {
		return all, all
	}
	blocks := math.Ceil(float64(s.Sq) / rows)
	const samples = 16
	for i := range samples {
		last := math.Ceil(blocks * float64(i+1) / samples) // of the blocks up to here
		seen := float64(max(s.Sk-s.Sq, 0)) + min(last*rows, float64(s.Sq))
		mean += min(math.Ceil(seen/cols)*cols, all) / samples
	}
	return mean, all
}

// idle is the time a grid takes over that of its work evenly spread. Equal row
// blocks leave what is missing of the last round; under a causal mask a
// multiprocessor ends half a long block late.
func idle(caps *vk.Caps, groups, longest float64, causal bool) float64 {
	if caps.ShaderCores == 0 {
		return 1
	}
	each := groups / float64(caps.ShaderCores)
	if causal {
		return max(each+longest/2, longest) / each
	}
	return math.Ceil(each) / each
}

// The clocks of an H200's multiprocessor. Rates and the drain of a barrier were
// measured on their own; the rest is fitted to the measured tiles that spill little,
// whose time it gives within 13 % up to 12 subgroups (16 are faster by 15 %).
const (
	flopsEach  = 2400 // of fragments, a clock: 630 TFLOP/s are the most measured
	sharedEach = 128  // bytes of shared memory a clock
	fetchEach  = 24   // bytes a clock from the last-level cache
	expEach    = 16   // exponentials a clock

	// Shares of those times that add up; the rest of each hides behind the others.
	ofProducts = 0.70
	ofShared   = 0.55
	ofWeights  = 0.40 // exponentials and all else that is done to a score
	ofRounding = 0.45 // of weights to bfloat16, besides
	ofFirst    = 0.20 // scores of a tile's first step, and exponentials of its last

	scratchOfP   = 40   // a fragment of P through scratch and back
	drain        = 215  // a barrier: until the last subgroup is there
	refill       = 270  // until products flow again after the two of a tile
	starting     = 6000 // a row block: until its first tile is there, and writing O
	passOfQ      = 5000 // Q through the space of the tile, once; less since entry 19 of the log
	busySubgroup = 8    // subgroups that keep a multiprocessor busy
)

// blockTime is in clocks.
//
// A multiprocessor multiplies, reads shared memory, and takes exponentials; 8
// subgroups overlap these in part. The two barriers of a tile stop all of that,
// unless another workgroup runs meanwhile: all of a multiprocessor together have as
// much shared memory as one may ask for (two of 24 KiB are resident where 48 is the
// limit, two of 26 are not).
func (t coopmatTile) blockTime(v *variant, caps *vk.Caps, s Shape, keys float64) float64 {
	f := func(n uint32) float64 { return float64(n) }
	subgroups, steps := f(t.Subgroups), f(t.KVTile/t.KVStep)
	chunks, outs := f(t.chunks(v.headDim)), f(ceilDiv(t.DvSlice, t.N))
	fragments := f(t.rows()/t.M) * f(t.KVTile/t.N) // of scores

	products := fragments * f(2*t.M*t.N) * (f(t.K)*(chunks+outs) + f(t.SumN)) / flopsEach
	operand := f(2*t.K*t.N) / sharedEach
	reads := subgroups*operand*(f(t.KVTile/t.N)*(chunks+outs)+steps*f(t.MFrags*t.QSmemChunks)) + f(t.tileBytes(v.headDim))/sharedEach
	weights := fragments * f(t.M*t.N) / expEach
	first := (products/2 + 1.5*weights) / steps
	fetched := f(t.KVTile) * (chunks + outs) * f(2*t.K) / fetchEach

	// A vector pads each row of K and V; row maxima are float32.
	padded := t.leastShared(v) + 2*16*t.KVTile + 4*t.rows()
	registers := t.registers(v)
	there := min((uint32(registers)+7)&^7, registersEach+1, max(registerFile/t.invocations()&^7, 8))
	// Counts were up to an eighth below the estimate.
	together := f(min(caps.Limits.MaxSharedBytes/padded, registerFile*9/8/(there*t.invocations())))
	if caps.ShaderCores > 0 { // a small grid leaves them alone
		together = min(together, math.Ceil(float64(workgroups(*v, s))/f(caps.ShaderCores)))
	}
	together = max(together, 1)
	alone := 1 / together
	lull := max(1, math.Pow(busySubgroup/(subgroups*together), 0.7))

	ofWeights := ofWeights
	if v.dtype == BF16 {
		ofWeights += ofRounding
	}
	tile := lull*(ofProducts*products+ofShared*reads+ofWeights*weights) + alone*(2*drain+refill+ofFirst*first)
	if !v.reduces() {
		tile += scratchOfP * fragments
	}
	tile = max(tile, fetched)
	tile *= 1 + max(0, excess(t, registers)-1)/2
	// Q goes through the space of the KV tile, in passes.
	passes := ceilDiv(2*t.rows()*t.qRegisterChunks(v.headDim)*t.K, t.tileBytes(v.headDim))
	return keys/f(t.KVTile)*tile + alone*(starting+passOfQ*f(passes))
}

// blockTime counts reads of shared memory for each multiplication, barriers, and loads for
// each row.
func (t scalarTile) blockTime(v *variant, _ *vk.Caps, _ Shape, keys float64) float64 {
	f := func(n uint32) float64 { return float64(n) }
	c := 2/f(t.BlockRows/t.threadsY()) + 2/f(t.KVTile/t.ThreadsX) + 8/f(t.ChunkD) + 2/f(t.ChunkV)
	c += 16/f(t.KVTile) + 64/f(t.BlockRows) + 5*max(0, excess(t, t.registers(v))-1.1)
	return c * f(t.BlockRows) * keys * f(v.headDim+t.DvSlice)
}
