package parallel

import (
	"fmt"

	"vkattn/internal/enum"
)

// Schedule says when the blocks of a ring move in the forward pass. The backward pass always overlaps.
//
// The schedules may give different bits, each the same in every run: ScheduleOverlap merges a float32
// state for each block, and ScheduleGather computes a row over the keys of all blocks at once.
type Schedule uint8

// Schedules. The zero value lets the plan choose.
const (
	ScheduleAuto    Schedule = iota
	ScheduleOverlap          // a block travels from rank to rank while the device computes with the one before
	ScheduleGather           // K and V of some key heads are gathered from all ranks while the device is idle, then it computes with them
)

var scheduleNames = []string{"auto", "overlap", "gather"}

// Valid reports whether s is one of the named schedules.
func (s Schedule) Valid() bool { return int(s) < len(scheduleNames) }

// String is "auto", "overlap" or "gather".
func (s Schedule) String() string { return enum.Name("Schedule", scheduleNames, uint8(s)) }

// ParseSchedule reads what String writes, in any case. Another word is an error that lists the
// names and matches [attention.ErrInvalid].
func ParseSchedule(s string) (Schedule, error) {
	return enum.Parse[Schedule]("schedule", scheduleNames, s)
}

// Set makes *Schedule a flag.Value.
func (s *Schedule) Set(text string) error { return enum.Set(s, text, ParseSchedule) }

// MarshalText writes String.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is Set.
func (s *Schedule) UnmarshalText(text []byte) error { return s.Set(string(text)) }

// chooseSchedule sets when blocks move in the forward pass of a ring, as asked or by the estimates.
func (x *planned) chooseSchedule(asked Schedule, m *Machine, compute float64) {
	if !x.rings() {
		return
	}
	gather := *x.layout
	var fits bool
	gather.gathers = true
	gather.forwardHeads, _ = x.mostHeads(x.gatherScratch, x.gatherBinding)
	gather.lseHeads, fits = x.mostHeads(x.gatherLSEScratch, x.gatherBinding)
	fits = fits || x.widest(x.gatherLSEScratch, gather.lseHeads) <= x.widest(x.overlapScratch, x.forwardHeads)
	x.Schedule, x.ScheduleReason = asked, "asked for"
	if asked == ScheduleAuto {
		x.Schedule, x.ScheduleReason = x.fasterSchedule(m, compute, &gather, fits)
	}
	if x.Schedule == ScheduleGather {
		x.layout = &gather
	}
}

// fasterSchedule compares the estimates of both schedules. fits reports whether what is gathered fits in the
// memory of a ring, with LSE too.
func (x *planned) fasterSchedule(m *Machine, compute float64, gather *layout, fits bool) (Schedule, string) {
	switch {
	case x.ranks > m.RanksPerHost:
		return ScheduleOverlap, "the ring crosses hosts"
	case x.gatherRefusal() != "":
		return ScheduleOverlap, "no gather: " + x.gatherRefusal()
	case x.gatherCalls() > memberCalls && x.gatherCalls() > x.outer*x.calls: // short calls compute tiles that are mostly empty
		return ScheduleOverlap, fmt.Sprintf("no gather: its rows in this Split take %d calls of attention, those of overlap %d a step", x.gatherCalls(), x.calls)
	case gather.gatherCopies() > maxCopies:
		return ScheduleOverlap, fmt.Sprintf("no gather: the keys of this Split take %d copies", gather.gatherCopies())
	case !fits:
		return ScheduleOverlap, "K and V of one key head of all ranks need more memory than two blocks, and than overlap"
	}
	cost := func(l *layout) Cost {
		forward, _ := l.volumes()
		return forward.cost(l, m, compute)
	}
	o, g := cost(x.layout), cost(gather)
	reason := fmt.Sprintf("estimates with what is exposed of it: gather %.4g ms (%.3g in %d exchanges), overlap %.4g ms (%.3g in %d messages)",
		1e3*g.Seconds, 1e3*g.Exposed, g.Rounds, 1e3*o.Seconds, 1e3*o.Exposed, o.Rounds)
	if g.Seconds < o.Seconds {
		return ScheduleGather, reason
	}
	return ScheduleOverlap, reason
}
