package attention

import (
	"cmp"
	"fmt"
	"slices"

	"vkattn/vk"
)

// Pruning takes candidates out before anything is compiled: those over a limit of
// the device, which some drivers answer with a lost device and not with an error;
// those too large for the shape; and those that the estimate of registers calls
// hopeless. What is left is ordered by an estimate of its cost, and the first are
// compiled.

// option is a candidate on its way: a variant with what is estimated of it.
type option struct {
	v         variant
	heuristic bool
	shared    uint64
	registers int     // of an invocation, estimated
	cost      float64 // relative, estimated
	out       string  // why it is not tried; empty while it is
}

// prune judges every tile of the table for a request, the heuristic's first. The
// heuristic's choice stays whatever is estimated of it. At most n are left.
func prune(caps *vk.Caps, v variant, r request, n int) []option {
	var all []option
	for i, t := range tilings(v) {
		o := option{v: v, heuristic: i == 0}
		o.v.tile = t
		o.registers = t.registers(o.v)
		o.cost = o.v.cost(caps, r.shape)
		o.shared, o.out = fits(caps, o.v, r.shape)
		if o.out == "" && i > 0 {
			o.out = t.tooLarge(r.shape)
		}
		if over := o.excess(); o.out == "" && i > 0 && over > hopeless {
			o.out = fmt.Sprintf("about %d registers an invocation, %.1f times what there is", o.registers, over)
		}
		all = append(all, o)
	}
	rest := all[1:]
	slices.SortStableFunc(rest, func(a, b option) int {
		if d := cmp.Compare(min(len(a.out), 1), min(len(b.out), 1)); d != 0 {
			return d
		}
		return cmp.Compare(a.cost, b.cost)
	})
	least := all[0].cost
	if len(rest) > 0 && rest[0].out == "" {
		least = min(least, rest[0].cost)
	}
	for i := range rest {
		switch o := &rest[i]; {
		case o.out != "":
		case i+1 >= n:
			o.out = fmt.Sprintf("estimated to be slower than the %d that are tried", n)
		case o.cost > slower*least:
			o.out = fmt.Sprintf("estimated to take %.1f times as long as the best", o.cost/least)
		}
	}
	return all
}

// tooLarge refuses tiles of which more than half would be empty while a smaller
// one exists.
func (t tile) tooLarge(s Shape) string {
	least := uint32(16)
	if t.subgroup != 0 {
		least = t.m
	}
	if rows := t.rows(); rows > least && rows/2 >= uint32(s.Sq) {
		return fmt.Sprintf("%d rows for %d queries", rows, s.Sq)
	}
	if t.blockCols > least && t.blockCols/2 >= uint32(s.Sk) {
		return fmt.Sprintf("%d keys a step for %d keys", t.blockCols, s.Sk)
	}
	return ""
}

// What a multiprocessor of the GPUs measured so far has. No API reports it, so it
// serves for ordering and for what is hopeless by a wide margin, never as a limit.
const (
	registersEach = 255   // of an invocation
	registerFile  = 65536 // of a workgroup
	// hopeless: the best tiles known go up to 1.15 times what there is (head dim
	// 64, 8 subgroups of 2 fragments, 64 keys: 288 estimated). From 1.35 times on
	// everything measured was 20 to 60 % slower (docs/log.md, entries 5 and 8).
	hopeless = 1.34
	// slower: an estimate of cost this far from the best is not worth compiling. The
	// estimate was within 1.5 times of the truth among the tiles of the log.
	slower = 2.5
)

// excess is the estimate of registers over what there is.
func (o *option) excess() float64 {
	there := min(registersEach, registerFile/max(o.v.tile.local, 1))
	return float64(o.registers) / float64(max(there, 1))
}

// registers estimates the registers of an invocation while it multiplies. On the
// H200 the estimate is within 12 % of the compiler's count wherever that is below
// 255 (docs/log.md, entries 1 and 5). A field of a tile that changes what lives in
// registers has its place here too.
func (t tile) registers(v variant) int {
	if t.subgroup == 0 {
		y := t.local / t.threadsX
		rows, cols := ceilDiv(t.blockRows, y), ceilDiv(t.blockCols, t.threadsX)
		quads := ceilDiv(t.dvSlice, 4*t.threadsX)
		const operands, addressing = 8, 30
		return int(rows*cols + 4*rows*quads + 8*rows + operands + 3*rows + addressing)
	}
	// 32-bit registers of one fragment in one invocation.
	sums, operand := ceilDiv(t.m*t.n, t.subgroup), ceilDiv(t.m*t.k, 2*t.subgroup)
	keys, outs := t.stepCols/t.n, ceilDiv(t.dvSlice, t.n)
	chunks := ceilDiv(v.headDim, t.k) - t.qStaged
	if t.stepCols < t.blockCols {
		keys *= 2 // the scores of the next step
	}
	statistics := ceilDiv(t.m*t.sumN, t.subgroup) + sums // weight, and the top of a step
	if v.lse {
		statistics += sums
	}
	const inFlight, addressing = 4, 24 // K and V fragments under way; the rest
	return int(t.rowTiles*(outs*sums+keys*sums+chunks*operand+keys*operand+statistics) +
		4*t.parts(v.headDim) + inFlight*operand + addressing)
}

// cost orders candidates; its unit is of no meaning. The terms are what the log
// found to bind: shared memory is read once per fragment of rows, K and V are
// fetched once per workgroup, every step has two barriers, spills are dear, and a
// grid that does not fill the device leaves a part of it idle.
func (v variant) cost(caps *vk.Caps, s Shape) float64 {
	t := v.tile
	o := option{v: v, registers: t.registers(v)}
	var c float64
	if t.subgroup != 0 {
		chunks := ceilDiv(v.headDim, t.k) + ceilDiv(t.dvSlice, t.n)
		c = 16/float64(t.rowTiles*t.m) + 16*float64(t.qStaged)/float64(t.stepCols*chunks)
	} else {
		y := t.local / t.threadsX
		rows, cols := float64(t.blockRows/y), float64(t.blockCols/t.threadsX)
		c = 2/rows + 2/cols + float64(8)/float64(t.chunkD) + 2/float64(t.chunkV)
	}
	c += 16/float64(t.blockCols) + 64/float64(t.rows())
	c += 5 * max(0, o.excess()-1.1)
	// Slices repeat Q K^T.
	c *= float64(v.headDim*v.slices()+v.headDimV) / float64(v.headDim+v.headDimV)
	// Rows beyond the last query are computed too.
	blocks := ceilDiv(uint32(s.Sq), t.rows())
	c *= float64(blocks*t.rows()) / float64(s.Sq)
	if caps.ShaderCores > 0 {
		groups := float64(workgroups(v, s))
		cores := float64(caps.ShaderCores)
		if waves := groups / cores; waves < 8 {
			c *= float64(int((groups+cores-1)/cores)) / waves
		}
	}
	return c
}
