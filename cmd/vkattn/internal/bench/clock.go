package bench

import (
	"context"
	"errors"
	"time"

	"vkattn/vk"
)

// deviceClock times work on a stream by a clock of the device: by timestamps, a pair around each run. It times
// by the wall clock, one submission a run, on a queue without timestamps, and from the first time on that they
// give none: some drivers' clocks stand still, run backwards or are 0 at times.
type deviceClock struct {
	stream *vk.Stream
	stamps bool
	broken bool // the device's clock gave no times
}

// brokenClock is the note of rows that are timed by the wall clock for want of another.
const brokenClock = "timed by the wall clock: the device's timestamps are unusable"

// timer is the name of the clock in rows. Without a deviceClock it is the wall clock.
func (l *deviceClock) timer() string {
	if l != nil && l.stamps {
		return "device"
	}
	return "wall"
}

// timed records n runs on the stream and returns the time of each.
func (l *deviceClock) timed(ctx context.Context, n int, run func(*vk.Stream) error) ([]time.Duration, error) {
	return l.orWall(ctx, n, run, func() ([]time.Duration, error) { return l.timedByStamps(ctx, n, run) })
}

// orWall times n runs by a clock of the device or, if its times are none, by the wall clock.
func (l *deviceClock) orWall(ctx context.Context, n int, run func(*vk.Stream) error, byDevice func() ([]time.Duration, error)) ([]time.Duration, error) {
	if l.stamps {
		start := time.Now()
		times, err := byDevice()
		if err == nil {
			err = checkTimes(times, time.Since(start))
		}
		if !errors.Is(err, vk.ErrTimestamps) {
			return times, err
		}
		l.stamps, l.broken = false, true
	}
	return l.timedByWall(ctx, n, run)
}

// checkTimes returns vk.ErrTimestamps if a run took no time, or all of them longer than the wall clock saw.
func checkTimes(times []time.Duration, wall time.Duration) error {
	var total float64
	for _, t := range times {
		if t <= 0 {
			return vk.ErrTimestamps
		}
		total += float64(t)
	}
	if total > 1.1*float64(wall) { // two clocks may disagree a little
		return vk.ErrTimestamps
	}
	return nil
}

func (l *deviceClock) timedByStamps(ctx context.Context, n int, run func(*vk.Stream) error) ([]time.Duration, error) {
	marks := make([][2]vk.Mark, n)
	for i := range marks {
		if err := firstError(
			l.stream.Barrier,
			func() (err error) { marks[i][0], err = l.stream.Timestamp(); return },
			func() error { return run(l.stream) },
			func() (err error) { marks[i][1], err = l.stream.Timestamp(); return },
		); err != nil {
			return nil, err
		}
	}
	if err := l.stream.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([]time.Duration, n)
	for i, m := range marks {
		var err error
		if out[i], err = l.stream.Elapsed(m[0], m[1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (l *deviceClock) timedByWall(ctx context.Context, n int, run func(*vk.Stream) error) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		start := time.Now()
		if err := run(l.stream); err != nil {
			return nil, err
		}
		if err := l.stream.Wait(ctx); err != nil {
			return nil, err
		}
		out[i] = time.Since(start)
	}
	return out, nil
}
