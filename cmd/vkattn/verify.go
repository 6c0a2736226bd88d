package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/outfile"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/cudapath"
	"vkattn/vk"
)

// verifyFlags are the flags of `vkattn verify` as they were typed.
type verifyFlags struct {
	benchFlags
	only  string
	touch func(who string, p *cases.Problem, after [][]byte)
}

// conformance is the suite of verify that is no suite of bench.
const conformance = "conformance"

func (a *app) verifyCommand() *cobra.Command {
	o := verifyFlags{touch: a.touch}
	c := &cobra.Command{
		Use:   "verify",
		Short: "have every implementation compute the same problems and compare the results, whole",
		Long: `Has every tier of the device, and every family of CUDA kernels where there are
any (vkattn info lists both), compute the same random problems and compares all of
O and LSE: with the CUDA validation kernel, with one another, and on as many rows
as the CPU can do with the float64 reference. Without CUDA the float64 reference
is the reference, and what lies beyond its rows is held to the agreement of the
implementations.

The rules are those of bench: errors are measured by what plain attention in the
storage type is off by (go doc vkattn/cmd/vkattn/internal/verify).

Problems are named as in bench. --suite conformance runs the table of the tests:
every head dim, mask, layout and kind of data, with nothing but outputs written
and masked keys that change no bit.

A problem that is too large for the memory of the machine or the device is printed
as OOM, with needed and available bytes, and the others run.

` + rowsHelp + `
Files of --save are written as those of bench (vkattn bench --help).

Exit codes: 0 all agree, 1 a wrong result, 2 bad flags, 3 nothing here supports any
problem or all are too large for the memory, 4 device failure` + signalHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.seed = uint64(rand.Uint32()) + 1
			}
			return flagtext.Sweep.Error(a.verify(c.Context(), &o))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	o.problemFlags(f)
	f.StringVar(&o.suite, "suite", "", suitesUsage()+", "+conformance)
	f.StringVar(&o.only, "case", "", "with --suite conformance: `pattern` that the names of cases match")
	f.StringVar(&o.tier, "tier", "", "`list` of tiers: cpu, scalar, coopmat, coopmat2, cuda, or all that the device has (default)")
	f.StringVar(&o.kernels, "cuda-kernel", "", "`list` of families of tier cuda: "+strings.Join(attention.CUDAKernels(), ", ")+" (default: all)")
	f.IntVar(&o.repeats, "repeat", 1, "run each `n` times: every run has to give the same bits")
	f.StringVarP(&o.format, "output", "o", "md", "md, json or jsonl")
	f.StringArrayVar(&o.save, "save", nil, "`file` to write the rows to as well, in the format its name ends in (repeatable)")
	f.Uint64Var(&o.seed, "seed", 0, "seed of inputs and sampled rows (default: random, printed)")
	return c
}

func (a *app) verify(ctx context.Context, o *verifyFlags) error {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	dev, err := a.benchDevice(o.device, plan.tiers)
	if err != nil {
		return err
	}
	defer closeDevice(dev)
	problems, err := plan.problems(dev, o.seed)
	if err != nil {
		return err
	}
	tiers := plan.tiers
	if len(tiers) == 0 {
		tiers = availableTiers(dev)
	}
	here := runsHere(dev)
	if len(plan.tiers) > 0 {
		here = nil // what was asked for by name has a row that says why not
	}
	v := &verify.Verifier{Device: dev, Label: deviceLabel(dev), List: verify.Implementations(tiers, plan.kernels),
		Repeat: o.repeats, Conformance: plan.table, Here: here, Touch: o.touch}
	if verify.HasCUDA(dev) {
		v.Reference = &verify.Validation
	}
	info := runInfo(dev, o.seed)
	info.Suite = o.suite
	var set outfile.Set
	defer a.flushed(&set)()
	out := []verify.Printer{verify.NewPrinter(plan.format, a.stdout, info, plan.table)}
	for _, s := range plan.saved {
		w, err := set.Add(s.path)
		if err != nil {
			return badInputf("--save %s: %w", s.path, err)
		}
		out = append(out, verify.NewPrinter(s.format, w, info, plan.table))
	}
	bar := a.progress(len(problems))
	v.Progress = bar.say
	var all verify.Outcome
	stopped, err := verifyAll(ctx, v, problems, out, &all, bar.step)
	bar.end()
	if err != nil {
		return err
	}
	if stopped != nil {
		info.Stopped = stopReason(stopped)
	}
	var printing []error
	for _, p := range out {
		printing = append(printing, p.Close())
	}
	if err := errors.Join(printing...); err != nil {
		return err
	}
	if err := commitRows(ctx, &set, all.Rows); err != nil {
		return err
	}
	if ctx.Err() == nil { // else somebody may still use them
		if err := v.Close(); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "%d problems, %d rows, %sseed %d\n", all.Problems, all.Rows, oomCount(all.TooLarge), o.seed)
	if stopped != nil {
		return stopped
	}
	return errors.Join(verifyOutcome(&all), validated(dev))
}

// runsHere is whether an implementation runs a storage type on a device.
func runsHere(dev *vk.Device) func(verify.Implementation, attention.DType) bool {
	status := map[cases.Target]bool{}
	for _, s := range attention.TierReport(dev) {
		status[cases.On(s.Tier, s.DType)] = s.Available
	}
	return func(i verify.Implementation, t attention.DType) bool {
		if i.Tier == attention.TierCUDA {
			return dev != nil && cudapath.Missing(dev.Info(), i.Kernel, t) == ""
		}
		return status[cases.On(i.Tier, t)]
	}
}

// verified is what became of a problem.
type verified struct {
	rows []*verify.Row
	err  error
}

// verifyAll computes, several problems at once where they are small, and prints in
// order. What stops it early is returned first; what is known then is printed. The
// error is one of printing.
func verifyAll(ctx context.Context, v *verify.Verifier, problems []verifyProblem, out []verify.Printer, all *verify.Outcome, step func()) (stopped, err error) {
	workers, order := 1, make([]int, len(problems)) // a large problem fills the memory of machine and device
	for i := range order {
		order[i] = i
	}
	if v.Conformance {
		// What takes long to compile goes first, so that nothing waits for it at the end.
		workers = runtime.GOMAXPROCS(0)
		slices.SortStableFunc(order, func(a, b int) int {
			return problems[b].D + problems[b].Dv - problems[a].D - problems[a].Dv
		})
	}
	results := make([]chan verified, len(problems))
	for i := range results {
		results[i] = make(chan verified, 1)
	}
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	var next atomic.Int64
	var wg sync.WaitGroup
	defer func() {
		cancel()
		if asked.Err() == nil { // else there is no time
			wg.Wait()
		}
	}()
	for range workers {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(order)); n = next.Add(1) - 1 {
				i := order[n]
				r := verified{err: ctx.Err()}
				if r.err == nil {
					r.rows, r.err = v.Problem(ctx, problems[i].Case, problems[i].dtype)
				}
				results[i] <- r
			}
		})
	}
	marked := false // the problem that was interrupted has its rows
	for i := range results {
		var done verified
		if stopped == nil {
			select {
			case done = <-results[i]:
			case <-asked.Done():
				stopped = asked.Err()
			}
		}
		if stopped != nil {
			select {
			case done = <-results[i]:
			default:
			}
			if marked && len(done.rows) == 0 {
				continue
			}
			if len(done.rows) == 0 && asked.Err() != nil {
				done = verified{v.Unfinished(problems[i].Case, problems[i].dtype), asked.Err()}
			}
			marked = true
		}
		if err := verifiedRows(done, out, all); err != nil {
			return nil, err
		}
		if stopped == nil {
			stopped = done.err
		}
		if stopped != nil {
			cancel()
		}
		step()
	}
	return stopped, nil
}

// verifiedRows prints the rows of a problem. Those without a verdict were interrupted.
func verifiedRows(done verified, out []verify.Printer, all *verify.Outcome) error {
	if done.err == nil {
		all.Add(done.rows)
	}
	for _, r := range done.rows {
		if r.Status == "" {
			r.Status = bench.Interrupted
		}
		for _, to := range out {
			if err := to.Row(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyOutcome is the error that the rows amount to.
func verifyOutcome(o *verify.Outcome) error {
	switch {
	case o.Failed > 0:
		return fmt.Errorf("%d of %d rows are wrong: %s", o.Failed, o.Rows, o.FirstFail)
	case o.Broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", o.Broken, o.Rows, o.FirstBroken)}
	case o.Uncompared == o.Problems && o.TooLarge == o.Rows && o.Rows > 0:
		return unsupportedf("no problem fits the memory: %s", o.Why)
	case o.Uncompared == o.Problems && o.Problems > 0:
		return unsupportedf("no problem is supported: %s", o.Why)
	}
	return nil
}
