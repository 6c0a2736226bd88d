package bench

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/internal/turns"
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
	defer func() { c.spent += g.clock().Sub(w.start) }()
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
	start := g.clock()
	times, err := g.watched(ctx, c, lead+n)
	c.spent += g.clock().Sub(start)
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
