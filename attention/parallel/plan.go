package parallel

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"vkattn/attention"
)

// Plan says how the ranks share a problem and why.
type Plan struct {
	Mode   Mode  `json:"mode"`
	Ranks  int   `json:"ranks"`
	Inner  int   `json:"inner"` // ranks that share heads; 1: none do
	Outer  int   `json:"outer"` // groups of such ranks, which share the sequence
	Rows   Split `json:"rows"`  // of Q and O on each rank
	Keys   Split `json:"keys"`  // of K and V
	Zigzag bool  `json:"zigzag"`

	// Schedule is when the blocks of a ring move in the forward pass, and why; auto: there is no ring.
	Schedule       Schedule `json:"schedule,omitzero"`
	ScheduleReason string   `json:"schedule_reason,omitempty"`

	Reason   string      `json:"reason"`
	Rejected []Rejection `json:"rejected,omitempty"`

	Cells    uint64  `json:"cells"`   // most pairs of a row and a key that a rank computes
	Balance  float64 `json:"balance"` // mean number of pairs of the ranks / Cells: 1 if all have the same work
	Forward  Cost    `json:"forward"`
	Backward Cost    `json:"backward"`
}

// Cost is what a call costs the rank for which it costs most. That of Forward is of a call in which no rank
// asks for LSE. With LSE a ring that gathers may take fewer heads at a time, and so more rounds, and the memory
// of a call grows by copies of LSE; a ring's bound on memory stays.
type Cost struct {
	Rounds       int     `json:"rounds"`        // messages that follow one another
	HeadGroups   int     `json:"head_groups"`   // into which a ring divides the heads, one after the other; 1: none
	SentBytes    uint64  `json:"sent_bytes"`    // to other ranks
	LSEBytes     uint64  `json:"lse_bytes"`     // what Forward sends in addition if every rank asks for LSE
	ScratchBytes uint64  `json:"scratch_bytes"` // memory in addition to the tensors and to what a call on one device takes
	Seconds      float64 `json:"seconds"`       // estimate, from Config.Machine
	Exposed      float64 `json:"exposed"`       // of it, in which a rank waits for messages
}

// String says what a rank sends and what memory it takes.
func (c Cost) String() string {
	groups := ""
	if c.HeadGroups > 1 {
		groups = fmt.Sprintf(", one of %d groups of heads at a time", c.HeadGroups)
	}
	return fmt.Sprintf("sends %d bytes in %d rounds and takes %d bytes of memory%s", c.SentBytes, c.Rounds, c.ScratchBytes, groups)
}

// Rejection is a mode that was not chosen.
type Rejection struct {
	Mode   Mode   `json:"mode"`
	Reason string `json:"reason"`
}

// String returns one line: which mode, what it sends, and why not the others.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mode %v over %d ranks", p.Mode, p.Ranks)
	if p.Inner > 1 && p.Outer > 1 {
		fmt.Fprintf(&b, " (%d x %d)", p.Outer, p.Inner)
	}
	fmt.Fprintf(&b, ": %s; forward %v; backward %v; balance %.2f", p.Reason, p.Forward, p.Backward, p.Balance)
	if p.Schedule != ScheduleAuto {
		fmt.Fprintf(&b, "; schedule %v: %s", p.Schedule, p.ScheduleReason)
	}
	for _, r := range p.Rejected {
		fmt.Fprintf(&b, "; not %v: %s", r.Mode, r.Reason)
	}
	return b.String()
}

// planned is a Plan with its layout.
type planned struct {
	Plan
	*layout
	split uint64 // checksum of its rows and keys
}

// makePlan chooses a mode for a problem.
//
// reach is the number of bytes of a tensor that the kernels of every rank reach.
func makePlan(cfg *Config, p Problem, ranks int, reach uint64) (*planned, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	rows, keys := p.extent()
	if p.Rows != nil {
		if err := p.Rows.check("Rows", rows, ranks); err != nil {
			return nil, err
		}
	}
	if p.Keys != nil {
		if err := p.Keys.check("Keys", keys, ranks); err != nil {
			return nil, err
		}
	}
	if n := max(rows, keys); cfg.order() == OrderStriped && n > MaxStriped && (p.Rows == nil || p.Keys == nil) {
		return nil, &ModeError{cfg.Mode, fmt.Sprintf("a striped split of %d rows or keys, at most %d have one", n, MaxStriped)}
	}
	machine := cfg.Machine.resolved(ranks)
	var best *planned
	var rejected []Rejection
	for _, mode := range Modes() {
		if cfg.Mode != ModeAuto && cfg.Mode != mode {
			continue
		}
		inner, reason := cfg.innerOf(&p.Shape, mode, ranks, &machine)
		if reason == "" && mode == Mode2D && cfg.Mode == ModeAuto && (inner == 1 || inner == ranks) {
			continue // one of the other modes
		}
		if reason == "" && cfg.KeyType != attention.KVSame {
			reason = "K and V of a type of their own are those of Decode"
		}
		var x *planned
		if reason == "" {
			x = &planned{layout: newLayout(cfg, p, mode, ranks, inner, reach)}
			reason = x.refusal(cfg.Schedule)
		}
		if reason != "" {
			if cfg.Mode != ModeAuto {
				return nil, &ModeError{mode, reason}
			}
			rejected = append(rejected, Rejection{mode, reason})
			continue
		}
		x.describe(&machine, cfg.Schedule)
		if best == nil {
			best = x
			continue
		}
		loser := x
		if x.better(best) {
			best, loser = x, best
		}
		rejected = append(rejected, Rejection{loser.Mode, loser.estimate()})
	}
	if best == nil {
		return nil, &ModeError{cfg.Mode, rejected[0].Reason}
	}
	best.Reason = "the least estimate, or the least memory within 2 % of it: " + best.estimate()
	if cfg.Mode != ModeAuto {
		best.Reason = "asked for"
	}
	best.Plan.Zigzag, best.Rejected = cfg.order() == OrderZigzag && p.Rows == nil, rejected
	return best, nil
}

// better reports whether x is faster than y by its estimate, or about as fast with less memory. A ring that
// gathers all heads at once is an all-gather: then gradients decide.
func (x *planned) better(y *planned) bool {
	const same = 1.02
	a, b := &x.Forward, &y.Forward
	switch {
	case a.Seconds*same < b.Seconds:
		return true
	case b.Seconds*same < a.Seconds:
		return false
	}
	if a.ScratchBytes != b.ScratchBytes {
		return a.ScratchBytes < b.ScratchBytes
	}
	return x.Backward.Seconds < y.Backward.Seconds
}

func (x *planned) estimate() string {
	return fmt.Sprintf("%.4g ms, %d MiB", 1e3*x.Forward.Seconds, x.Forward.ScratchBytes>>20)
}

// innerOf returns the number of ranks that share heads, or the reason why a mode cannot run.
func (c *Config) innerOf(s *attention.Shape, mode Mode, ranks int, m *Machine) (inner int, reason string) {
	switch mode {
	case ModeUlysses:
		inner = ranks
	case Mode2D:
		inner = c.Inner
		if inner == 0 {
			inner = m.RanksPerHost
		}
		if ranks%inner != 0 {
			return 0, fmt.Sprintf("groups of %d ranks do not divide %d", inner, ranks)
		}
	default:
		return 1, ""
	}
	if why := innerFits(s, inner); why != "" {
		return 0, fmt.Sprintf("%s (%d over %d, %d ranks)", why, s.Hq, s.KVHeads(), inner)
	}
	return inner, ""
}

// describe fills in the Plan of a layout.
func (x *planned) describe(m *Machine, asked Schedule) {
	l := x.layout
	x.Plan = Plan{Mode: l.mode, Ranks: l.ranks, Inner: l.inner, Outer: l.outer, Rows: l.rows, Keys: l.keys}
	total := 0.0
	for g := range l.outer {
		var cells uint64
		for s := range l.outer {
			for _, r := range l.runs(g, s) {
				cells += r.cells()
			}
		}
		if high, low := bits.Mul64(cells, uint64(l.batch())*uint64(l.Hq/l.inner)); high == 0 {
			cells = low
		} else {
			cells = math.MaxUint64
		}
		x.Cells, total = max(x.Cells, cells), total+float64(cells)
	}
	x.Balance = 1
	if x.Cells > 0 {
		x.Balance = total / float64(x.Cells) / float64(l.outer)
	}
	compute := 2 * float64(x.Cells) * float64(l.cfg.HeadDim+l.cfg.ValueDim()) / m.Flops
	x.chooseSchedule(asked, m, compute)
	l = x.layout
	forward, backward := l.volumes()
	x.Forward, x.Backward = forward.cost(l, m, compute), backward.cost(l, m, 2.5*compute)
	for r := range l.ranks {
		x.Forward.ScratchBytes = max(x.Forward.ScratchBytes, l.forwardScratch(r, false))
		x.Backward.ScratchBytes = max(x.Backward.ScratchBytes, l.backwardScratch(r))
	}
}
