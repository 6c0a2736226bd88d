package bench

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// fakeRuns are runs that take the time of a bubble.
type fakeRuns struct {
	runs int
	next func(run int) time.Duration
}

func (f *fakeRuns) run(_ context.Context, n int) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = f.next(f.runs)
		f.runs++
		time.Sleep(out[i])
	}
	return out, nil
}

// timeRow warms and times a row whose run i takes next(i). It returns how many there were and what they took.
func timeRow(t *testing.T, timing Timing, next func(i int) time.Duration) (row *Row, runs int, spent time.Duration) {
	t.Helper()
	row = &Row{}
	synctest.Test(t, func(t *testing.T) {
		f, start := &fakeRuns{next: next}, time.Now()
		g := &group{Bench: &Bench{Timing: timing}, problem: smallProblem(attention.F16)}
		require.NoError(t, g.time(context.Background(), []*candidate{{row: row, run: f.run}}))
		runs, spent = f.runs, time.Since(start)
	})
	require.Equal(t, OK, row.Status)
	return row, runs, spent
}

func steady(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// jitter alternates around d by a share of it.
func jitter(d time.Duration, share float64) func(int) time.Duration {
	return func(i int) time.Duration {
		return time.Duration(float64(d) * (1 + share*math.Sin(float64(i)*1.7)))
	}
}

func TestWarmupTakesItsTime(t *testing.T) {
	const run = 10 * time.Millisecond
	for want, timing := range map[int]Timing{50: {Repeats: 3}, 200: {Repeats: 3, Warmup: 2 * time.Second}, 0: {Repeats: 3, Warmup: -1}} {
		row, runs, _ := timeRow(t, timing, steady(run))
		require.Len(t, row.Samples, 3)
		lead := runs - len(row.Samples) - want
		require.GreaterOrEqual(t, lead, 0, "%+v", timing)
		require.LessOrEqual(t, lead, 4, "one dropped run per turn: %+v", timing)
	}
}

func TestRunOnceRunsOnce(t *testing.T) {
	row, runs, _ := timeRow(t, Timing{Once: true}, steady(time.Microsecond))
	require.Len(t, row.Samples, 1)
	require.Equal(t, 1, runs)
}

func TestARowEndsAtItsTimeout(t *testing.T) {
	row, _, spent := timeRow(t, Timing{Repeats: 1000, Timeout: 3 * time.Second}, steady(100*time.Millisecond))
	require.InDelta(t, 3, spent.Seconds(), 0.2)
	require.InDelta(t, 25, len(row.Samples), 3)
	row, _, _ = timeRow(t, Timing{Timeout: time.Millisecond}, steady(time.Second))
	require.Len(t, row.Samples, 1, "one run at least")
}

func TestMaxNoiseRunsUntilTheIntervalIsNarrow(t *testing.T) {
	few, _, _ := timeRow(t, Timing{MaxNoise: 0.05}, jitter(time.Millisecond, 0.01))
	require.Len(t, few.Samples, DefaultRepeats, "it is narrow at once")
	many, _, _ := timeRow(t, Timing{MaxNoise: 0.05}, jitter(time.Millisecond, 0.2))
	require.Greater(t, len(many.Samples), DefaultRepeats)
	require.LessOrEqual(t, many.Ms.Noise(), 0.05)
	never, _, _ := timeRow(t, Timing{MaxNoise: 1e-9}, jitter(500*time.Millisecond, 0.3))
	require.InDelta(t, noiseTime.Seconds(), never.Ms.Mean*float64(len(never.Samples))/1e3, 1, "a noisy row ends too")
}

// The noise of a row is computed in a time proportional to its runs, not to their square: a row of a
// million runs would take longer to judge than to time, whatever its timeout.
func TestMaxNoiseIsSeldomTested(t *testing.T) {
	timing, c := Timing{MaxNoise: 1e-9}, &candidate{}
	sorted := 0
	for len(c.times) < 100_000 {
		for range 64 {
			c.times = append(c.times, jitter(time.Microsecond, 0.3)(len(c.times)))
		}
		before := c.judged
		require.False(t, timing.enough(c))
		if c.judged != before {
			sorted += c.judged
		}
	}
	require.Less(t, sorted, 12*len(c.times))
}

func TestDelayIsBeforeEachProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Bench{CPU: "cpu", Timing: Timing{Delay: time.Hour, Once: true}, Specs: []Spec{{Tier: attention.TierCPU}}}
		for n := range 2 {
			start := time.Now()
			measured(t, b, smallProblem(attention.F32)) // whose runs take no time in the bubble
			require.Equal(t, time.Hour, time.Since(start).Truncate(time.Hour), "problem %d", n)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := b.Group(ctx, smallProblem(attention.F32))
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestAWarmCacheHasOneInputSet(t *testing.T) {
	for warm, more := range map[bool]bool{false: true, true: false} {
		b := &Bench{CPU: "cpu", Timing: Timing{WarmCache: warm, Once: true}, Specs: []Spec{{Tier: attention.TierCPU}}, Baselines: []Baseline{BaselineCopy}}
		p := smallProblem(attention.F32)
		rows := measured(t, b, p)
		require.Equal(t, more, rows[0].Sets > 1)
		require.Equal(t, OK, rows[1].Status, rows[1].Reason)
	}
}
