package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/cudapath"
	"vkattn/internal/atomicfile"
	"vkattn/vk"
)

// benchFlags are the flags of `vkattn bench`, not parsed yet.
type benchFlags struct {
	changed                         func(flag string) bool // whether it is given
	lists                           axisTexts
	tier, device, format            string
	timing                          timingFlags
	suite, variant, ablate, kernels string
	tile, tiles                     []string
	peers, save                     []string
	monitor                         string // file of --monitor
	plots                           []string
	ceilingFlags
	peerTimeout                 time.Duration
	seed                        uint64
	baselines, baseline, preset string
	list, wide, ofPeak          bool
	onePass                     bool             // a suite has the passes of --pass alone
	takesTiers                  []attention.Tier // by --tier; nil: all
	takesPasses                 []bench.Pass     // by --pass; nil: all
	takesCeilings               bool             // of suite ceilings
	ranksFlags
}

func (a *app) benchCommand() *cobra.Command {
	o := benchFlags{takesCeilings: true}
	c := &cobra.Command{
		Use:   "bench",
		Short: "verify and time attention over a sweep of problems",
		Long: `Verifies and times attention, one row per problem and tier. A row is compared with a
float64 reference first; a wrong result is printed as FAIL and has no speed.

Exit codes: 0 done, 1 a wrong result or, with --baseline, a slower row, 2 bad flags or, with
--baseline, a row that only this run has, 3 no row is supported and fits the memory, 4
device failure, or a device that hangs (--timeout)` + signalHelp,
		Example: `  vkattn bench                                      # a sweep that suits the device
  vkattn bench --preset llama3-8b,short --tier all
  vkattn bench --headdim 64,128 --seqlen 1024-16384*2 --causal none,bottom-right -o csv
  vkattn bench --suite forward --peer "python3 scripts/peer_torch.py flash" --save rows.jsonl`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.seed = uint64(rand.Uint32())
			}
			if err := o.timing.check(c.Flags()); err != nil {
				return err
			}
			if o.peerTimeout <= 0 {
				return badInputf("--peer-timeout %v: want a positive duration", o.peerTimeout)
			}
			if err := needs(o.changed, "peer-timeout", "peer"); err != nil {
				return err
			}
			return flagtext.Sweep.Error(a.onRanks(c, &o, func() error { return a.bench(c.Context(), &o) },
				func() (*benchPlan, workOf, error) {
					plan, err := o.checkRanks()
					return plan, func(s *ranks.Session) (ranksWork, error) { return a.timedOnRanks(s, &o, plan) }, err
				}))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	o.rowFlags(f)
	f.Lookup("device").Usage += withoutVulkan
	f.StringVar(&o.kernels, "cuda-kernel", "", "`list` of kernel families of tier cuda, one row each: "+commas(attention.CUDAKernels())+" (default: the best for each problem)")
	f.StringVarP(&o.format, "output", "o", "md", "md, csv, json, jsonl, sql or gobench, which benchstat reads")
	f.BoolVar(&o.wide, "wide", false, wideUsage)
	f.BoolVar(&o.ofPeak, "of-peak", false, "-o md: print percent of peak and of bandwidth; measures the ceilings of the device first")
	f.BoolVar(&o.list, "list", false, "print the presets and suites with their shapes, or the problems of the given --preset and --suite, and run nothing")
	f.StringArrayVar(&o.peers, "peer", nil,
		"`command` that times another implementation; such as \"python3 scripts/peer_torch.py flash\" (repeatable)")
	f.DurationVar(&o.peerTimeout, "peer-timeout", peer.DefaultTimeout, "stop a peer whose answer takes longer")
	f.StringVar(&o.ablate, "ablate", "", "`list` of what to leave out, one row each: none, softmax, barrier, load")
	f.StringArrayVar(&o.save, "save", nil, saveUsage)
	f.StringArrayVar(&o.plots, "plot", nil, plotUsage)
	o.ceilingFlags.add(f)
	f.StringVar(&o.baselines, "against", "", "`list` of other ways to the same result; on the same data: "+commas(bench.Baselines)+", or none (default: as the suite says)")
	f.StringVar(&o.baseline, "baseline", "",
		"compare the rows with the rows of `file`; an earlier --save in json or jsonl, as vkattn compare does")
	o.ranksFlags.add(f)
	c.SetHelpFunc(helpBySection)
	return c
}

// rowFlags adds the flags that say what a row computes and how it is timed. bench and profile
// have them.
func (o *benchFlags) rowFlags(f *pflag.FlagSet) {
	o.problemFlags(f)
	f.StringVar(&o.tier, "tier", "",
		"`list` of tiers: auto, no-cuda, cpu, scalar, coopmat, coopmat2, cubin, cuda; all: every tier of the device (default auto)")
	o.timing.add(f)
	f.StringVar(&o.variant, "variant", "", "`list` of steps of the ladder of kernel versions, v1 to v8, or all")
	f.StringArrayVar(&o.tile, "tile", nil, "`changes` of the tile of the dense forward kernel, as field=number,... (kv_tile=32,group=4); one row for each flag, \"\" for the tile that calls take")
	f.StringArrayVar(&o.tiles, "bwd-tile", nil, "`changes` of the tiles of the backward kernels, as kernel.field=number,... (q.kv_tile=32,kv.row_tile=48); one row for each flag, \"\" for the tiles that calls take")
	for _, axis := range bench.Axes {
		if !axis.Shapes() {
			o.lists.add(f, axis)
		}
	}
	f.StringVar(&o.monitor, "monitor", "", monitorUsage)
	f.Uint64Var(&o.seed, "seed", 0, "seed of inputs and sampled rows (default: random, printed)")
}

// withoutVulkan ends the help of --device of commands that call openAny.
const withoutVulkan = "; cuda or cuda:0: without Vulkan"

// wideUsage is the help of --wide.
const wideUsage = "-o md: print every column, also those that all rows have the same value of"

// saveUsage is the help of --save.
const saveUsage = "also write the rows to `file`, in the format of its extension (repeatable)"

// addAxis adds the flag of an axis with a usage of its own.
func (o *benchFlags) addAxis(f *pflag.FlagSet, flag, usage string) {
	axis := *bench.AxisOf(flag)
	axis.Usage = usage
	o.lists.add(f, &axis)
}

// problemFlags adds the flags that select problems and the device. All commands that
// take sweeps have them.
func (o *benchFlags) problemFlags(f *pflag.FlagSet) {
	o.lists, o.changed = axisTexts{}, f.Changed
	for _, axis := range bench.Axes {
		if axis.Shapes() {
			o.lists.add(f, axis)
		}
	}
	f.StringVar(&o.preset, "preset", "", "`list` of models and usual shapes, such as llama3-8b,short; lists and options on the command line replace the lists and options of a preset")
	f.StringVar(&o.suite, "suite", "", suitesUsage())
	f.StringVar(&o.device, "device", "auto", "auto, cpu, an index, a UUID or part of a name")
}

func suitesUsage() string { return "`list` of suites; " + commas(bench.Suites) }

// commas are the texts of a list with commas.
func commas[T any](list []T) string { return strings.Join(flagtext.Texts(list), ", ") }

func (a *app) bench(ctx context.Context, o *benchFlags) error {
	plan, err := o.plan(bench.Formats)
	if err != nil {
		return err
	}
	if err := o.refuse(plan); err != nil {
		return err
	}
	if o.list {
		return plan.list(a.stdout)
	}
	var baseline []*bench.Row
	if o.baseline != "" {
		if baseline, err = a.savedRows(o.baseline); err != nil {
			return badInputf("--baseline: %w", err)
		}
	}
	a.timeout = o.timing.Limit()
	dev, err := a.benchDevice(o.device, plan)
	if err != nil {
		return err
	}
	defer closeAny(dev)
	problems, err := o.problems(plan, dev)
	if err != nil {
		return err
	}
	peers, err := a.openPeers(ctx, o.peers, o.peerTimeout, dev)
	defer closePeers(peers)
	if err != nil {
		return err
	}
	var set atomicfile.Set
	defer a.flushed(&set)()
	sampler, stopSampler, err := a.openMonitor(&set, o.monitor, dev)
	defer stopSampler()
	if err != nil {
		return err
	}
	b := &bench.Bench{Monitor: sampler, Device: dev, Label: deviceLabel(dev), CPU: "cpu", Seed: o.seed, Timing: o.timing.Timing,
		Specs: o.specs(plan, dev), Baselines: plan.chosenBaselines()}
	info := o.runInfo(plan, dev)
	info.Schema = bench.SchemaVersion
	info.Baselines = b.BaselineNames(problems)
	info.Planned = b.Planned(problems)
	if o.ofPeak && dev.Vulkan() == nil {
		fmt.Fprintln(a.stderr, "vkattn: --of-peak: no ceilings are measured on the CPU and without Vulkan: give --peak-tflops and --peak-tbs")
	}
	for _, name := range plan.baselines {
		if !slices.Contains(info.Baselines, string(name)) {
			fmt.Fprintf(a.stderr, "vkattn: --against %s: no problem of this run has such a row on this device\n", name)
		}
	}
	for _, p := range peers {
		b.Peers = append(b.Peers, p)
		info.Peers = append(info.Peers, p.Info())
	}
	printer := func(f bench.Format, w io.Writer) bench.Printer[*bench.Row] { return bench.NewPrinter(f, w, info) }
	files, err := openSaved(&set, plan.saved, printer)
	if err != nil {
		return err
	}
	if len(o.plots) > 0 {
		plots, err := openPlots(&set, o.plots)
		if err != nil {
			return err
		}
		files = append(files, &plotPrinter{files: plots, ceilings: o.given(), stderr: a.stderr})
	}
	a.bar.start("row", b.Rows(problems))
	b.Progress, b.Done = a.bar.say, a.bar.step
	all, err := measure(ctx, b, problems, bench.Printers(append(files, printer(plan.format, a.stdout))...), info)
	a.bar.end()
	if err == nil {
		err = stopSampler()
	}
	if err == nil {
		err = commitRows(ctx, &set, len(all.list))
	}
	if err != nil {
		return err
	}
	var slower error
	if o.baseline != "" && (len(all.list) > 0 || all.stopped == nil) {
		slower = a.compareWith(baseline, o.baseline, plan.named(all.list), plan.format)
	}
	if all.stopped != nil {
		fmt.Fprintf(a.stderr, "%d of %d rows, %sseed %d\n", len(all.list), b.Rows(problems), oomCount(&all.Tally), o.seed)
		return all.err()
	}
	for _, line := range peerTrouble(all.list) {
		fmt.Fprintf(a.stderr, "vkattn: %s\n", flagtext.OneLine(line))
	}
	fmt.Fprintf(a.stderr, "%s, %sseed %d\n", flagtext.Count(len(all.list), "row"), oomCount(&all.Tally), o.seed)
	if err := errors.Join(all.err(), validated(dev.Vulkan())); err != nil {
		return err
	}
	return slower
}

// refuse returns the errors of flags that plan does not parse.
func (o *benchFlags) refuse(p *benchPlan) error {
	if slices.ContainsFunc(o.peers, func(command string) bool { return strings.TrimSpace(command) == "" }) {
		return badInputf("--peer needs a command")
	}
	if len(p.kernels) > 0 && !p.allTiers && !slices.Contains(p.tiers, attention.TierCUDA) {
		return badInputf("--cuda-kernel needs --tier cuda or all")
	}
	if err := checkPlots(o.plots); err != nil {
		return err
	}
	if err := o.ceilingFlags.check(); err != nil {
		return err
	}
	if o.list {
		return o.listOnly(p)
	}
	return nil
}

// problems lists the problems of the plan on a device, after the ceilings that pictures need.
func (o *benchFlags) problems(p *benchPlan, dev *attention.Device) ([]bench.Problem, error) {
	p.small = bench.OnCPU(dev)
	list, err := p.problems(bench.Defaults(dev))
	if err == nil && (o.ofPeak || len(o.plots) > 0) && dev.Vulkan() != nil {
		list = append(bench.PlotCeilings(dev.Vulkan(), list, o.tbs > 0, o.tflops > 0), list...)
	}
	return list, err
}

// specs lists what runs each problem: tiers with their kernels, variants, ablations and tiles.
func (o *benchFlags) specs(p *benchPlan, dev *attention.Device) []bench.Spec {
	tiers := p.tiers
	switch {
	case p.allTiers:
		tiers = availableTiers(dev.Vulkan())
		if cudapath.ContextOf(dev) != nil {
			tiers = []attention.Tier{attention.TierCUDA}
		}
	case len(tiers) == 0:
		tiers = []attention.Tier{attention.TierAuto}
	}
	return bench.Specs(tiers, p.kernels, p.variants, p.chosenAblations(), o.tile, o.tiles)
}

// runInfo describes the run, but for peers and baselines.
func (o *benchFlags) runInfo(p *benchPlan, dev *attention.Device) *bench.RunInfo {
	info := runInfo(dev, o.seed)
	info.Shrunk, info.Wide, info.Suite = p.shrunk, o.wide, o.suite
	info.OfPeak, info.Peak = o.ofPeak, bench.Peak{TFLOPs: o.tflops, TBs: o.tbs}
	if o.timing.Timing != (bench.Timing{}) {
		info.Timing = &o.timing.Timing
	}
	return info
}

// benchDevice opens a device that can run the plan.
func (a *app) benchDevice(name string, p *benchPlan) (*attention.Device, error) {
	if p.ceilingsOnly() {
		dev, err := a.openDevice(name, needVulkan, "suite ceilings") // every Vulkan device will do
		return attention.On(dev), err
	}
	return a.openAny(name, p.tiers, needOfTiers(p.tiers, p.allTiers), firstTier(p.tiers))
}

// firstTier names the need of tiers.
func firstTier(tiers []attention.Tier) string {
	if len(tiers) == 0 {
		return ""
	}
	return fmt.Sprintf("tier %v", tiers[0])
}

func runInfo(on *attention.Device, seed uint64) *bench.RunInfo {
	info := &bench.RunInfo{Program: "vkattn", Version: buildVersion(), Environment: environment(),
		Started: time.Now().UTC().Truncate(time.Second),
		Seed:    seed, CPU: cpuLabel(), Device: bench.Device{Name: "cpu"}}
	if c := cudapath.ContextOf(on); c != nil {
		d := c.Info()
		info.Device = bench.Device{Name: d.Name, Type: "cuda", UUID: uuid(d.UUID), Driver: "CUDA", Version: fmt.Sprintf("%d.%d", d.Driver/1000, d.Driver%1000/10)}
	}
	if dev := on.Vulkan(); dev != nil {
		d := dev.Info()
		info.Device = bench.Device{Name: d.Name, Type: d.Type.String(), UUID: uuid(d.UUID), Driver: d.DriverName,
			Version: d.DriverInfo, API: vk.Version(d.APIVersion)}
	}
	return info
}
