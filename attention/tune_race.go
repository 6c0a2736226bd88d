package attention

import (
	"context"
	"errors"
	"slices"
	"time"

	"vkattn/vk"
)

// race times candidates by successive halving: in every round those that are left
// take turns, so that none gets a warmer or quieter device; the faster half goes
// on, with twice the turns. Candidate 0, the heuristic's, goes on in any case: its
// distance from the winner is what a tuning reports.
type race struct {
	// run times n runs of candidate i, one after the other.
	run func(ctx context.Context, i, n int) ([]time.Duration, error)
	// over reports that no more time is left.
	over func() bool
	say  func(round, left int)
}

// How a race is run.
const (
	finalists  = 4                     // of the last round, at most
	finalTurns = 8                     // of each in the last round
	turnTime   = 10 * time.Millisecond // of one turn, when runs are short
	turnRuns   = 16                    // at most, of one turn
	tooSlow    = 2.5                   // times the best in a first turn: out at once
	margin     = 1.01                  // the heuristic's tile stays unless beaten by more
)

// runner is a candidate's part in the race.
type runner struct {
	median time.Duration // of the last round it took part in; 0: never timed
	runs   int
	final  bool
	err    error
}

// hold runs the race among n candidates and returns how each did and who won. The
// error ends everything: the context's, or that of a device that cannot go on.
func (r *race) hold(ctx context.Context, n int) (all []runner, winner int, err error) {
	all = make([]runner, n)
	left := make([]int, n)
	for i := range left {
		left[i] = i
	}
	for turns, round := 2, 1; ; turns, round = 2*turns, round+1 {
		last := len(left) <= finalists
		if last {
			turns = max(turns, finalTurns)
		}
		if r.say != nil {
			r.say(round, len(left))
		}
		if err := r.round(ctx, all, left, turns, round == 1); err != nil {
			return all, 0, err
		}
		left = slices.DeleteFunc(left, func(i int) bool { return all[i].err != nil || all[i].median == 0 })
		if len(left) == 0 {
			return all, 0, all[0].err
		}
		slices.SortStableFunc(left, func(a, b int) int { return int(all[a].median - all[b].median) })
		if last || r.over() {
			break
		}
		heuristic := slices.Contains(left, 0)
		left = left[:max((len(left)+1)/2, min(len(left), 2))]
		if heuristic && !slices.Contains(left, 0) {
			left = append(left, 0)
		}
	}
	for _, i := range left {
		all[i].final = true
	}
	winner = left[0]
	if m := all[0].median; slices.Contains(left, 0) && float64(m) <= margin*float64(all[winner].median) {
		winner = 0
	}
	return all, winner, nil
}

// round gives everyone left that many turns. Out of time, it ends after whole turns
// of all; in the first round, after the candidate whose turn it is.
func (r *race) round(ctx context.Context, all []runner, left []int, turns int, first bool) error {
	samples := make(map[int][]time.Duration, len(left))
	var best time.Duration
	for turn := range turns {
		for _, i := range left {
			c := &all[i]
			slow := first && best > 0 && float64(c.median) > tooSlow*float64(best)
			if c.err != nil || slow || first && r.over() && i != 0 {
				continue
			}
			runs := 1
			if c.median > 0 {
				runs = int(min(max(turnTime/c.median, 1), turnRuns))
			}
			times, err := r.run(ctx, i, runs)
			if err != nil {
				if fatal(ctx, err) {
					return err
				}
				c.err = err
				continue
			}
			if first && turn == 0 {
				c.median = median(times)
			}
			samples[i] = append(samples[i], times...)
			c.runs += len(times)
			if m := median(times); best == 0 || m < best {
				best = m
			}
		}
		if r.over() {
			break
		}
	}
	for i, times := range samples {
		all[i].median = median(times)
	}
	return nil
}

// fatal reports whether an error is not of one candidate but of the device or of
// whoever asked.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, vk.ErrClosed)
}

func median(times []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(times))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
