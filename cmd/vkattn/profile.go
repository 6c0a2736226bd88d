package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/atomicfile"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// profileFlags are the flags of `vkattn profile`.
type profileFlags struct {
	benchFlags
	trace string
	peak  float64
}

func (a *app) profileCommand() *cobra.Command {
	var o profileFlags
	c := &cobra.Command{
		Use:   "profile",
		Short: "show where the time of one problem goes",
		Long: `Verifies and times one problem on a tier of Vulkan command buffers, then times each of its
dispatches, or launches of cubins, with barriers between them. Prints the compiler's
statistics of each, the speed as a share of the device's ceilings, and what bounds it. The
ceilings are measured: a copy, products whose operands stay in registers, an empty dispatch
and a barrier.

The flags select the problem, its options and its kernel, and say how it is timed, as in
bench. They must give one problem.

Registers, spills and shared memory of pipelines need VK_KHR_pipeline_executable_properties;
cubins say them, spills as local memory. The occupancy is an estimate from them, for NVIDIA
GPUs. --trace writes the dispatches for chrome://tracing and Perfetto. Nsight shows the names
of commands and pipelines.

Exit codes: 0 done, 1 a wrong result, 2 bad flags, 3 not supported or too large, 4 device
failure, or a device that hangs (--timeout)` + signalHelp,
		Example: `  vkattn profile --batch-size 8 --nheads 32 --nheads-kv 8 --seqlen 1 --seqlen-k 8192 --headdim 128
  vkattn profile --preset gpt3 --warmup 2s
  vkattn profile --seqlen 4096 --headdim 128 --trace trace.json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.seed = uint64(rand.Uint32())
			}
			if err := checkPeak("peak-tflops", o.peak); err != nil {
				return err
			}
			if err := o.timing.check(c.Flags()); err != nil {
				return err
			}
			return flagtext.Sweep.Error(a.profile(c.Context(), &o))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	o.rowFlags(f)
	f.StringVarP(&o.format, "output", "o", "md", "md or json")
	f.StringVar(&o.trace, "trace", "", "write every dispatch to `file` in the format of chrome://tracing")
	f.Float64Var(&o.peak, "peak-tflops", 0, "`TFLOP/s` of the device's products, for the share of it (default: measured from registers)")
	c.SetHelpFunc(helpBySection)
	return c
}

func (a *app) profile(ctx context.Context, o *profileFlags) error {
	o.takesTiers = append(slices.Clone(vulkanTiers), attention.TierCubin)
	plan, err := o.plan([]bench.Format{"md", "json"})
	if err != nil {
		return err
	}
	switch {
	case plan.allTiers || len(plan.tiers) > 1:
		return badInputf("--tier: a profile is of one tier")
	case len(plan.variants) > 1:
		return badInputf("--variant: a profile is of one step")
	case len(o.tile) > 1:
		return badInputf("--tile: a profile is of one tile")
	case len(o.tiles) > 1:
		return badInputf("--bwd-tile: a profile is of one set of tiles")
	}
	a.stats, a.labels, a.timeout = true, true, o.timing.Limit()
	dev, err := a.openDevice(o.device, needVulkan, "profile")
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	tiers := plan.tiers
	if len(tiers) == 0 || tiers[0] == attention.TierAuto {
		tiers = []attention.Tier{attention.TierNoCUDA} // of TierAuto what records dispatches
	}
	defaults := bench.Lists("batch-size=1 nheads=8 seqlen=4096 headdim=128")
	plan.small = dev.Info().Type == vk.DeviceCPU
	if plan.small {
		defaults = bench.Lists("batch-size=1 nheads=2 seqlen=256 headdim=64")
	}
	problems, err := plan.problems(defaults)
	if err != nil {
		return err
	}
	if len(problems) != 1 {
		return badInputf("the flags give %d problems, a profile is of one", len(problems))
	}
	var set atomicfile.Set
	defer a.flushed(&set)()
	var trace io.Writer
	if o.trace != "" {
		if trace, err = addOutput(&set, "--trace", o.trace); err != nil {
			return err
		}
	}
	sampler, stopSampler, err := a.openMonitor(&set, o.monitor, attention.On(dev))
	if err != nil {
		return err
	}
	defer func() { _ = stopSampler() }()
	b := &bench.Bench{Device: attention.On(dev), Label: dev.Info().Name, CPU: "cpu", Seed: o.seed, Timing: o.timing.Timing,
		Monitor: sampler, Specs: bench.Specs(tiers, nil, plan.variants, nil, o.tile, o.tiles)}
	p, err := b.Profile(ctx, problems[0], o.peak)
	if err != nil {
		return err
	}
	p.Run = o.runInfo(plan, attention.On(dev))
	var all outcome
	all.add(p.Row)
	if err := all.err(); err != nil {
		return err
	}
	if trace != nil {
		if err := writeTrace(trace, p); err != nil {
			return err
		}
	}
	if o.format == "json" {
		err = bench.WriteJSON(a.stdout, p)
	} else {
		err = printProfile(a.stdout, p)
	}
	if err != nil {
		return err
	}
	if err := stopSampler(); err != nil {
		return err
	}
	if err := set.Commit(ctx); err != nil {
		return fmt.Errorf("--trace %s: %w", o.trace, err)
	}
	fmt.Fprintf(a.stderr, "seed %d\n", o.seed)
	return errors.Join(all.err(), validated(dev))
}

func printProfile(out io.Writer, p *bench.Profile) error {
	w := &errWriter{w: out}
	r := p.Row
	w.printf("%s, tier %s, tile %s\n%s\n\n", r.Device, r.Tier, r.Tile, p.Problem)
	w.printf("%.4g ms median (%.4g to %.4g), %.4g TFLOP/s, %.4g TB/s of %s\n", r.Ms.Median, r.Ms.Min, r.Ms.Max,
		r.TFLOPs, p.TBs, hostmem.Bytes(p.Bytes))
	if r.Unsteady != "" {
		w.printf("unsteady: %s\n", r.Unsteady)
	}
	w.printf("%s\n\n", markdown.Paragraph(fmt.Sprintf("bound by %s: %s", p.Bound, p.Explanation)))
	us := func(title string, of func(*bench.ProfiledDispatch) float64) markdown.Column[*bench.ProfiledDispatch] {
		return markdown.Column[*bench.ProfiledDispatch]{Title: title, Room: 1,
			Cell: func(d *bench.ProfiledDispatch) any { return fmt.Sprintf("%.2f", of(d)) }}
	}
	list := make([]*bench.ProfiledDispatch, len(p.Dispatches))
	compiled := ""
	for i := range list {
		d := &p.Dispatches[i]
		list[i] = d
		var stats []string
		for _, s := range d.Statistics {
			stats = append(stats, fmt.Sprintf("%s %.10g", s.Name, s.Value))
		}
		if e := d.Occupancy; e != nil {
			stats = append(stats, fmt.Sprintf("occupancy %d workgroups, %d subgroups, %.0f %%, by %s", e.Workgroups,
				e.Subgroups, 100*e.Share, e.Limit))
		}
		if len(stats) > 0 {
			compiled += fmt.Sprintf("\n%s:\n%s\n", d.Pipeline, strings.Join(markdown.Wrap(stats, ", ", markdown.Width), "\n"))
		}
	}
	t := markdown.Of(list, false, []markdown.Column[*bench.ProfiledDispatch]{
		{Title: "dispatch<", Always: true, Cell: func(d *bench.ProfiledDispatch) any { return d.Pipeline }},
		{Title: "groups", Cell: func(d *bench.ProfiledDispatch) any {
			return fmt.Sprintf("%dx%dx%d", d.Groups[0], d.Groups[1], d.Groups[2])
		}},
		{Title: "invocations", Cell: func(d *bench.ProfiledDispatch) any { return d.LocalSize }},
		us("us median", func(d *bench.ProfiledDispatch) float64 { return d.Us }),
		us("us min", func(d *bench.ProfiledDispatch) float64 { return d.MinUs }),
		us("us max", func(d *bench.ProfiledDispatch) float64 { return d.MaxUs }),
		{Title: "share", Room: 1, Cell: func(d *bench.ProfiledDispatch) any { return fmt.Sprintf("%.0f %%", 100*d.Share) }},
	})
	w.printf("%s\n%s\nbarriers, fills and gaps: %.2f us with barriers between dispatches\n", t, compiled, p.OtherUs)
	ceilings := fmt.Sprintf("ceilings: copy %.4g TB/s, an empty dispatch %.2f us, a barrier %.2f us", p.Ceilings.CopyTBs,
		p.Ceilings.DispatchUs, p.Ceilings.BarrierUs)
	if p.Ceilings.PeakTFLOPs > 0 {
		given := ""
		if p.Ceilings.PeakGiven {
			given = " (given)"
		}
		ceilings += fmt.Sprintf(", products %.4g TFLOP/s%s", p.Ceilings.PeakTFLOPs, given)
	}
	w.printf("%s\n", markdown.Paragraph(ceilings))
	return w.err
}

// writeTrace writes the dispatches as complete events of the Trace Event Format.
func writeTrace(w io.Writer, p *bench.Profile) error {
	type event struct {
		Name string         `json:"name"`
		Kind string         `json:"ph"`
		PID  int            `json:"pid"`
		TID  int            `json:"tid"`
		At   float64        `json:"ts"`            // microseconds
		Took float64        `json:"dur,omitempty"` // microseconds
		Args map[string]any `json:"args,omitempty"`
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	events := []event{
		{Name: "process_name", Kind: "M", PID: 1, Args: map[string]any{"name": p.Row.Device}},
		{Name: "thread_name", Kind: "M", PID: 1, TID: 1, Args: map[string]any{"name": "compute queue"}},
	}
	for _, d := range p.Trace {
		events = append(events, event{Name: d.Name, Kind: "X", PID: 1, TID: 1, At: us(d.Begin), Took: us(d.End - d.Begin),
			Args: map[string]any{"run": d.Run, "groups": d.Groups}})
	}
	return json.NewEncoder(w).Encode(map[string]any{"traceEvents": events, "displayTimeUnit": "ns",
		"otherData": map[string]any{"problem": p.Problem, "version": p.Run.Version, "device": p.Row.Device, "tier": p.Row.Tier}})
}
