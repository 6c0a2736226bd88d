package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/cudapath"
	"vkattn/internal/atomicfile"
	"vkattn/internal/cases"
)

// verifyFlags are the flags of `vkattn verify`, not parsed yet.
type verifyFlags struct {
	benchFlags
	only  string
	times int // runs of each implementation
}

// The suites that verify has and bench does not.
const (
	conformance = "conformance"
	options     = "options"
)

func (a *app) verifyCommand() *cobra.Command {
	var o verifyFlags
	c := &cobra.Command{
		Use:   "verify",
		Short: "compare the results of all implementations on the same problems",
		Long: `Runs every tier of the device and every family of CUDA kernels (vkattn info lists
both) on the same random problems. Compares all of O and LSE of each implementation with
the CUDA validation kernel and with the other implementations. The float64 reference on
the CPU judges as many rows as it computes in a second or two. Without CUDA only those
rows have a reference; on the other rows the implementations must agree with one another.

A result may be wrong by a multiple of the error that plain attention in the storage type
has; bench has the same limits (go doc vkattn/cmd/vkattn/internal/verify).

--score-mod, --mask-mod and --table give the calls modifiers (docs/modifiers.md). CUDA kernels
take none, and the float64 reference alone judges.

--pass bwd computes the gradients of Q, K and V, of tables of floats that a score modifier
reads, and of bias and sinks in the table of options. Each tier takes O and LSE from its own
forward pass; tier cuda takes them from tier scalar. Tier cubin has no gradients. The
float64 reference judges the whole gradients of a small problem. In a large problem it
judges sampled rows of dQ and sampled keys of dK and dV, which are sums over all rows.

Select problems as in bench. Problems of a suite that have other options, such as pages,
are left out: bench verifies them. --suite conformance runs the table of the tests: every
head dim, mask, layout and kind of data. It also checks that kernels write only to the
outputs and that masked keys do not change a bit. On a CPU it runs a part of the table,
unless --case names problems. --suite options does the same with the table of options:
lengths, windows, softcap, masks and the others. It needs --pass bwd.

Exit codes: 0 all agree, 1 a wrong result, 2 bad flags, 3 no problem is supported and
fits the memory, 4 device failure, or a device that hangs (--timeout)` + signalHelp,
		Example: `  vkattn verify --suite conformance
  vkattn verify --tier scalar,cpu --headdim 64 --seqlen 100,1000 --pass bwd
  vkattn verify --ranks 2                           # two GPUs of this host, versus one`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.seed = uint64(rand.Uint32()) + 1
			}
			if err := checkTimeout(c.Flags(), o.timing.Timeout); err != nil {
				return err
			}
			return flagtext.Sweep.Error(a.onRanks(c, &o.benchFlags, func() error { return a.verify(c.Context(), &o) },
				func() (*benchPlan, workOf, error) {
					plan, err := o.checkRanks()
					if err != nil {
						return nil, nil, err
					}
					return plan.benchPlan, func(s *ranks.Session) (ranksWork, error) { return a.verifiedOnRanks(s, &o, plan) }, nil
				}))
		},
	}
	o.add(c.Flags())
	c.SetHelpFunc(helpBySection)
	return c
}

func (o *verifyFlags) add(f *pflag.FlagSet) {
	f.SortFlags = false
	o.problemFlags(f)
	f.Lookup("suite").Usage = suitesUsage() + ", " + conformance + ", " + options
	f.Lookup("device").Usage += withoutVulkan
	f.StringVar(&o.only, "case", "", "run the cases of --suite conformance or options whose names match the regular expression `pattern`")
	o.addAxis(f, "pass", "the `pass` to compare: fwd or bwd (default fwd); fwd: O and LSE, bwd: gradients")
	for _, axis := range bench.Axes {
		if axis.Verified() {
			o.lists.add(f, axis)
		}
	}
	f.StringVar(&o.tier, "tier", "", "`list` of tiers: cpu, scalar, coopmat, coopmat2, cubin, cuda; default: all of the device")
	f.StringVar(&o.kernels, "cuda-kernel", "",
		"`list` of kernel families of tier cuda: "+commas(attention.CUDAKernels())+" (default: all)")
	o.ranksFlags.add(f)
	f.IntVar(&o.times, "repeat", 1, "run each implementation `n` times; all runs must give the same bits")
	addTimeout(f, &o.timing.Timeout, "prints and saves the finished rows and ends")
	f.StringVarP(&o.format, "output", "o", "md", "md, json or jsonl")
	f.BoolVar(&o.wide, "wide", false, wideUsage)
	f.StringArrayVar(&o.save, "save", nil, saveUsage)
	f.Uint64Var(&o.seed, "seed", 0, "seed of inputs and sampled rows (default: random, printed)")
}

func (a *app) verify(ctx context.Context, o *verifyFlags) error {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	a.timeout = o.timing.Timeout
	dev, err := a.openAny(o.device, plan.tiers, needOfTiers(plan.tiers, true), firstTier(plan.tiers))
	if err != nil {
		return err
	}
	defer closeAny(dev)
	return a.verifyWith(ctx, o, plan, newVerifier(o, plan, dev))
}

// newVerifier runs what the flags name on a device, by default all that runs on it.
func newVerifier(o *verifyFlags, plan *verifyPlan, dev *attention.Device) *verify.Verifier {
	cuda := cudapath.ContextOf(dev)
	tiers := plan.tiers
	if len(tiers) == 0 {
		tiers = availableTiers(dev.Vulkan())
		if cuda != nil {
			tiers = append(tiers, attention.TierCUDA)
		}
	}
	here := runsHere(dev)
	if len(plan.tiers) > 0 {
		here = nil // a tier given by name gets a row with the reason if it cannot run
	}
	families := plan.kernels
	if len(families) == 0 {
		families = attention.CUDAKernels()
	}
	v := &verify.Verifier{Device: dev, Label: deviceLabel(dev), List: bench.Specs(tiers, families, nil, nil, nil, nil),
		Backward: plan.backward, Repeat: o.times, Conformance: plan.table, Here: here, Timeout: o.timing.Timeout}
	if (cuda != nil || verify.HasCUDA(dev.Vulkan())) && !plan.backward {
		v.Reference = &verify.Validation
	}
	return v
}

// verifyWith verifies the problems of the plan, and prints and saves the rows.
func (a *app) verifyWith(ctx context.Context, o *verifyFlags, plan *verifyPlan, v *verify.Verifier) error {
	problems, err := a.verifyProblems(plan, v.Device, o.seed, true)
	if err != nil {
		return err
	}
	info := runInfo(v.Device, o.seed)
	info.Suite, info.Wide = o.suite, o.wide
	var planned []*verify.Row
	for _, p := range problems {
		planned = append(planned, v.Unfinished(p.Case, p.dtype)...)
	}
	var set atomicfile.Set
	defer a.flushed(&set)()
	printer := func(f bench.Format, w io.Writer) bench.Printer[*verify.Row] {
		return verify.NewPrinter(f, w, info, plan.table, planned)
	}
	files, err := openSaved(&set, plan.saved, printer)
	if err != nil {
		return err
	}
	out := bench.Printers(append(files, printer(plan.format, a.stdout))...)
	a.bar.start("problem", len(problems))
	v.Progress = a.bar.say
	var all verify.Outcome
	stopped, err := verifyAll(ctx, v, problems, out, &all, a.bar.step)
	a.bar.end()
	if err != nil {
		return err
	}
	if stopped != nil {
		info.Stopped = stopReason(stopped)
	}
	if err := out.Close(info); err != nil {
		return err
	}
	if err := commitRows(ctx, &set, all.Rows); err != nil {
		return err
	}
	if ctx.Err() == nil { // else a worker may still use the operations
		if err := v.Close(); err != nil && stopped == nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "%s, %s, %sseed %d\n", flagtext.Count(all.Problems, "problem"),
		flagtext.Count(all.Rows, "row"), oomCount(&all.Tally), o.seed)
	if stopped != nil {
		return stopped
	}
	return errors.Join(verifyOutcome(&all), validated(v.Device.Vulkan()))
}

// runsHere returns a function that reports whether an implementation runs a storage
// type on the device.
func runsHere(dev *attention.Device) func(bench.Spec, attention.DType) bool {
	status := map[cases.Target]bool{}
	for _, s := range attention.TierReport(dev.Vulkan()) {
		status[cases.On(s.Tier, s.DType)] = s.Available
	}
	return func(i bench.Spec, t attention.DType) bool {
		if c := cudapath.ContextOf(dev); c != nil && i.Tier == attention.TierCUDA {
			return cudapath.MissingOn(c.Info(), i.Kernel, t) == ""
		}
		if i.Tier == attention.TierCUDA {
			return dev != nil && cudapath.Missing(dev.Vulkan().Info(), i.Kernel, t) == ""
		}
		return status[cases.On(i.Tier, t)]
	}
}

// verified is the outcome of one problem.
type verified struct {
	rows []*verify.Row
	err  error
}

// verifyAll verifies the problems and prints their rows in order. Problems of the
// conformance table, which are small, run in parallel. If a problem or ctx stops it
// early, it prints the rows known by then and returns the reason as stopped. err is an
// error of printing.
func verifyAll(ctx context.Context, v *verify.Verifier, problems []verifyProblem, out bench.Printer[*verify.Row],
	all *verify.Outcome, step func()) (stopped, err error) {
	workers, order := 1, make([]int, len(problems)) // one at a time: a large problem fills the memory
	for i := range order {
		order[i] = i
	}
	if v.Conformance {
		// Large head dims compile longest. They start first, so that none is left for the end.
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
		if asked.Err() == nil { // an interrupted command does not wait
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
				step()
			}
		})
	}
	marked := false // rows with the status Interrupted were printed
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
	}
	return stopped, nil
}

// verifiedRows prints the rows of a problem. A row without a status was interrupted.
func verifiedRows(done verified, out bench.Printer[*verify.Row], all *verify.Outcome) error {
	if done.err == nil {
		all.Of(done.rows)
	}
	for _, r := range done.rows {
		if r.Status == "" {
			r.Status = bench.Interrupted
		}
		if err := out.Row(r); err != nil {
			return err
		}
	}
	return nil
}

// verifyOutcome returns the error for the exit code, nil if all rows are right.
func verifyOutcome(o *verify.Outcome) error {
	bad := failures(&o.Tally, true)
	if bad == nil && o.Uncompared == o.Problems && o.Problems > 0 {
		bad = cmp.Or(noneRan(&o.Tally, "problem", o.Rows), unsupportedf("no problem is supported: %s",
			cmp.Or(o.First[bench.Unsupported], o.First[bench.OOM])))
	}
	return bad
}
