package bench

import (
	"time"

	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/vk"
)

// Times of the warm-up of a row.
const (
	DefaultWarmup = 500 * time.Millisecond // an H200 with idle clocks measured up to 5x slower
	warmupCPU     = 50 * time.Millisecond  // the default on a CPU: caches and page tables, but no idle clocks
	riseTime      = 3 * time.Second        // at most, in addition, until the clock of a GPU is up
)

// warmup is a warm-up that goes on.
type warmup struct {
	g           *group
	start       time.Time
	least, most time.Duration
	rise        *monitor.Rise
}

// warming begins the warm-up of a row.
func (g *group) warming(onCPU bool) *warmup {
	w := &warmup{g: g, start: g.clock(), least: g.Warmup}
	onCPU = onCPU || g.Device != nil && g.Device.Info().Type == vk.DeviceCPU
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
	spent := w.g.clock().Sub(w.start)
	return spent < w.least || spent < w.most && !w.rise.Up()
}
