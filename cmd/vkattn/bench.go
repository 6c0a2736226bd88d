package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/sweep"
	"vkattn/vk"
)

// benchOptions are the flags of `vkattn bench` as they were typed.
type benchOptions struct {
	batch, heads, headsKV, seqLen, seqLenK, headDim, headDimV string
	causal, dtype, tier                                       string
	device, format                                            string
	repeats                                                   int
	minTime                                                   time.Duration
	seed                                                      uint64
}

func (a *app) benchCommand() *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench",
		Short: "time attention over a sweep of problems, each verified first",
		Long: `Times attention. Each row is compared with the float64 reference first (sampled
rows of every head where the problem is large); a wrong result is printed as
FAIL and has no speed. Then it is timed by the device's own clock, after a warm-up
of the same work, on inputs too large for its caches. Several tiers of one
problem take turns.

A list is comma separated numbers and ranges: 1024-16384*2 doubles, 64-256+64
adds. Rows are the cross product of all lists. Without lists a sweep
that suits the device is run.

Exit codes: 0 done, 1 a wrong result, 2 bad flags, 3 nothing here supports any
row, 4 device failure.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.seed = uint64(rand.Uint32())
			}
			if o.repeats < 0 || c.Flags().Changed("repetitions") && o.repeats == 0 {
				return badInputf("-r %d: want a positive number", o.repeats)
			}
			if o.minTime < 0 {
				return badInputf("--min-time %v: want a positive duration", o.minTime)
			}
			return a.bench(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.batch, "batch-size", "", "`list` of batch sizes")
	f.StringVar(&o.heads, "nheads", "", "`list` of query head counts")
	f.StringVar(&o.headsKV, "nheads-kv", "", "`list` of key/value head counts (default: as --nheads)")
	f.StringVar(&o.seqLen, "seqlen", "", "`list` of query lengths")
	f.StringVar(&o.seqLenK, "seqlen-k", "", "`list` of key lengths (default: as --seqlen)")
	f.StringVar(&o.headDim, "headdim", "", "`list` of head dims of Q and K")
	f.StringVar(&o.headDimV, "headdim-v", "", "`list` of head dims of V and O (default: as --headdim)")
	f.StringVar(&o.causal, "causal", "", "`list` of masks: none, top-left, bottom-right")
	f.StringVar(&o.dtype, "dtype", "", "`list` of storage types: f16, bf16, f32")
	f.StringVar(&o.device, "device", "auto", "auto, cpu, an index, a UUID or part of a name")
	f.StringVar(&o.tier, "tier", "", "`list` of tiers: auto, cpu, scalar, coopmat, coopmat2 (default auto, and scalar on drivers that run on the CPU)")
	f.IntVarP(&o.repeats, "repetitions", "r", 0, "timed runs of each row (default 30, at least 3 where they take over 2 s)")
	f.DurationVar(&o.minTime, "min-time", 0, "time each row for at least this long, e.g. 2s")
	f.StringVarP(&o.format, "output", "o", "md", "md, csv, json or jsonl")
	f.Uint64Var(&o.seed, "seed", 0, "seed of inputs and sampled rows (default: random, printed)")
	return c
}

// plan reads the lists over the defaults of the device.
func (o *benchOptions) plan(s *bench.Sweep) ([]bench.Problem, error) {
	for _, l := range []struct {
		flag, text string
		to         *[]int
	}{
		{"batch-size", o.batch, &s.Batch}, {"nheads", o.heads, &s.Heads}, {"nheads-kv", o.headsKV, &s.HeadsKV},
		{"seqlen", o.seqLen, &s.SeqLen}, {"seqlen-k", o.seqLenK, &s.SeqLenK},
		{"headdim", o.headDim, &s.HeadDim}, {"headdim-v", o.headDimV, &s.HeadDimV},
	} {
		if l.text == "" {
			continue
		}
		values, err := sweep.Ints(l.text)
		if err != nil {
			return nil, badInputf("--%s: %w", l.flag, err)
		}
		*l.to = values
	}
	var err error
	if o.causal != "" {
		if s.Causal, err = sweep.Words(o.causal, attention.ParseCausal); err != nil {
			return nil, badInputf("--causal: %w", err)
		}
	}
	if o.dtype != "" {
		if s.DType, err = sweep.Words(o.dtype, attention.ParseDType); err != nil {
			return nil, badInputf("--dtype: %w", err)
		}
	}
	problems, err := s.Problems()
	if err != nil {
		return nil, badInput(err)
	}
	return problems, nil
}

func (a *app) bench(ctx context.Context, o *benchOptions) error {
	format, err := bench.ParseFormat(o.format)
	if err != nil {
		return badInputf("-o: %w", err)
	}
	tiers := []attention.Tier{attention.TierAuto}
	if o.tier != "" {
		if tiers, err = sweep.Words(o.tier, attention.ParseTier); err != nil {
			return badInputf("--tier: %w", err)
		}
	}
	if _, err := o.plan(&bench.Sweep{}); err != nil {
		return err // before a device is opened
	}
	dev, err := a.benchDevice(o.device, tiers)
	if err != nil {
		return err
	}
	defer closeDevice(dev)
	if o.tier == "" {
		tiers = bench.DefaultTiers(dev)
	}
	defaults := bench.Defaults(dev)
	problems, err := o.plan(&defaults)
	if err != nil {
		return err
	}
	info := runInfo(dev, o.seed)
	printer := bench.NewPrinter(format, a.stdout, info)
	bar := a.progress(len(problems) * len(tiers))
	clock, stopClock := bench.OpenClock(dev)
	defer stopClock()
	b := &bench.Bench{Clock: clock, Device: dev, Label: deviceLabel(dev), CPU: "cpu", Tiers: tiers, Seed: o.seed,
		Repeats: o.repeats, MinTime: o.minTime, Progress: bar.say, Done: bar.step}
	var all outcome
	for _, p := range problems {
		rows, err := b.Group(ctx, p)
		for _, r := range rows {
			if r.Status == "" {
				continue // interrupted before it had a speed
			}
			all.add(r)
			if err := printer.Row(r); err != nil {
				return err
			}
		}
		if err != nil {
			all.stopped = err
			break
		}
	}
	bar.end()
	if err := printer.Close(info); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "%d rows, seed %d\n", all.rows, o.seed)
	return errors.Join(all.err(), validated(dev))
}

// benchDevice opens the device that the tiers need.
func (a *app) benchDevice(name string, tiers []attention.Tier) (*vk.Device, error) {
	var need attention.Tier
	for i, t := range tiers {
		if i == 0 || need == attention.TierCPU {
			need = t
		}
	}
	if len(tiers) > 1 && need != attention.TierCPU {
		// Rows of a tier that cannot run are printed with the reason.
		need = attention.TierAuto
	}
	return a.openDevice(name, need)
}

// outcome sums up the rows for the exit code.
type outcome struct {
	rows, failed, broken, refused int
	why                           string // of the first row that has no speed
	stopped                       error
}

func (o *outcome) add(r *bench.Row) {
	o.rows++
	switch r.Status {
	case bench.Fail:
		o.failed++
	case bench.Broken:
		o.broken++
	case bench.Unsupported:
		o.refused++
	}
	if o.why == "" {
		o.why = r.Reason
	}
}

func (o *outcome) err() error {
	switch {
	case o.stopped != nil:
		return o.stopped
	case o.failed > 0:
		return fmt.Errorf("%d of %d rows are wrong", o.failed, o.rows)
	case o.broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", o.broken, o.rows, o.why)}
	case o.refused == o.rows && o.rows > 0:
		return unsupportedf("no row is supported: %s", o.why)
	}
	return nil
}

func runInfo(dev *vk.Device, seed uint64) *bench.RunInfo {
	info := &bench.RunInfo{Program: "vkattn", Version: buildVersion(), Started: time.Now().UTC().Truncate(time.Second),
		Seed: seed, CPU: cpuLabel(), Device: bench.Device{Name: "cpu"}}
	if dev != nil {
		d := dev.Info()
		info.Device = bench.Device{Name: d.Name, Type: d.Type.String(), UUID: uuid(d.UUID), Driver: d.DriverName,
			Version: d.DriverInfo, API: vk.Version(d.APIVersion)}
	}
	return info
}

// progress is a bar on a terminal, and nothing anywhere else.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(rows int) *progress {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{progressbar.NewOptions(rows, progressbar.OptionSetWriter(io.Writer(f)),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(16),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetElapsedTime(true))}
}

func (p *progress) say(text string) {
	if p.bar != nil {
		p.bar.Describe(text)
	}
}

func (p *progress) step() {
	if p.bar != nil {
		_ = p.bar.Add(1)
	}
}

func (p *progress) end() {
	if p.bar != nil {
		_ = errors.Join(p.bar.Finish(), p.bar.Clear())
	}
}
