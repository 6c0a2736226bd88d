package main

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/sweep"
)

// timingFlags are the flags of `vkattn bench` that say how often a row is timed.
type timingFlags struct{ bench.Timing }

func (t *timingFlags) add(f *pflag.FlagSet) {
	f.IntVarP(&t.Repeats, "repetitions", "r", 0, "timed runs of each row (default 30; after 2 s of them, 3 are enough)")
	f.DurationVar(&t.MinTime, "min-time", 0, "time each row for at least this long, e.g. 2s")
	f.Var(percentFlag(&t.MaxNoise), "max-noise", "time each row until the 95 % interval of its median is within this `percentage` of the median, e.g. 0.5%; a row that stays wider ends after a minute of runs")
	f.DurationVar(&t.Warmup, "warmup", bench.DefaultWarmup, "least time of unrecorded runs before the timed runs of each row, 50ms on a CPU unless set; on a GPU they go on for 3s at most until its clock is up; 0: none")
	f.DurationVar(&t.Timeout, "timeout", 0, "end each row after this long, with the runs that it has by then; a device that finishes no run for 3s more hangs: bench prints and saves the finished rows and ends with exit code 4 (default: no limit)")
	f.DurationVar(&t.Delay, "delay", 0, "pause before each problem, for a device that gets hot, e.g. 2s")
	f.BoolVar(&t.WarmCache, "warm-cache", false, "use the same inputs in all runs, so that caches may hold them (default: rotate through inputs larger than the last-level cache)")
	f.BoolVar(&t.Once, "run-once", false, "run each row only twice, once to verify and once to time it, without warm-up: for a profiler")
}

// check completes the flags and refuses values out of range.
func (t *timingFlags) check(f *pflag.FlagSet) error {
	if t.Repeats < 0 || t.Repeats > bench.MaxRepeats || f.Changed("repetitions") && t.Repeats == 0 {
		return badInputf("-r %d: want a positive number up to %d", t.Repeats, bench.MaxRepeats)
	}
	for _, d := range []struct {
		flag string
		time time.Duration
	}{{"min-time", t.MinTime}, {"warmup", t.Warmup}, {"delay", t.Delay}} {
		if d.time < 0 {
			return badInputf("--%s %v: want a duration of 0 or more", d.flag, d.time)
		}
	}
	if t.Timeout < 0 || f.Changed("timeout") && t.Timeout == 0 {
		return badInputf("--timeout %v: want a positive duration", t.Timeout)
	}
	for _, name := range []string{"repetitions", "min-time", "max-noise", "warmup"} {
		if t.Once && f.Changed(name) {
			return badInputf("--run-once and --%s exclude one another", name)
		}
	}
	switch {
	case !f.Changed("warmup"):
		t.Warmup = 0
	case t.Warmup == 0:
		t.Warmup = -1
	}
	return nil
}

// percentFlag is a flag with a share above 0 and below 1 as a percentage.
func percentFlag(to *float64) pflag.Value {
	return parsed[float64]{to: to, parse: sweep.Percentage, kind: "percentage", print: func(share float64) string {
		if share == 0 {
			return ""
		}
		return strconv.FormatFloat(100*share, 'g', 6, 64) + "%"
	}}
}
