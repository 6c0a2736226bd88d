package parallel

import (
	"fmt"

	"vkattn/attention/internal/enum"
)

// Schedule says when the blocks of a ring move in the forward pass. Both schedules merge the same
// states in the same order and give the same bits. The backward pass always overlaps.
type Schedule uint8

// Schedules. The zero value lets the plan choose.
const (
	ScheduleAuto    Schedule = iota
	ScheduleOverlap          // a block travels from rank to rank while the device computes with the one before
	ScheduleAhead            // all blocks of some key heads arrive while the device is idle, then it computes with them
)

var scheduleNames = []string{"auto", "overlap", "ahead"}

// Valid reports whether s is one of the named schedules.
func (s Schedule) Valid() bool { return int(s) < len(scheduleNames) }

// String is "auto", "overlap" or "ahead".
func (s Schedule) String() string { return enum.Name("Schedule", scheduleNames, uint8(s)) }

// ParseSchedule reads what String writes, in any case. Another word is an error that lists the
// names and matches [attention.ErrInvalid].
func ParseSchedule(s string) (Schedule, error) {
	v, err := enum.Parse("schedule", scheduleNames, s)
	return Schedule(v), err
}

// Set makes *Schedule a flag.Value.
func (s *Schedule) Set(text string) error {
	v, err := ParseSchedule(text)
	if err == nil {
		*s = v
	}
	return err
}

// MarshalText writes String.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is Set.
func (s *Schedule) UnmarshalText(text []byte) error { return s.Set(string(text)) }

// arrangement is what a ring's forward pass has in memory at a time.
type arrangement struct {
	heads  int // key heads computed at a time, with their query heads
	states int // steps after the first whose states wait for a merge together
	ahead  int // key heads whose blocks arrive together, a multiple of heads; 0: ScheduleOverlap
}

// exchanges is the number of exchanges of ScheduleAhead for all key heads of a rank.
func (a arrangement) exchanges(kv int) int { return (kv + a.ahead - 1) / a.ahead }

// chooseAhead chooses the arrangement of ScheduleAhead that takes at most that many bytes on every rank.
// Each exchange, and each round of merges of a group of heads, leaves the device idle for some tenths
// of a millisecond: it takes the least number of both. If none fits, it returns the one with the least
// memory.
func (l *layout) chooseAhead(most uint64) (best arrangement, fits bool) {
	_, kv := l.kvHeads(0)
	best = arrangement{heads: 1, states: 1, ahead: 1}
	least := 0
	for n := kv; n > 0; n-- {
		if kv%n != 0 {
			continue
		}
		for e := 1; e <= kv/n; e++ {
			a := arrangement{heads: n, states: l.outer - 1, ahead: (kv/n + e - 1) / e * n}
			for a.states > 1 && l.aheadScratch(&l.widest, a) > most {
				a.states--
			}
			idle := a.exchanges(kv) + kv/n*((l.outer-2)/a.states+1)
			if l.aheadScratch(&l.widest, a) <= most && (!fits || idle < least) {
				best, least, fits = a, idle, true
			}
		}
	}
	return best, fits
}

// chooseSchedule sets when blocks move in the forward pass, as asked or by the estimates.
func (x *planned) chooseSchedule(asked Schedule, m *Machine, compute float64) {
	if !x.rings() {
		return
	}
	x.Schedule, x.ScheduleReason = asked, "asked for"
	if asked == ScheduleAuto {
		x.Schedule, x.ScheduleReason = x.fasterSchedule(m, compute)
	}
	x.forwardRing = x.overlapRing
	if x.Schedule == ScheduleAhead {
		x.forwardRing = x.aheadRing
	}
}

// fasterSchedule compares the estimates of both schedules.
func (x *planned) fasterSchedule(m *Machine, compute float64) (Schedule, string) {
	switch {
	case x.ranks > m.RanksPerHost:
		return ScheduleOverlap, "the ring crosses hosts"
	case !x.aheadFits:
		return ScheduleOverlap, "the blocks of one key head of all ranks need more memory than two blocks"
	}
	cost := func(a arrangement) Cost {
		x.forwardRing = a
		forward, _ := x.volumes()
		return forward.cost(x.layout, m, compute)
	}
	overlap, ahead := cost(x.overlapRing), cost(x.aheadRing)
	reason := fmt.Sprintf("estimates of what is exposed: %.3g ms in %d exchanges ahead, %.3g ms in %d messages that overlap the computation",
		1e3*ahead.Exposed, ahead.Rounds, 1e3*overlap.Exposed, overlap.Rounds)
	if ahead.Exposed < overlap.Exposed {
		return ScheduleAhead, reason
	}
	return ScheduleOverlap, reason
}
