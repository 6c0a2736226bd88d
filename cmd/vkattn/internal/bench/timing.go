package bench

import (
	"context"
	"fmt"
	"time"

	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/internal/operands"
)

// Timing says how often and for how long a row is timed. The zero value has the defaults.
type Timing struct {
	// Repeats is the number of timed runs of a row; 0: DefaultRepeats, or fewer if they
	// are slow. With MinTime and MaxNoise it is the least number.
	Repeats int `json:"repetitions,omitzero"`
	// MinTime is the least total time of the runs of a row.
	MinTime time.Duration `json:"min_time_ns,omitzero"`
	// MaxNoise is the Summary.Noise that ends a row. A row that does not reach it ends
	// after noiseTime of runs. 0: a row ends after Repeats runs.
	MaxNoise float64 `json:"max_noise,omitzero"`
	// Warmup is the least time of runs that are not recorded, before those that are; 0:
	// DefaultWarmup, or less on a CPU; negative: none. On a GPU whose clocks are known it
	// goes on until they are up, up to 3 s.
	Warmup time.Duration `json:"warmup_ns,omitzero"`
	// Timeout bounds the time of a row from its warm-up on. A row that reaches it keeps
	// the runs that it has, at least one. A device that does not finish a run within 3 s more
	// is taken to hang, which ends all rows. 0: no bound.
	Timeout time.Duration `json:"timeout_ns,omitzero"`
	// Delay is a pause before each problem, for a device that gets hot.
	Delay time.Duration `json:"delay_ns,omitzero"`
	// WarmCache gives all runs the same input set, so that caches may hold it.
	WarmCache bool `json:"warm_cache,omitzero"`
	// Once runs each row twice: the run that is verified and one that is timed, without
	// warm-up.
	Once bool `json:"run_once,omitzero"`
}

// repeats is the number of runs of a row.
func (t *Timing) repeats() int {
	switch {
	case t.Once:
		return 1
	case t.Repeats > 0:
		return t.Repeats
	}
	return DefaultRepeats
}

// enough reports whether a row needs no further runs.
func (t *Timing) enough(c *candidate) bool {
	switch {
	case t.Timeout > 0 && c.spent >= t.Timeout, len(c.times) >= MaxRepeats:
		return true
	case t.Once:
		return len(c.times) > 0
	case c.total < t.MinTime:
		return false
	}
	slow := t.Repeats == 0 && len(c.times) >= slowRepeats && c.total >= slowTime
	if !slow && len(c.times) < t.repeats() {
		return false
	}
	if t.MaxNoise == 0 || c.total >= noiseTime {
		return true
	}
	// The noise takes a sort of all runs: it is computed again when there are an eighth more.
	if len(c.times) < c.judged+c.judged/8 {
		return false
	}
	c.judged = len(c.times)
	return Summarize(milliseconds(c.times)).Noise() <= t.MaxNoise
}

// milliseconds are the samples of a row.
func milliseconds(times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, t := range times {
		out[i] = float64(t.Nanoseconds()) / 1e6
	}
	return out
}

// pause waits for the Delay. It returns the error of ctx if that ends first.
func (b *Bench) pause(ctx context.Context) error {
	if b.Delay <= 0 {
		return nil
	}
	select {
	case <-time.After(b.Delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hangTime is how much longer than a row's Timeout one wait for the device may take. A device that takes longer
// is taken to hang.
const hangTime = 3 * time.Second

// Limit bounds one wait for the device; 0: no bound, as without Timeout.
func (t *Timing) Limit() time.Duration {
	if t.Timeout == 0 {
		return 0
	}
	return t.Timeout + hangTime
}

// within calls f, which waits for the device, with the Limit. The error of a device that hangs matches
// vk.ErrTimeout.
func (g *group) within(ctx context.Context, f func(context.Context) error) error {
	return operands.Within(ctx, g.Limit(), fmt.Sprintf(", the timeout of a row and %v", hangTime), f)
}

// runs times n runs of a candidate, within the limit if a device has them.
func (g *group) runs(ctx context.Context, c *candidate, n int) (times []time.Duration, err error) {
	if c.clock == nil {
		return c.run(ctx, n)
	}
	err = g.within(ctx, func(ctx context.Context) error {
		times, err = c.run(ctx, n)
		return err
	})
	return times, err
}

// Times of the warm-up of a row.
const (
	DefaultWarmup = 500 * time.Millisecond // an H200 with idle clocks measured up to 5x slower
	warmupCPU     = 50 * time.Millisecond  // the default on a CPU: caches and page tables, but no idle clocks
	riseTime      = 3 * time.Second        // at most, in addition, until the clock of a GPU is up
)

// warmup is a warm-up that goes on.
type warmup struct {
	start       time.Time
	least, most time.Duration
	rise        *monitor.Rise
}

// warming begins the warm-up of a row.
func (g *group) warming(onCPU bool) *warmup {
	w := &warmup{start: time.Now(), least: g.Warmup}
	onCPU = onCPU || g.Device != nil && OnCPU(g.Device)
	switch {
	case g.Once || w.least < 0:
		w.least = 0
	case w.least == 0 && onCPU:
		w.least = warmupCPU
	case w.least == 0:
		w.least = DefaultWarmup
	}
	if g.Timeout > 0 {
		w.least = min(w.least, g.Timeout)
	}
	w.most = w.least
	if w.least == 0 || onCPU {
		return w
	}
	w.most += riseTime
	if g.Timeout > 0 {
		w.most = max(w.least, min(w.most, g.Timeout/2)) // the other half is for the timed runs
	}
	w.rise = g.Monitor.Follow()
	return w
}

// on reports whether the warm-up needs another run.
func (w *warmup) on() bool {
	spent := time.Since(w.start)
	return spent < w.least || spent < w.most && !w.rise.Up()
}
