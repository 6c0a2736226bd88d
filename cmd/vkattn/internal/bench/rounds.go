package bench

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/internal/operands"
	"vkattn/internal/turns"
	"vkattn/shaders"
	"vkattn/vk"
)

// How a row is timed.
const (
	DefaultRepeats = 30
	MaxRepeats     = 1_000_000 // of one row, whose samples are all stored
	slowRepeats    = 3         // enough once they have taken slowTime
	slowTime       = 2 * time.Second
	noiseTime      = time.Minute           // of runs of a row that is too noisy for MaxNoise
	batchTime      = 20 * time.Millisecond // length of one submission
	batchMost      = 64                    // runs of one submission
	leastTurns     = 5                     // a row is timed in at least 5 turns, spread over the group's time
)

// candidate is a row that is timed.
type candidate struct {
	row *Row
	// run times n runs, each on the next input set.
	run   func(ctx context.Context, n int) ([]time.Duration, error)
	clock *deviceClock // of run; nil: one that does not change
	onCPU bool         // does not use the GPU
	times []time.Duration
	total time.Duration
	each  time.Duration // the last run
	gpu   monitor.Record
	spent time.Duration // with warm-up and the work around the runs

	judged int // number of runs whose noise was computed last
}

// time measures the candidates in rounds, each in another order.
func (g *group) time(ctx context.Context, ready []*candidate) error {
	open := ready[:0:0]
	for _, c := range ready {
		g.say(g.problem, c.row.Who(), "warming up")
		if err := g.warm(ctx, c); err == nil {
			open = append(open, c)
		} else if err = g.drop(ctx, c, ready, err); err != nil {
			return err
		}
	}
	for round := 0; len(open) > 0; round++ {
		ended := make([]bool, len(open))
		for _, i := range turns.Order(len(open), round) {
			c := open[i]
			g.say(g.problem, c.row.Who(), fmt.Sprintf("run %d", len(c.times)+1))
			if err := g.batch(ctx, c); err != nil {
				ended[i] = true
				if err = g.drop(ctx, c, ready, err); err != nil {
					return err
				}
			} else if g.enough(c) {
				ended[i] = true
				g.finish(c)
			}
		}
		still := open[:0:0]
		for i, c := range open {
			if !ended[i] {
				still = append(still, c)
			}
		}
		open = still
	}
	return nil
}

// drop ends a row that failed while it was timed. If the device is lost or ctx is done it
// ends all rows without a speed and returns the error.
func (g *group) drop(ctx context.Context, c *candidate, all []*candidate, err error) error {
	g.stop(c.row, err)
	if ctx.Err() == nil && g.lost == nil {
		g.done()
		return nil
	}
	for _, c := range all {
		if c.row.Status == "" {
			g.stop(c.row, err)
		}
	}
	return err
}

func (g *group) warm(ctx context.Context, c *candidate) error {
	w := g.warming(c.onCPU)
	defer func() { c.spent += time.Since(w.start) }()
	for w.on() {
		times, err := g.runs(ctx, c, c.batchSize())
		if err != nil {
			return err
		}
		c.each = times[len(times)-1]
	}
	return nil
}

func (g *group) batch(ctx context.Context, c *candidate) error {
	n := c.batchSize()
	if left := g.repeats() - len(c.times); left > 0 {
		n = min(n, left, (g.repeats()-1)/leastTurns+1)
	}
	// The first run of a turn is slower: the caches hold the code and the address
	// translations of another kernel. It is dropped unless runs are so long that it
	// does not matter.
	lead := 0
	if c.each < batchTime/4 && !g.Once {
		lead = 1
	}
	start := time.Now()
	times, err := g.watched(ctx, c, lead+n)
	c.spent += time.Since(start)
	if err != nil {
		return err
	}
	times = times[lead:]
	if c.clock != nil && c.row.Timer != c.clock.timer() { // times of two clocks are no sample
		c.row.Timer = c.clock.timer()
		c.times, c.total, c.judged = nil, 0, 0
	}
	for _, t := range times {
		if t <= 0 {
			return fmt.Errorf("a run took %v by its clock (%s)", t, cmp.Or(c.row.Timer, "unknown"))
		}
		c.total += t
	}
	c.each = times[len(times)-1]
	c.times = append(c.times, times...)
	return nil
}

// batchSize is the number of runs that fill one submission.
func (c *candidate) batchSize() int {
	if c.each <= 0 {
		return 1
	}
	return int(min(max(batchTime/c.each, 1), batchMost))
}

func (g *group) finish(c *candidate) {
	r := c.row
	r.Samples = milliseconds(c.times)
	g.clocks(c)
	if c.clock != nil && c.clock.broken && r.Timer == c.clock.timer() {
		r.Unsteady = strings.TrimPrefix(r.Unsteady+"; "+brokenClock, "; ")
	}
	r.Ms = Summarize(r.Samples)
	speed, peak, mean := g.tflops(r, r.Ms.Median), g.tflops(r, r.Ms.Min), g.tflops(r, r.Ms.Mean)
	if r.Ablation == "" {
		r.Status, r.TFLOPs, r.PeakTFLOPs, r.MeanTFLOPs = OK, speed, peak, mean
		if r.Ms.Median > 0 {
			r.TBs = float64(r.KVBytes+r.Bytes) / r.Ms.Median / 1e9
		}
	} else {
		r.Status, r.AblationTFLOPs = Ablated, speed
	}
	g.done()
}

// tflops is the speed of a row at a time in milliseconds, 0 for a row that computes nothing.
func (g *group) tflops(r *Row, ms float64) float64 {
	switch {
	case r.Ceiling != "" && ms > 0:
		return r.Flops / ms / 1e9
	case r.Ceiling != "", IsCopy(r.Name()):
		return 0
	}
	return TFLOPs(g.problem, ms)
}

// deviceClock times work on a stream by a clock of the device: by timestamps, a pair around each run. It times
// by the wall clock, one submission a run, on a queue without timestamps, and from the first time on that they
// give none: some drivers' clocks stand still, run backwards or are 0 at times.
type deviceClock struct {
	stream *vk.Stream
	order  *attention.Stream // in place of stream on a CUDA device without Vulkan
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
	return l.orWall(ctx, n, run, func() ([]time.Duration, error) {
		return operands.Timed(ctx, l.stream, n, func() error { return run(l.stream) })
	})
}

// orWall times n runs by a clock of the device or, if its times are none, by the wall clock.
func (l *deviceClock) orWall(ctx context.Context, n int, run func(*vk.Stream) error,
	byDevice func() ([]time.Duration, error)) ([]time.Duration, error) {
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

func (l *deviceClock) wait(ctx context.Context) error {
	if l.order != nil {
		return l.order.Wait(ctx)
	}
	return l.stream.Wait(ctx)
}

func (l *deviceClock) timedByWall(ctx context.Context, n int, run func(*vk.Stream) error) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		elapsed := Stopwatch()
		if err := run(l.stream); err != nil {
			return nil, err
		}
		if err := l.wait(ctx); err != nil {
			return nil, err
		}
		out[i] = elapsed()
	}
	return out, nil
}

// Environment describes the build of the program and the machine, without the device.
type Environment struct {
	Commit   string `json:"commit,omitempty"`  // of the source
	Modified bool   `json:"modified,omitzero"` // the source had changes that are not in Commit
	Go       string `json:"go,omitempty"`      // version of Go
	OS       string `json:"os,omitempty"`      // distribution, kernel and architecture
	CPUModel string `json:"cpu_model,omitempty"`
}

// watched times runs of a candidate while the clocks are recorded.
func (g *group) watched(ctx context.Context, c *candidate, n int) ([]time.Duration, error) {
	if !c.onCPU {
		g.Monitor.Begin(&c.gpu, c.row.Who())
		defer g.Monitor.End()
	}
	return g.runs(ctx, c, n)
}

// clocks fills in the clocks of a timed row.
func (g *group) clocks(c *candidate) {
	if g.Monitor == nil || c.onCPU {
		return
	}
	r, gpu := c.row, c.gpu
	r.GPU, r.Unsteady = &gpu, gpu.Unsteady()
	r.Clock = &Clock{SMMHz: gpu.After.SMMHz, MemoryMHz: gpu.After.MemoryMHz, PowerWatts: gpu.After.PowerWatts, Celsius: gpu.After.Celsius}
}

// modules returns the SHA-256 of the SPIR-V of each kernel by the name of its module. The
// kernels of tier cuda have none. Drivers on the CPU run modules in their rolled form.
func modules(dev *vk.Device, kernels ...string) map[string]string {
	if dev == nil {
		return nil
	}
	out := map[string]string{}
	for _, kernel := range kernels {
		m, err := shaders.Get(kernel)
		if err != nil {
			continue
		}
		if dev.Info().Type == vk.DeviceCPU {
			m = m.Rolled()
		}
		out[kernel] = hex.EncodeToString(m.Hash[:])
	}
	return out
}
