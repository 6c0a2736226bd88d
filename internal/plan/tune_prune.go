package plan

import (
	"cmp"
	"fmt"
	"slices"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Pruning removes candidates before anything is compiled: those over a limit of the device
// (some drivers answer such a pipeline with a lost device, not an error), those too large
// for the shape, and those that need far too many registers by the estimate. The rest is
// ordered by estimated cost, and the first are compiled.

// Option is a tile of the table as a variant, with the estimates of it.
type Option struct {
	V         Variant
	Heuristic bool
	Shared    uint64  // bytes per workgroup, from the SPIR-V; 0 if the option was pruned before that was read
	Registers int     // per invocation, estimated
	cost      float64 // relative, estimated
	Out       string  // why it is pruned; empty if it is not
}

// TuneCandidates is how many candidates a tuning run compiles.
const TuneCandidates = 40

// Prune judges every tile of the table for a request, the heuristic's first. It never
// prunes the heuristic's. At most n options remain, and at most half of n with the same
// division into subgroups: estimates compare best among tiles that are alike, and one
// wrong estimate should not fill the list.
//
// The table has thousands of tiles, so Prune reads the shared memory from the SPIR-V last,
// for the tiles that are left.
func Prune(caps *vk.Caps, v Variant, r Request, n int) []Option {
	table := Tilings(v)
	all := make([]Option, len(table))
	for i, t := range table {
		o := Option{V: v, Heuristic: i == 0}
		o.V.Tile = t
		tt := t.(tunable)
		o.Registers = tt.registers(&o.V)
		if o.Heuristic {
			o.Shared, o.Out = Fits(caps, o.V, r.Shape)
		} else {
			o.Out = o.hopeless(caps, tt, r.Shape)
		}
		if o.Out == "" {
			o.cost = o.V.cost(tt, caps, r.Shape)
		}
		all[i] = o
	}
	rest := all[1:]
	slices.SortStableFunc(rest, func(a, b Option) int {
		return cmp.Or(cmp.Compare(min(len(a.Out), 1), min(len(b.Out), 1)), cmp.Compare(a.cost, b.cost))
	})
	least, left := all[0].cost, 1
	kin := map[[2]uint32]int{} // how many options of each division remain
	for i := range rest {
		o := &rest[i]
		division := o.V.Tile.(tunable).division()
		switch {
		case o.Out != "":
		case left >= n:
			o.Out = fmt.Sprintf("estimated to be slower than the %d that are tried", n)
		case o.cost > slower*least:
			o.Out = fmt.Sprintf("estimated to take %.1f times as long as the best", o.cost/least)
		case kin[division] >= max(n/2, 1):
			o.Out = "estimated to be slower than others that divide the workgroup alike"
		default:
			if o.Shared, o.Out = Fits(caps, o.V, r.Shape); o.Out == "" {
				left++
				kin[division]++
				least = min(least, o.cost)
			}
		}
	}
	return all
}

// hopeless returns a reason to prune a tile that needs no look at the SPIR-V, or "".
func (o *Option) hopeless(caps *vk.Caps, t tunable, s problem.Shape) string {
	if reason := shapeFits(caps, o.V, s); reason != "" {
		return reason
	}
	if n := t.leastShared(&o.V); n > caps.Limits.MaxSharedBytes {
		return fmt.Sprintf("%d bytes of shared memory or more, the device has %d", n, caps.Limits.MaxSharedBytes)
	}
	if reason := tooLarge(t, s); reason != "" {
		return reason
	}
	if over := excess(t, o.Registers); over > t.mostExcess() {
		return fmt.Sprintf("about %d registers an invocation, %.2f times what there is", o.Registers, over)
	}
	if t, ok := t.(coopmatTile); ok && t.QSmemChunks > 0 {
		fewer := t
		fewer.QSmemChunks--
		if excess(fewer, fewer.registers(&o.V)) <= 1 {
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
	if rows := t.Rows(); rows > least && rows/2 >= uint32(s.Sq) {
		return fmt.Sprintf("%d rows for %d queries", rows, s.Sq)
	}
	if keys := t.keys(); keys > least && keys/2 >= uint32(s.Sk) {
		return fmt.Sprintf("a KV tile of %d keys for %d keys", keys, s.Sk)
	}
	return ""
}
