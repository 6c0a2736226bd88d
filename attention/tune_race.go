package attention

import (
	"context"
	"errors"
	"slices"
	"time"

	"vkattn/internal/turns"
	"vkattn/vk"
)

// race times candidates by successive halving. In each round the remaining candidates take
// turns, after the first round in another order each time, so that none gets a warmer or quieter device. The faster half enters the next
// round, with twice the turns. Candidate 0, the heuristic's, always stays, because a
// tuning reports its time over the winner's.
type race struct {
	// run times n runs of candidate i, one after the other.
	run func(ctx context.Context, i, n int) ([]time.Duration, error)
	// over reports that no time is left.
	over func() bool
	say  func(round, left int)
}

// Parameters of a race.
const (
	finalists  = 4                     // most candidates of the last round
	finalTurns = 8                     // fewest turns of each in the last round
	turnTime   = 10 * time.Millisecond // time of one turn if runs are short
	turnRuns   = 16                    // most runs of one turn
	tooSlow    = 2.5                   // a candidate this many times slower than the best in its first turn is out
	margin     = 1.01                  // the heuristic's tile wins unless another is faster by more than this factor
)

// runner is the result of a candidate in the race.
type runner struct {
	median time.Duration // of its last round; 0: never timed
	runs   int
	final  bool
	err    error
}

// hold runs the race among some candidates. It returns the result of each and the winner. An
// error ends the race: see fatal.
func (r *race) hold(ctx context.Context, candidates int) (all []runner, winner int, err error) {
	all = make([]runner, candidates)
	left := make([]int, candidates)
	for i := range left {
		left[i] = i
	}
	for n, round := 2, 1; ; n, round = 2*n, round+1 {
		last := len(left) <= finalists
		if last {
			n = max(n, finalTurns)
		}
		if r.say != nil {
			r.say(round, len(left))
		}
		if err := r.round(ctx, all, left, n, round == 1); err != nil {
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

// round gives each remaining candidate the given number of turns. When no time is left, it
// ends after a turn of every candidate; in the first round it skips the candidates that
// have not had their turn, except the heuristic's.
func (r *race) round(ctx context.Context, all []runner, left []int, n int, first bool) error {
	samples := make(map[int][]time.Duration, len(left))
	var best time.Duration
	for turn := range n {
		order := turns.Order(len(left), turn)
		if first { // the best by estimate begin
			slices.Sort(order)
		}
		for _, at := range order {
			i := left[at]
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

// fatal reports whether an error ends the tuning, or all times of it: the device is lost, closed or
// hangs, its clock is unusable, or the caller canceled. Other errors concern one candidate.
func fatal(ctx context.Context, err error) bool {
	for _, all := range []error{vk.ErrDeviceLost, vk.ErrClosed, vk.ErrTimeout, errNoClock} {
		if errors.Is(err, all) {
			return true
		}
	}
	return ctx.Err() != nil
}

func median(times []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(times))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
