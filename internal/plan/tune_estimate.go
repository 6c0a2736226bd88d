package plan

import (
	"math"
	"strings"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Estimates of the registers, shared memory and time that a tile takes. They are fitted to
// tiles measured on an NVIDIA H200 (docs/log/vulkan.md; the tests compare them with
// testdata/tiles_h200.txt). Estimates order the candidates and prune hopeless ones. They
// do not decide whether a tile is within the limits of a device: the device and the
// SPIR-V tell that exactly.

// Registers of a multiprocessor of the GPUs measured so far. No API reports them.
const (
	registersEach = 255   // per invocation
	registerFile  = 65536 // for all invocations
)

// Bounds of the estimates from which a candidate is pruned.
const (
	// mostExcess is estimated registers over available ones. At 1.15 (head dim 128,
	// 8x2x32/16 q2) a tile was the best of all and spilled 230 bytes per invocation; at
	// 1.16 (head dim 256, 8x1x32/16 q3) one spilled 350 and took 1.4 times as long as the
	// best.
	mostExcess       = 1.155
	mostExcessScalar = 1.34 // no tile was measured to spill
	// slower is the estimated cost over the best one's. Among the measured tiles the
	// estimate is within 1.17 times the true time.
	slower = 1.6
)

// tunable is a tile that tuning varies, with the estimates of it.
type tunable interface {
	tile
	registers(v *Variant) int                                                   // per invocation while it multiplies
	mostExcess() float64                                                        // from this excess of registers on the tile is not tried
	leastShared(v *Variant) uint32                                              // bytes of shared memory per workgroup without padding
	blockTime(v *Variant, caps *vk.Caps, s problem.Shape, keys float64) float64 // time of a row block, in a unit of the family
	division() [2]uint32                                                        // division of the workgroup: tiles with the same one are alike
}

// Tunes reports whether tuning varies the tile of v: the decode kernel has one tile for a call.
func (v *Variant) Tunes() bool {
	_, ok := v.Tile.(tunable)
	return ok
}

// excess returns estimated registers over available ones. Larger workgroups have fewer
// registers per invocation. The compiler then hoists fewer loads: 16x1x64/32 at head dim
// 64 and 12x1x64/16 at 128 run with 128 and 168 registers and hardly spill, although the
// estimate is 148 and 202.
func excess(t tile, registers int) float64 {
	const hoisted = 30
	there := min(registersEach, registerFile/max(t.LocalSize(), 1)&^7)
	if t.SubgroupSize() != 0 && there < registersEach {
		registers -= hoisted
	}
	return float64(registers) / float64(max(there, 1))
}

func (t scalarTile) mostExcess() float64  { return mostExcessScalar }
func (t coopmatTile) mostExcess() float64 { return mostExcess }

func (t scalarTile) division() [2]uint32  { return [2]uint32{t.Invocations, t.ThreadsX} }
func (t coopmatTile) division() [2]uint32 { return [2]uint32{t.LocalSize(), t.MFrags} }

func (t scalarTile) registers(*Variant) int {
	rows, cols := arith.CeilDiv32(t.BlockRows, t.threadsY()), arith.CeilDiv32(t.KVTile, t.ThreadsX)
	quads := arith.CeilDiv32(t.DvSlice, 4*t.ThreadsX)
	const operands, addressing = 8, 30
	return int(rows*cols + 4*rows*quads + 8*rows + operands + 3*rows + addressing)
}

// registers is within 15 % of the compiler's count on the H200, 3 % on average, for tiles
// that do not spill. A new field of the tile that changes what is in registers must be
// added here.
func (t coopmatTile) registers(v *Variant) int {
	// 32-bit registers of one fragment in one invocation.
	sums, operand := arith.CeilDiv32(t.M*t.N, t.Subgroup), arith.CeilDiv32(t.M*t.K, 2*t.Subgroup)
	keys, outs := t.KVStep/t.N, arith.CeilDiv32(t.DvSlice, t.N)
	scores := keys * sums
	if t.KVStep < t.KVTile {
		// The scores of the next step are there too, while the current ones become P, which
		// is half as large.
		scores += keys * (sums + operand) / 2
	}
	statistics := arith.CeilDiv32(t.M*t.SumN, t.Subgroup) + 2 // row sums; row maxima, of which a fragment has two
	if v.lse {
		statistics += sums / max(v.rowRun, 1)
	}
	if !v.reduces() {
		statistics -= min(statistics, sums) // P goes through scratch, one fragment at a time
	}
	const vector, rest = 4 + 1, 56 // a loaded vector of 16 bytes and its address; K and V fragments, addresses, loop counters
	return int(t.MFrags*(outs*sums+t.qRegisterChunks(v.headDim)*operand+scores+statistics) + vector*t.vectors(v.headDim) + rest)
}

// qRegisterChunks returns the number of chunks of Q in registers.
func (t coopmatTile) qRegisterChunks(headDim uint32) uint32 { return t.chunks(headDim) - t.QSmemChunks }

func (t scalarTile) leastShared(*Variant) uint32 { return 0 }

// leastShared returns the bytes of the KV tile and of the chunks of Q in shared memory.
func (t coopmatTile) leastShared(v *Variant) uint32 {
	return t.tileBytes(v.headDim) + 2*t.Rows()*t.QSmemChunks*t.K
}

// tileBytes returns the bytes of a K and a V tile.
func (t coopmatTile) tileBytes(headDim uint32) uint32 {
	return 2 * t.KVTile * (t.chunks(headDim)*t.K + arith.CeilDiv32(t.DvSlice, t.N)*t.N)
}

// reduces reports whether the kernel reduces and converts fragments in registers.
// Otherwise they go through shared memory.
func (v Variant) reduces() bool { return strings.HasPrefix(v.module, problem.TierCoopMat2.String()) }

// cost orders candidates; its unit has no meaning. It is the time of all row blocks times
// idle, the factor for the cores that the end of the grid leaves idle.
func (v *Variant) cost(t tunable, caps *vk.Caps, s problem.Shape) float64 {
	keys, longest := v.walk(s)
	groups := float64(workgroups(*v, s))
	return groups * t.blockTime(v, caps, s, keys) * idle(caps, groups, longest/keys, v.causal)
}

// walk returns how many keys the KV loop of a row block covers, in whole KV tiles: the
// mean and the maximum. If there are more keys than queries, it assumes a causal mask that
// is aligned to the last key.
func (v Variant) walk(s problem.Shape) (mean, longest float64) {
	cols, rows := float64(v.Tile.keys()), float64(v.Tile.Rows())
	all := math.Ceil(float64(s.Sk)/cols) * cols
	if !v.causal {
		return all, all
	}
	blocks := math.Ceil(float64(s.Sq) / rows)
	const samples = 16
	for i := range samples {
		last := math.Ceil(blocks * float64(i+1) / samples) // last of the blocks up to this sample
		seen := float64(max(s.Sk-s.Sq, 0)) + min(last*rows, float64(s.Sq))
		mean += min(math.Ceil(seen/cols)*cols, all) / samples
	}
	return mean, all
}

// idle returns the time of a grid over the time of the same work spread evenly. Without a
// causal mask row blocks are equal, and cores are idle in the last round. With one, a
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

// Clocks of an H200's multiprocessor. The rates and the drain of a barrier were measured
// directly. The rest is fitted to the measured tiles that spill little. It gives their time
// within 13 % up to 12 subgroups; 16 subgroups are 15 % faster than estimated.
const (
	flopsEach  = 2400 // flops of fragments per clock: 630 TFLOP/s is the highest measured rate
	sharedEach = 128  // bytes of shared memory per clock
	fetchEach  = 24   // bytes per clock from the last-level cache
	expEach    = 16   // exponentials per clock

	// The fraction of each time that adds to the total; the rest overlaps with the others.
	ofProducts = 0.70
	ofShared   = 0.55
	ofWeights  = 0.40 // exponentials and all other work on a score
	ofRounding = 0.45 // for bfloat16, added to ofWeights: rounding P
	ofFirst    = 0.20 // scores of a tile's first step, and exponentials of its last

	scratchOfP   = 40   // one fragment of P through scratch and back
	drain        = 215  // one barrier: until the last subgroup arrives
	refill       = 270  // until products flow again after the two barriers of a tile
	starting     = 6000 // of a row block: until its first tile is loaded, and writing O
	passOfQ      = 5000 // one pass of Q through the space of the KV tile; less since docs/log/vulkan.md, 19
	busySubgroup = 8    // subgroups that keep a multiprocessor busy
)

// blockTime returns clocks.
//
// A multiprocessor multiplies, reads shared memory and takes exponentials; 8 subgroups
// overlap these in part. The two barriers of a tile stop all three, unless another
// workgroup is resident. All workgroups of a multiprocessor together have as much shared
// memory as a single one may ask for: two of 24 KiB are resident if the limit is 48 KiB,
// two of 26 are not.
func (t coopmatTile) blockTime(v *Variant, caps *vk.Caps, s problem.Shape, keys float64) float64 {
	f := func(n uint32) float64 { return float64(n) }
	subgroups, steps := f(t.Subgroups), f(t.KVTile/t.KVStep)
	chunks, outs := f(t.chunks(v.headDim)), f(arith.CeilDiv32(t.DvSlice, t.N))
	fragments := f(t.Rows()/t.M) * f(t.KVTile/t.N) // of scores

	products := fragments * f(2*t.M*t.N) * (f(t.K)*(chunks+outs) + f(t.SumN)) / flopsEach
	operand := f(2*t.K*t.N) / sharedEach
	reads := subgroups*operand*(f(t.KVTile/t.N)*(chunks+outs)+steps*f(t.MFrags*t.QSmemChunks)) + f(t.tileBytes(v.headDim))/sharedEach
	weights := fragments * f(t.M*t.N) / expEach
	first := (products/2 + 1.5*weights) / steps
	fetched := f(t.KVTile) * (chunks + outs) * f(2*t.K) / fetchEach

	// A vector pads each row of K and V; row maxima are float32.
	padded := t.leastShared(v) + 2*16*t.KVTile + 4*t.Rows()
	registers := t.registers(v)
	there := min((uint32(registers)+7)&^7, registersEach+1, max(registerFile/t.LocalSize()&^7, 8))
	// The compiler's counts were up to an eighth below the estimate.
	together := f(min(caps.Limits.MaxSharedBytes/padded, registerFile*9/8/(there*t.LocalSize())))
	if caps.ShaderCores > 0 { // a small grid has few workgroups per core
		together = min(together, math.Ceil(float64(workgroups(*v, s))/f(caps.ShaderCores)))
	}
	together = max(together, 1)
	alone := 1 / together
	lull := max(1, math.Pow(busySubgroup/(subgroups*together), 0.7))

	ofWeights := ofWeights
	if v.dtype == problem.BF16 {
		ofWeights += ofRounding
	}
	tile := lull*(ofProducts*products+ofShared*reads+ofWeights*weights) + alone*(2*drain+refill+ofFirst*first)
	if !v.reduces() {
		tile += scratchOfP * fragments
	}
	tile = max(tile, fetched)
	tile *= 1 + max(0, excess(t, registers)-1)/2
	// Q goes through the space of the KV tile, in passes.
	passes := arith.CeilDiv32(2*t.Rows()*t.qRegisterChunks(v.headDim)*t.K, t.tileBytes(v.headDim))
	return keys/f(t.KVTile)*tile + alone*(starting+passOfQ*f(passes))
}

// blockTime counts the reads of shared memory per multiplication, the barriers, and the
// loads per row.
func (t scalarTile) blockTime(v *Variant, _ *vk.Caps, _ problem.Shape, keys float64) float64 {
	f := func(n uint32) float64 { return float64(n) }
	c := 2/f(t.BlockRows/t.threadsY()) + 2/f(t.KVTile/t.ThreadsX) + 8/f(t.ChunkD) + 2/f(t.ChunkV)
	c += 16/f(t.KVTile) + 64/f(t.BlockRows) + 5*max(0, excess(t, t.registers(v))-1.1)
	return c * f(t.BlockRows) * keys * f(v.headDim+t.DvSlice)
}

// SpillSlack is how many bytes per invocation a candidate may spill and still be timed. On
// an H200 the best tiles of head dims 128 and 256 spill 130 to 230 bytes, one within 3 % of
// the best 252, and tiles that spill 300 to 350 bytes took 1.3 times as long.
const SpillSlack = 256
