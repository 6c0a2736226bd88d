package bench

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// fakeTime is a clock that the runs of a test advance.
type fakeTime struct {
	at   time.Time
	slow time.Duration // what a run takes in addition to its own time
	runs int
	next func(run int) time.Duration
}

func (f *fakeTime) run(_ context.Context, n int) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = f.next(f.runs)
		f.runs++
		f.at = f.at.Add(out[i] + f.slow)
	}
	return out, nil
}

// timeRow warms and times a row whose run i takes next(i).
func timeRow(t *testing.T, timing Timing, next func(i int) time.Duration) (*Row, *fakeTime) {
	t.Helper()
	f := &fakeTime{next: next}
	g := &group{Bench: &Bench{Timing: timing, now: func() time.Time { return f.at }}, problem: smallProblem(attention.F16)}
	c := &candidate{row: &Row{}, run: f.run}
	require.NoError(t, g.time(context.Background(), []*candidate{c}))
	require.Equal(t, OK, c.row.Status)
	return c.row, f
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
		row, f := timeRow(t, timing, steady(run))
		require.Len(t, row.Samples, 3)
		lead := f.runs - len(row.Samples) - want
		require.GreaterOrEqual(t, lead, 0, "%+v", timing)
		require.LessOrEqual(t, lead, 4, "one dropped run per turn: %+v", timing)
	}
}

func TestRunOnceRunsOnce(t *testing.T) {
	row, f := timeRow(t, Timing{Once: true}, steady(time.Microsecond))
	require.Len(t, row.Samples, 1)
	require.Equal(t, 1, f.runs)
}

func TestARowEndsAtItsTimeout(t *testing.T) {
	row, f := timeRow(t, Timing{Repeats: 1000, Timeout: 3 * time.Second}, steady(100*time.Millisecond))
	require.InDelta(t, 3, f.at.Sub(time.Time{}).Seconds(), 0.2)
	require.InDelta(t, 25, len(row.Samples), 3)
	row, _ = timeRow(t, Timing{Timeout: time.Millisecond}, steady(time.Second))
	require.Len(t, row.Samples, 1, "one run at least")
}

func TestMaxNoiseRunsUntilTheIntervalIsNarrow(t *testing.T) {
	few, _ := timeRow(t, Timing{MaxNoise: 0.05}, jitter(time.Millisecond, 0.01))
	require.Len(t, few.Samples, DefaultRepeats, "it is narrow at once")
	many, _ := timeRow(t, Timing{MaxNoise: 0.05}, jitter(time.Millisecond, 0.2))
	require.Greater(t, len(many.Samples), DefaultRepeats)
	require.LessOrEqual(t, many.Ms.Noise(), 0.05)
	never, _ := timeRow(t, Timing{MaxNoise: 1e-9}, jitter(500*time.Millisecond, 0.3))
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
	var waits []time.Duration
	b := &Bench{CPU: "cpu", Timing: Timing{Delay: time.Hour, Once: true}, Specs: []Spec{{Tier: attention.TierCPU}},
		sleep: func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }}
	for range 2 {
		rows := measured(t, b, smallProblem(attention.F32))
		require.Equal(t, OK, rows[0].Status, rows[0].Reason)
		require.Len(t, rows[0].Samples, 1)
	}
	require.Equal(t, []time.Duration{time.Hour, time.Hour}, waits)
	b.sleep = nil
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := b.Group(ctx, smallProblem(attention.F32))
	require.ErrorIs(t, err, context.Canceled)
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
