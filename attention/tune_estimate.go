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

// excess is an estimate of registers over what there is. Workgroups of more
// invocations have fewer for each; there the compiler does without the loads it
// hoists otherwise: 16x1x64/32 at head dim 64 and 12x1x64/16 at 128 run with 128 and
// 168 registers and hardly a spill where 148 and 202 are estimated.
func (t tile) excess(registers int) float64 {
	const hoisted = 30
	there := min(registersEach, registerFile/max(t.local, 1)&^7)
	if t.subgroup != 0 && there < registersEach {
		registers -= hoisted
	}
	return float64(registers) / float64(max(there, 1))
}

// registers estimates the registers of an invocation while it multiplies. On the
// H200 the estimate is within 15 % of the compiler's count, 3 % on the average,
// wherever that is less than there are. A field of a tile that changes what lives in registers has its
// place here too.
func (t tile) registers(v variant) int {
	if t.subgroup == 0 {
		y := t.local / t.threadsX
		rows, cols := ceilDiv(t.blockRows, y), ceilDiv(t.kvTile, t.threadsX)
		quads := ceilDiv(t.dvSlice, 4*t.threadsX)
		const operands, addressing = 8, 30
		return int(rows*cols + 4*rows*quads + 8*rows + operands + 3*rows + addressing)
	}
	// 32-bit registers of one fragment in one invocation.
	sums, operand := ceilDiv(t.m*t.n, t.subgroup), ceilDiv(t.m*t.k, 2*t.subgroup)
	keys, outs, chunks := t.kvStep/t.n, ceilDiv(t.dvSlice, t.n), t.chunks(v.headDim)
	scores := keys * sums
	if t.kvStep < t.kvTile {
		// Those of the next step, too, while the present ones turn into P and are half as large then.
		scores += keys * (sums + operand) / 2
	}
	statistics := ceilDiv(t.m*t.sumN, t.subgroup) + 2 // sums of weights; shifts, of which a fragment has two
	if v.lse {
		statistics += sums
	}
	if !v.reduces() {
		statistics -= min(statistics, sums) // weights leave through scratch, a fragment at a time
	}
	held := chunks - min(t.qSmemChunks, chunks)
	const vecRegs, rest = 4 + 1, 56 // 16 bytes on their way and where to; K and V fragments under way, addresses, loops
	return int(t.mFrags*(outs*sums+held*operand+scores+statistics) + vecRegs*t.vecsInFlight(v.headDim) + rest)
}

// chunks is the number of fragments along the head dim.
func (t tile) chunks(headDim uint32) uint32 { return ceilDiv(headDim, t.k) }

// sharedLayout is the shared memory of forward_coopmat.comp in units of 16 bytes.
type sharedLayout struct {
	tile   uint32 // of K and V
	passes uint32 // in which Q goes through the space of the tile
	all    uint32
}

func (v variant) sharedLayout() sharedLayout {
	t := v.tile
	chunks := t.chunks(v.headDim)
	held := chunks - min(t.qSmemChunks, chunks)
	kRow, vRow := chunks*t.k/8, ceilDiv(t.dvSlice, t.n)*t.n/8
	heldRow := held * t.k / 8
	l := sharedLayout{tile: t.kvTile * ((kRow | 1) + (vRow | 1))}
	if held > 0 {
		l.passes = ceilDiv(t.rows(), max(l.tile/(heldRow|1)/t.m*t.m, 1))
	}
	l.all = l.tile + t.rows()/4 // and the shifts
	if t.qSmemChunks > 0 {
		l.all += t.rows() * ((kRow - heldRow) | 1)
	}
	scratch := t.local / t.subgroup * t.m * (t.n/4 | 1)
	if v.reduces() {
		l.all = max(l.all, scratch)
	} else {
		l.all += scratch
	}
	l.all++ // a flag
	return l
}

// sharedEstimate is the shared memory of a workgroup in bytes.
func (v variant) sharedEstimate() uint64 {
	if v.tile.subgroup == 0 {
		n, _ := v.sharedBytes() // a small table
		return n
	}
	return 16 * uint64(v.sharedLayout().all)
}

// reduces reports whether the kernel reduces and converts fragments in registers:
// otherwise they go through shared memory.
func (v variant) reduces() bool { return strings.HasPrefix(v.module, TierCoopMat2.String()) }

// cost orders candidates; its unit is of no meaning. It is the time that all row
// blocks take, over what the end of the grid leaves idle.
func (v variant) cost(caps *vk.Caps, s Shape) float64 {
	keys, longest := v.kvLoopKeys(s)
	var block float64 // time of a row block
	if v.tile.subgroup != 0 {
		block = v.coopmatBlock(caps, s, keys)
	} else {
		block = v.scalarBlock(keys)
	}
	groups := float64(workgroups(v, s))
	return groups * block * idle(caps, groups, longest/keys, v.causal)
}

// walk is how many keys row blocks walk over, in whole tiles: on the average, and
// the longest one. Where there are more keys than queries a causal mask is taken to
// end at the last key.
func (v variant) kvLoopKeys(s Shape) (mean, longest float64) {
	cols, rows := float64(v.tile.kvTile), float64(v.tile.rows())
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

// coopmatBlock is the time of a row block of forward_coopmat.comp, in clocks.
//
// A multiprocessor multiplies, reads shared memory, and takes exponentials; 8
// subgroups overlap these in part. The two barriers of a tile stop all of that,
// unless another workgroup runs meanwhile: all of a multiprocessor together have as
// much shared memory as one may ask for (two of 24 KiB run side by side where 48 is
// the limit, two of 26 do not).
func (v variant) coopmatBlock(caps *vk.Caps, s Shape, keys float64) float64 {
	t, l := v.tile, v.sharedLayout()
	f := func(n uint32) float64 { return float64(n) }
	subgroups, steps := f(t.local/t.subgroup), f(t.kvTile/t.kvStep)
	chunks, outs := f(t.chunks(v.headDim)), f(ceilDiv(t.dvSlice, t.n))
	fragments := f(t.rows()/t.m) * f(t.kvTile/t.n) // of scores

	products := fragments * f(2*t.m*t.n) * (f(t.k)*(chunks+outs) + f(t.sumN)) / flopsEach
	operand := f(2*t.k*t.n) / sharedEach
	shared := subgroups*operand*(f(t.kvTile/t.n)*(chunks+outs)+steps*f(t.mFrags*t.qSmemChunks)) + 16*f(l.tile)/sharedEach
	weights := fragments * f(t.m*t.n) / expEach
	first := (products/2 + 1.5*weights) / steps
	fetched := f(t.kvTile) * (chunks + outs) * f(2*t.k) / fetchEach

	registers := t.registers(v)
	there := min((uint32(registers)+7)&^7, registersEach+1, max(registerFile/t.local&^7, 8))
	// Counts were up to an eighth below the estimate.
	resident := f(min(caps.Limits.MaxSharedBytes/(16*l.all), registerFile*9/8/(there*t.local)))
	if caps.ShaderCores > 0 { // a small grid leaves them alone
		resident = min(resident, math.Ceil(float64(workgroups(v, s))/f(caps.ShaderCores)))
	}
	resident = max(resident, 1)
	alone := 1 / resident
	lull := max(1, math.Pow(busySubgroup/(subgroups*resident), 0.7))

	ofWeights := ofWeights
	if v.dtype == BF16 {
		ofWeights += ofRounding
	}
	tile := lull*(ofProducts*products+ofShared*shared+ofWeights*weights) + alone*(2*drain+refill+ofFirst*first)
	if !v.reduces() {
		tile += scratchOfP * fragments
	}
	tile = max(tile, fetched)
	tile *= 1 + max(0, t.excess(registers)-1)/2
	return keys/f(t.kvTile)*tile + alone*(starting+passOfQ*f(l.passes))
}

// scalarBlock is that of a row block of forward_scalar.comp, in no unit: reads of
// shared memory for each multiplication, barriers, and fetches for each row.
func (v variant) scalarBlock(keys float64) float64 {
	t := v.tile
	f := func(n uint32) float64 { return float64(n) }
	c := 2/f(t.blockRows/(t.local/t.threadsX)) + 2/f(t.kvTile/t.threadsX) + 8/f(t.chunkD) + 2/f(t.chunkV)
	c += 16/f(t.kvTile) + 64/f(t.blockRows) + 5*max(0, t.excess(t.registers(v))-1.1)
	return c * f(t.blockRows) * keys * f(v.headDim+t.dvSlice)
}
