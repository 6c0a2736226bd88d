package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/internal/atomicfile"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// checkRanks refuses flags of bench that several ranks do not have.
func (o *benchFlags) checkRanks() (*benchPlan, error) {
	plan, err := o.plan(ranks.Formats)
	if err != nil {
		return nil, err
	}
	err = excludes(o.changed, "peer against variant ablate cuda-kernel plot monitor baseline list tile bwd-tile min-time max-noise "+
		"timeout delay warm-cache of-peak", "ranks")
	return plan, cmp.Or(err, o.onRanks())
}

// onRanks refuses axes that several ranks do not have.
func (o *benchFlags) onRanks() error {
	for _, axis := range bench.Axes {
		if err := excludes(o.changed, axis.Flag, "ranks"); err != nil && !axis.OnRanks() {
			return err
		}
	}
	return nil
}

// ranksSweep is the sweep of `vkattn bench --ranks` without lists and suites.
func ranksSweep(dev *vk.Device) bench.Sweep {
	if dev == nil || dev.Info().Type == vk.DeviceCPU {
		return bench.Lists("batch-size=1 nheads=4 seqlen=512 headdim=64 causal=none,bottom-right")
	}
	return bench.Lists("batch-size=1 nheads=32 nheads-kv=8 seqlen=65536 headdim=128 causal=none,bottom-right")
}

// timeRanks times the rows and prints them on rank 0.
func (a *app) timeRanks(ctx context.Context, s *ranks.Session, o *benchFlags, plan *benchPlan, p *ranksPlan,
	set *atomicfile.Set) (*ranksOutcome, error) {
	defaults := ranksSweep(s.Device)
	if len(plan.lists["nheads"]) > 0 {
		delete(defaults, "nheads-kv") // as --nheads
	}
	problems, err := plan.problems(defaults)
	if err != nil {
		return nil, err
	}
	tiers := plan.tiers
	switch {
	case plan.allTiers:
		tiers = availableTiers(s.Device)
	case len(tiers) == 0:
		tiers = []attention.Tier{attention.TierAuto}
	}
	list, err := a.withoutOptions(problems, s.Rank() == 0, onlyBench, func(x bench.Problem) bool {
		return x.Options == (bench.Options{}) && x.Config.KeyType == attention.KVSame
	})
	if err != nil {
		return nil, err
	}
	seed, err := s.Agree(ctx, o.seed, fmt.Sprint(list, tiers))
	if err != nil {
		return nil, err
	}
	out, info, err := a.ranksPrinter(s, o, plan, set, true, ranks.Planned(s, list, tiers, p.modes, seed))
	if err != nil {
		return nil, err
	}
	timing := ranks.Timing{Repeats: o.timing.Repeats, Warmup: o.timing.Warmup}
	if o.timing.Once {
		timing = ranks.Timing{Repeats: 1, Warmup: -1}
	}
	all := &ranksOutcome{}
	type key struct {
		shape attention.Shape
		cfg   attention.Config
		pass  bench.Pass
	}
	alone := map[key]ranks.One{} // by problem and tier
	err = all.rowsOf(ctx, list, tiers, p.modes, out, func(x bench.Problem, tier attention.Tier, mode ranks.Mode) (*ranks.Row, error) {
		k := key{x.Shape, x.Config, x.Pass}
		k.cfg.Tier = tier
		one, timed := alone[k]
		if !timed {
			var err error
			if one, err = ranks.TimeOne(ctx, s, x, tier, timing, seed); err != nil {
				return nil, err
			}
			alone[k] = one
		}
		return ranks.Time(ctx, s, x, tier, mode, one, timing, seed)
	})
	err = a.closeRanks(ctx, out, info, set, all, err)
	if s.Rank() == 0 {
		fmt.Fprintf(a.stderr, "%s, %s, transport %v, seed %d\n", flagtext.Count(all.Rows, "row"),
			flagtext.Count(s.Ranks(), "rank"), s.Transport, seed)
	}
	return all, err
}

// checkRanks refuses flags of verify that several ranks do not have.
func (o *verifyFlags) checkRanks() (*verifyPlan, error) {
	plan, err := o.plan()
	if err != nil {
		return nil, err
	}
	plan.allTiers = true
	return plan, cmp.Or(excludes(o.changed, "cuda-kernel timeout", "ranks"), o.onRanks())
}

// compareRanks verifies the rows and prints them on rank 0.
func (a *app) compareRanks(ctx context.Context, s *ranks.Session, o *verifyFlags, plan *verifyPlan, p *ranksPlan,
	set *atomicfile.Set) (*ranksOutcome, error) {
	problems, tiers, err := a.verifyWork(plan, s)
	if err != nil {
		return nil, err
	}
	seed, err := s.Agree(ctx, o.seed, fmt.Sprint(problems, tiers))
	if err != nil {
		return nil, err
	}
	out, info, err := a.ranksPrinter(s, &o.benchFlags, plan.benchPlan, set, false, ranks.Planned(s, problems, tiers, p.modes, seed))
	if err != nil {
		return nil, err
	}
	all := &ranksOutcome{}
	err = all.rowsOf(ctx, problems, tiers, p.modes, out, func(x bench.Problem, tier attention.Tier, mode ranks.Mode) (*ranks.Row, error) {
		return ranks.Verify(ctx, s, x, tier, mode, o.times, seed)
	})
	err = a.closeRanks(ctx, out, info, set, all, err)
	if s.Rank() == 0 {
		fmt.Fprintf(a.stderr, "%s, %s, %s, transport %v, seed %d\n", flagtext.Count(len(problems), "problem"),
			flagtext.Count(all.Rows, "row"), flagtext.Count(s.Ranks(), "rank"), s.Transport, seed)
	}
	return all, err
}

// verifyWork lists the problems that several ranks verify, and the tiers.
func (a *app) verifyWork(plan *verifyPlan, s *ranks.Session) (problems []bench.Problem, tiers []attention.Tier, err error) {
	list, err := a.verifyProblems(plan, attention.On(s.Device), 0, s.Rank() == 0)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range list {
		if x.Seqs != nil || x.Name != "" { // a call with options
			continue
		}
		problems = append(problems, bench.Problem{Shape: x.Shape,
			Config: attention.Config(x.Config(cases.On(attention.TierAuto, x.dtype)))})
	}
	if plan.backward {
		for i := range problems {
			problems[i].Pass = bench.PassBackward
		}
	}
	tiers = plan.tiers
	if len(tiers) == 0 {
		tiers = availableTiers(s.Device)
	}
	return problems, tiers, nil
}

// ranksPrinter prints on rank 0 and saves the files of --save there.
func (a *app) ranksPrinter(s *ranks.Session, o *benchFlags, plan *benchPlan, set *atomicfile.Set, timed bool,
	planned []*ranks.Row) (bench.Printer[*ranks.Row], *bench.RunInfo, error) {
	info := runInfo(attention.On(s.Device), planned[0].Seed)
	info.Suite, info.Wide = o.suite, o.wide
	if s.Rank() > 0 {
		return bench.Printers[*ranks.Row](), info, nil
	}
	printer := func(f bench.Format, w io.Writer) bench.Printer[*ranks.Row] {
		return ranks.NewPrinter(f, w, info, timed, planned)
	}
	files, err := openSaved(set, plan.saved, printer)
	if err != nil {
		return nil, nil, err
	}
	return bench.Printers(append(files, printer(plan.format, a.stdout))...), info, nil
}

// ranksOutcome counts rows.
type ranksOutcome struct{ bench.Tally }

// rowsOf makes and prints a row for each problem, tier and mode, until one of them ends the run.
func (o *ranksOutcome) rowsOf(ctx context.Context, problems []bench.Problem, tiers []attention.Tier,
	modes []ranks.Mode, out bench.Printer[*ranks.Row],
	row func(bench.Problem, attention.Tier, ranks.Mode) (*ranks.Row, error)) error {
	for _, x := range problems {
		for _, tier := range tiers {
			for _, mode := range modes {
				if err := ctx.Err(); err != nil {
					return err
				}
				r, _, err := patiently(ctx, func() (*ranks.Row, error) { return row(x, tier, mode) })
				if err != nil {
					return err
				}
				o.add(r)
				if err := out.Row(r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// closeRanks ends the output. After an error, which it returns, the finished rows are printed and
// saved.
func (a *app) closeRanks(ctx context.Context, out bench.Printer[*ranks.Row], info *bench.RunInfo,
	set *atomicfile.Set, all *ranksOutcome, err error) error {
	switch {
	case ctx.Err() != nil:
		info.Stopped, err = stopReason(ctx.Err()), ctx.Err()
	case err != nil:
		info.Stopped = flagtext.OneLine(err.Error())
	}
	if all.Rows == 0 && err != nil {
		return err
	}
	return errors.Join(err, out.Close(info), commitRows(ctx, set, all.Rows))
}

func (o *ranksOutcome) add(r *ranks.Row) {
	text := r.Name()
	if note := r.Note(); note != "" {
		text += ": " + note
	}
	o.Add(r.Status, text)
}

// err is the error for the exit code.
func (o *ranksOutcome) err() error {
	return cmp.Or(failures(&o.Tally, true), noneRan(&o.Tally, "row", o.Rows))
}
