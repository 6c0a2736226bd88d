package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/vk"
)

// tuneFlags are the flags of `vkattn tune`, not parsed yet.
type tuneFlags struct {
	benchFlags
	dryRun, compileOnly, list, clear, check, all bool
	tolerance                                    float64
	budget                                       time.Duration
	candidates                                   int
}

func (a *app) tuneCommand() *cobra.Command {
	var o tuneFlags
	c := &cobra.Command{
		Use:   "tune",
		Short: "find the fastest tile of each problem and store it in the cache",
		Long: `Times candidate tiles of a kernel on each problem and stores the fastest in the
user's cache. run, bench and every program that uses the library with its default
settings read the cache. A result applies to a class of problems: all problems whose
lengths and counts round up to the same powers of two. Tuning a class takes under a
minute; run nothing else on the device meanwhile.

tune prunes candidates before it compiles them if they exceed a limit of the device, are
too large for the problem, or are slow by an estimate. It drops compiled candidates that
spill registers, and candidates whose result differs from the result of the heuristic's
tile. It times the others in rounds and keeps the faster half after each round.

--pass bwd tunes each kernel of the gradients. It is timed in whole backward calls, and
--budget is divided among the kernels. Calls with options use the heuristic's tiles.

--check stores nothing. It prints how much slower the heuristic's tile is than the best
tile, by default for lengths and head dims from which the heuristic was not derived.

Exit codes: 0 done, 1 a result is not stored (the cache cannot be written, or the
budget was too short for a second tile) or, with --check, a heuristic's tile is slower
than --tolerance allows, 2 bad flags, 3 no problem is supported and fits the memory,
4 device failure, or no candidate runs` + signalHelp,
		Example: `  vkattn tune --headdim 128 --seqlen 4096
  vkattn tune --headdim 64,128 --seqlen 4096 --pass fwd,bwd
  vkattn tune --suite forward --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error {
			if f := c.Flags(); f.Changed("budget") && o.budget <= 0 {
				return badInputf("--budget %v: want a positive duration", o.budget)
			} else if f.Changed("candidates") && o.candidates <= 0 {
				return badInputf("--candidates %d: want a positive number", o.candidates)
			}
			return flagtext.Sweep.Error(a.tune(c.Context(), &o))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	o.problemFlags(f)
	f.StringVar(&o.tier, "tier", "auto", "`list` of tiers: "+commas(vulkanTiers))
	o.addAxis(f, "pass", "`list` of what to tune: fwd, bwd (default fwd); bwd: each backward kernel separately: dQ; dK and dV; dQ = dS K")
	o.addAxis(f, "lse", "`list` of false and true: whether to tune the forward pass for calls that return LSE; these have separate classes")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the candidates and why they are pruned; do not compile or time them")
	f.BoolVar(&o.compileOnly, "compile-only", false, "compile the candidates and print the compiler's statistics; do not time them")
	f.BoolVar(&o.check, "check", false, "compare the heuristic's tile with the best one; store nothing")
	f.Float64Var(&o.tolerance, "tolerance", 10, "with --check: by how many percent a heuristic's tile may be slower")
	f.BoolVar(&o.list, "list", false, "print the tiles that are stored for all devices, or for that of --device, and exit; needs no device")
	f.BoolVar(&o.clear, "clear", false, "remove the tiles that are stored for the device and exit")
	f.BoolVar(&o.all, "all", false, "print pruned candidates too")
	f.DurationVar(&o.budget, "budget", 0, "time limit for each problem (default 50s)")
	f.IntVar(&o.candidates, "candidates", 0,
		"compile at most this many tiles for each problem (default 40; 8 on a Vulkan driver that runs on the CPU)")
	f.StringVarP(&o.format, "output", "o", "md", "md or json")
	f.BoolVar(&o.wide, "wide", false, wideUsage)
	c.SetHelpFunc(helpBySection)
	return c
}

// validate parses the flags and returns the errors that need no device to be found.
func (o *tuneFlags) validate() (*benchPlan, error) {
	o.onePass, o.takesTiers, o.takesPasses = true, vulkanTiers, []bench.Pass{bench.PassForward, bench.PassBackward}
	plan, err := o.plan([]bench.Format{"md", "json"})
	if err != nil {
		return nil, err
	}
	if plan.allTiers {
		return nil, badInputf("--tier all: name the tiers to tune: %s", commas(vulkanTiers))
	}
	if len(plan.tiers) == 0 {
		plan.tiers = []attention.Tier{attention.TierAuto}
	}
	if !(o.tolerance >= 0) { // NaN too
		return nil, badInputf("--tolerance %v: want a percentage, 0 or more", o.tolerance)
	}
	modes := 0
	for _, on := range []bool{o.list, o.clear, o.dryRun, o.compileOnly, o.check} {
		if on {
			modes++
		}
	}
	if modes > 1 {
		return nil, badInputf("--list, --clear, --dry-run, --compile-only and --check exclude each other")
	}
	return plan, nil
}

func (a *app) tune(ctx context.Context, o *tuneFlags) error {
	plan, err := o.validate()
	if err != nil {
		return err
	}
	if o.list && (o.device == "" || strings.EqualFold(o.device, "auto")) {
		folder, list, err := attention.ReadTuningCaches()
		if err != nil {
			return err
		}
		return printCaches(a.stdout, o.format, o.wide, folder, list)
	}
	// Tuning needs the compiler's statistics for spills.
	a.stats = true
	dev, err := a.openDevice(o.device, needVulkan, "tune")
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	switch {
	case o.clear:
		path, err := attention.ClearTuningCache(dev)
		if err == nil {
			fmt.Fprintf(a.stderr, "cleared %s\n", path)
		}
		return err
	case o.list:
		cache, err := attention.ReadTuningCache(dev)
		if err != nil {
			return err
		}
		return printCaches(a.stdout, o.format, o.wide, cache.Path, []attention.TuningCache{cache})
	}
	problems, err := a.tuneProblems(o, plan, dev)
	if err != nil {
		return err
	}
	out := &tunePrinter{w: a.stdout, json: o.format == "json", check: o.check, all: o.all, wide: o.wide,
		tolerance: o.tolerance, stores: !o.check && !o.dryRun && !o.compileOnly}
	out.doc.Run = runInfo(attention.On(dev), 0)
	var planned []*tuneRow
	for _, p := range problems {
		for _, tier := range plan.tiers {
			planned = append(planned, newTuneRow(p, attention.TuneReport{Tier: tier}))
		}
	}
	out.plan(planned)
	a.bar.start("row", len(planned))
	defer a.bar.end()
	var stopped error
	for i := 0; i < len(planned) && stopped == nil; i++ {
		var rows []*tuneRow
		rows, stopped = tuneProblem(ctx, dev, planned[i], o, &a.bar)
		a.bar.step()
		for _, row := range rows {
			if err := out.add(row); err != nil {
				return err
			}
		}
	}
	a.bar.end()
	if stopped != nil {
		out.doc.Run.Stopped = stopReason(stopped)
	}
	if err := out.close(); err != nil {
		return err
	}
	return errors.Join(stopped, out.verdict(stopped), validated(dev))
}

// tuneProblems lists the problems that the flags select; without lists, the defaults of
// the device.
func (a *app) tuneProblems(o *tuneFlags, plan *benchPlan, dev *vk.Device) ([]bench.Problem, error) {
	s := bench.Defaults(attention.On(dev))
	if o.check {
		// The heuristic was made from batch x heads 128 and length 4096, at the head
		// dims that its comment names. These differ from all of them.
		s = bench.Lists("batch-size=2 nheads=12 seqlen=1500,5000 headdim=64,80,128,160 causal=none,bottom-right")
		if dev.Info().Type == vk.DeviceCPU {
			s = bench.Lists("batch-size=1 nheads=2 seqlen=100,300 headdim=40 causal=none,bottom-right")
		}
	}
	list, err := plan.problems(s)
	if err != nil {
		return nil, err
	}
	return a.withoutOptions(list, true, notTuned, denseCall)
}

// tuneProblem tunes the problem of a planned row on its tier. It returns one row, or for the
// backward pass a row per kernel. A problem that cannot be tuned is the planned row with the
// reason. The error is a lost device or the context's error.
func tuneProblem(ctx context.Context, dev *vk.Device, planned *tuneRow, o *tuneFlags, bar *progress) (rows []*tuneRow, err error) {
	p, cfg := planned.problem, planned.problem.Config
	cfg.Tier = planned.Report.Tier
	op, err := attention.New(attention.On(dev), cfg)
	var reports []attention.TuneReport
	if err == nil {
		defer func() { _ = op.Close() }()
		reports, err = tunePass(ctx, op, p, attention.TuneOptions{
			LSE: p.LSE, DryRun: o.dryRun, CompileOnly: o.compileOnly, NoStore: o.check, Budget: o.budget, Candidates: o.candidates,
			Progress: func(s attention.TuneProgress) { bar.say(fmt.Sprintf("%v: %s %d/%d", p, s.Stage, s.Done, s.Of)) },
		})
	}
	if err != nil { // of the last report, if there is one
		reports = reports[:max(0, len(reports)-1)]
	}
	for _, r := range reports {
		rows = append(rows, newTuneRow(p, r))
	}
	if err == nil {
		return rows, nil
	}
	status, lost := bench.StatusOf(err)
	if lost || ctx.Err() != nil {
		return rows, err
	}
	planned.Status, planned.Reason = status, flagtext.OneLine(flagtext.Sweep.Text(err))
	return append(rows, planned), nil
}

// tunePass tunes the kernels of a problem's pass. With an error the last report, if there is
// one, is of the kernel that failed.
func tunePass(ctx context.Context, op *attention.Op, p bench.Problem, o attention.TuneOptions) ([]attention.TuneReport, error) {
	if p.Pass == bench.PassBackward {
		return op.TuneBackward(ctx, p.Shape, o)
	}
	r, err := op.Tune(ctx, p.Shape, o)
	return []attention.TuneReport{r}, err
}
