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
	shared    uint64  // of a workgroup, in bytes, as the SPIR-V says; 0 where something else takes it out
	registers int     // of an invocation, estimated
	cost      float64 // relative, estimated
	out       string  // why it is not tried; empty while it is
}

// prune judges every tile of the table for a request, the heuristic's first. The
// heuristic's choice stays whatever is estimated of it. At most n are left, and
// half of them of one division into subgroups: estimates are better among tiles
// that are alike, and one error should not fill the list.
//
// The table has thousands of tiles, so that the SPIR-V is asked for the shared memory of
// those only that nothing else takes out.
func prune(caps *vk.Caps, v variant, r request, n int) []option {
	table := tilings(v)
	all := make([]option, len(table))
	for i, t := range table {
		o := option{v: v, heuristic: i == 0}
		o.v.tile = t
		tt := t.(tunable)
		o.registers = tt.registers(&o.v)
		if o.heuristic {
			o.shared, o.out = fits(caps, o.v, r.shape)
		} else {
			o.out = o.hopeless(caps, tt, r.shape)
		}
		if o.out == "" {
			o.cost = o.v.cost(tt, caps, r.shape)
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
		division := o.v.tile.(tunable).division()
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
// the SPIR-V.
func (o *option) hopeless(caps *vk.Caps, t tunable, s Shape) string {
	if reason := shapeFits(caps, o.v, s); reason != "" {
		return reason
	}
	if n := t.leastShared(&o.v); n > caps.Limits.MaxSharedBytes {
		return fmt.Sprintf("%d bytes of shared memory or more, the device has %d", n, caps.Limits.MaxSharedBytes)
	}
	if reason := tooLarge(t, s); reason != "" {
		return reason
	}
	if over := excess(t, o.registers); over > t.mostExcess() {
		return fmt.Sprintf("about %d registers an invocation, %.2f times what there is", o.registers, over)
	}
	if t, ok := t.(coopmatTile); ok && t.QSmemChunks > 0 {
		fewer := t
		fewer.QSmemChunks--
		if excess(fewer, fewer.registers(&o.v)) <= 1 {
			return fmt.Sprintf("%d chunks of Q in shared memory, while there are registers for one more", t.QSmemChunks)
		}
	}
	return ""
}

// tooLarge refuses tiles of which more than half would be empty while a smaller
// one exists.
func tooLarge(t tile, s Shape) string {
	least := uint32(16)
	if t, ok := t.(coopmatTile); ok {
		least = t.M
	}
	if rows := t.rows(); rows > least && rows/2 >= uint32(s.Sq) {
		return fmt.Sprintf("%d rows for %d queries", rows, s.Sq)
	}
	if keys := t.keys(); keys > least && keys/2 >= uint32(s.Sk) {
		return fmt.Sprintf("a KV tile of %d keys for %d keys", keys, s.Sk)
	}
	return ""
}
