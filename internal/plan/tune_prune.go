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
	V Variant
	Judgement
}

// Judgement is what pruning finds about an option.
type Judgement struct {
	Heuristic bool    // the tile is that of a plan without tuning
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
		o := Option{v, Judgement{Heuristic: i == 0}}
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
	least := all[0].cost
	kin := map[[2]uint32]int{} // how many options of each division remain
	prune(all, n, func(o *Option) *Judgement { return &o.Judgement }, func(o *Option) (shared uint64, reason string) {
		division := o.V.Tile.(tunable).division()
		switch {
		case o.cost > slower*least:
			return 0, fmt.Sprintf("estimated to take %.1f times as long as the best", o.cost/least)
		case kin[division] >= max(n/2, 1):
			return 0, "estimated to be slower than others that divide the workgroup alike"
		}
		if shared, reason = Fits(caps, o.V, r.Shape); reason == "" {
			kin[division]++
			least = min(least, o.cost)
		}
		return shared, reason
	})
	return all
}

// prune orders the options behind the heuristic's by their cost and prunes those that do not fit, and of the others all
// but the first n.
func prune[O any](all []O, n int, of func(*O) *Judgement, fits func(*O) (shared uint64, reason string)) {
	rest := all[1:]
	slices.SortStableFunc(rest, func(a, b O) int {
		x, y := of(&a), of(&b)
		return cmp.Or(cmp.Compare(min(len(x.Out), 1), min(len(y.Out), 1)), cmp.Compare(x.cost, y.cost))
	})
	left := 1
	for i := range rest {
		switch o := of(&rest[i]); {
		case o.Out != "":
		case left >= n:
			o.Out = fmt.Sprintf("estimated to be slower than the %d that are tried", n)
		default:
			if o.Shared, o.Out = fits(&rest[i]); o.Out == "" {
				left++
			}
		}
	}
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
