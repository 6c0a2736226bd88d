package attention

import (
	"cmp"
	"fmt"
	"slices"

	"vkattn/attention/problem"
	"vkattn/vk"
)

// Pruning removes candidates before anything is compiled: those over a limit of the device
// (some drivers answer such a pipeline with a lost device, not an error), those too large
// for the shape, and those that need far too many registers by the estimate. The rest is
// ordered by estimated cost, and the first are compiled.

// option is a tile of the table as a variant, with the estimates of it.
type option struct {
	v         variant
	heuristic bool
	shared    uint64  // bytes per workgroup, from the SPIR-V; 0 if the option was pruned before that was read
	registers int     // per invocation, estimated
	cost      float64 // relative, estimated
	out       string  // why it is pruned; empty if it is not
}

// prune judges every tile of the table for a request, the heuristic's first. It never
// prunes the heuristic's. At most n options remain, and at most half of n with the same
// division into subgroups: estimates compare best among tiles that are alike, and one
// wrong estimate should not fill the list.
//
// The table has thousands of tiles, so prune reads the shared memory from the SPIR-V only
// of those that nothing else prunes.
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
	kin := map[[2]uint32]int{} // how many options of each division remain
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

// hopeless returns a reason to prune a tile that needs no look at the SPIR-V, or "".
func (o *option) hopeless(caps *vk.Caps, t tunable, s problem.Shape) string {
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

// TooLarge returns a reason to prune a tile if half of it or more would be empty and a
// smaller one exists, or "".
func tooLarge(t tile, s problem.Shape) string {
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
