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
	shared    uint64  // of a workgroup, in bytes: of what is tried as the SPIR-V says, else estimated
	registers int     // of an invocation, estimated
	cost      float64 // relative, estimated
	out       string  // why it is not tried; empty while it is
}

// prune judges every tile of the table for a request, the heuristic's first. The
// heuristic's choice stays whatever is estimated of it. At most n are left, and
// half of them of one division into subgroups: estimates are better among tiles
// that are alike, and one error should not fill the list.
//
// The table has thousands of tiles, so that what is cheap comes first: the SPIR-V is
// asked for the shared memory of those only that nothing else takes out.
func prune(caps *vk.Caps, v variant, r request, n int) []option {
	table := tilings(v)
	all := make([]option, len(table))
	for i, t := range table {
		o := option{v: v, heuristic: i == 0}
		o.v.tile = t
		o.registers = t.registers(v)
		o.shared = o.v.sharedEstimate()
		if o.heuristic {
			o.shared, o.out = fits(caps, o.v, r.shape)
		} else {
			o.out = o.hopeless(caps, r.shape)
		}
		if o.out == "" {
			o.cost = o.v.cost(caps, r.shape)
		}
		all[i] = o
	}
	rest := all[1:]
	slices.SortStableFunc(rest, func(a, b option) int {
		return cmp.Or(cmp.Compare(min(len(a.out), 1), min(len(b.out), 1)), cmp.Compare(a.cost, b.cost))
	})
	least, left := all[0].cost, 1
	kin := map[[2]uint32]int{} // how many of each division of a workgroup are left
	for i := range rest {
		o := &rest[i]
		division := o.v.tile.division()
		switch {
		case o.out != "":
		case left >= n:
			o.out = fmt.Sprintf("estimated to be slower than the %d that are tried", n)
		case o.cost > slower*least:
			o.out = fmt.Sprintf("estimated to take %.1f times as long as the best", o.cost/least)
		case kin[division] >= max(n/2, 1):
			o.out = "estimated to be slower than others that divide the workgroup alike"
		default:
			if o.shared, o.out = fits(caps, o.v, r.shape); o.out == "" {
				left++
				kin[division]++
				least = min(least, o.cost)
			}
		}
	}
	return all
}

// hopeless says what speaks against a tile, as far as that is known without asking
// the SPIR-V: nothing that it lets through has to be within the limits.
func (o *option) hopeless(caps *vk.Caps, s Shape) string {
	t := o.v.tile
	if reason := shapeFits(caps, o.v, s); reason != "" {
		return reason
	}
	if o.shared > uint64(caps.Limits.MaxSharedBytes) {
		return fmt.Sprintf("about %d bytes of shared memory, the device has %d", o.shared, caps.Limits.MaxSharedBytes)
	}
	if reason := t.tooLarge(s); reason != "" {
		return reason
	}
	most := mostExcess
	if t.subgroup == 0 {
		most = mostExcessScalar
	}
	if over := t.excess(o.registers); over > most {
		return fmt.Sprintf("about %d registers an invocation, %.2f times what there is", o.registers, over)
	}
	if t.qSmemChunks > 0 {
		held := t
		held.qSmemChunks--
		if held.excess(held.registers(o.v)) <= 1 {
			return fmt.Sprintf("%d chunks of Q in shared memory, while there are registers for one more", t.qSmemChunks)
		}
	}
	return ""
}

// division is how a tile divides its workgroup.
func (t tile) division() [2]uint32 {
	if t.subgroup != 0 {
		return [2]uint32{t.local, t.mFrags}
	}
	return [2]uint32{t.local, t.threadsX}
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
	if t.kvTile > least && t.kvTile/2 >= uint32(s.Sk) {
		return fmt.Sprintf("%d keys a step for %d keys", t.kvTile, s.Sk)
	}
	return ""
}
