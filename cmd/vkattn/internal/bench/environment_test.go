package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/monitor"
)

// cappedGPU is at its power limit.
type cappedGPU struct{}

func (cappedGPU) Read() monitor.Reading {
	return monitor.Reading{SMMHz: 1500, MemoryMHz: 3201, PowerWatts: 699, LimitWatts: 700, Celsius: 60, Throttle: monitor.PowerCap}
}

func (cappedGPU) Close() {}

func TestThrottledRowsAreMarked(t *testing.T) {
	b := &Bench{Timing: Timing{Repeats: 2}, Monitor: monitor.Start(cappedGPU{}, nil, time.Hour)}
	defer b.Monitor.Close()
	timed := func(onCPU bool) *Row {
		g := &group{Bench: b}
		c := &candidate{row: &Row{}, onCPU: onCPU, run: func(_ context.Context, n int) ([]time.Duration, error) {
			times := make([]time.Duration, n)
			for i := range times {
				times[i] = time.Millisecond
			}
			return times, nil
		}}
		require.NoError(t, g.batch(t.Context(), c))
		g.finish(c)
		return c.row
	}
	row := timed(false)
	require.Equal(t, "power cap in 100 % of the readings", row.Unsteady)
	require.Equal(t, &Clock{SMMHz: 1500, MemoryMHz: 3201, PowerWatts: 699, Celsius: 60}, row.Clock)
	require.Equal(t, 1, row.GPU.During.Readings)
	row = timed(true)
	require.Empty(t, row.Unsteady)
	require.Nil(t, row.GPU, "the row does not use the GPU")
}

// risingGPU idles until its clock rises.
type risingGPU struct{ up atomic.Bool }

func (g *risingGPU) Read() monitor.Reading {
	if g.up.Load() {
		return monitor.Reading{SMMHz: 1980, MaxSMMHz: 1980, MemoryMHz: 3201}
	}
	return monitor.Reading{SMMHz: 345, MaxSMMHz: 1980, MemoryMHz: 3201, Throttle: monitor.Idle}
}

func (*risingGPU) Close() {}

// The GPU is read on synctest's clock.
func TestTheWarmupEndsWhenTheClockIsUp(t *testing.T) {
	const run = 10 * time.Millisecond
	warm := func(t *testing.T, timing Timing, rises time.Duration, onCPU bool) (spent time.Duration, row *Row) {
		gpu, runs := &risingGPU{}, &fakeRuns{next: steady(run)}
		b := &Bench{Timing: timing, Monitor: monitor.Start(gpu, nil, time.Millisecond)}
		defer b.Monitor.Close()
		start := time.Now()
		c := &candidate{row: &Row{}, onCPU: onCPU}
		c.run = func(ctx context.Context, n int) ([]time.Duration, error) {
			if time.Since(start) >= rises {
				gpu.up.Store(true)
			}
			return runs.run(ctx, n)
		}
		g := &group{Bench: b}
		require.NoError(t, g.warm(t.Context(), c))
		spent = time.Since(start)
		require.Equal(t, spent, c.spent)
		require.NoError(t, g.batch(t.Context(), c))
		g.finish(c)
		return spent, c.row
	}
	for name, c := range map[string]struct {
		timing Timing
		rises  time.Duration
		onCPU  bool
		want   time.Duration
		idle   bool
	}{
		"up before the warm-up ends": {Timing{}, 0, false, DefaultWarmup, false},
		"rises after a second":       {Timing{Warmup: 300 * time.Millisecond}, time.Second, false, time.Second, false},
		"never rises":                {Timing{}, time.Hour, false, DefaultWarmup + riseTime, true},
		"a timeout leaves half":      {Timing{Timeout: 2 * time.Second}, time.Hour, false, time.Second, true},
		"no warm-up":                 {Timing{Warmup: -1}, time.Hour, false, 0, true},
		"the row runs on the CPU":    {Timing{}, time.Hour, true, warmupCPU, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			spent, row := warm(t, c.timing, c.rises, c.onCPU)
			require.InDelta(t, c.want.Seconds(), spent.Seconds(), 0.05, name)
			require.Equal(t, c.idle, row.Unsteady != "", "%s: %s", name, row.Unsteady)
		})
	}
}
