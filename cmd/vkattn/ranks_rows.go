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

// timedOnRanks is the work of bench.
func (a *app) timedOnRanks(s *ranks.Session, o *benchFlags, plan *benchPlan) (w ranksWork, err error) {
	defaults := ranksSweep(s.Device)
	if len(plan.lists["nheads"]) > 0 {
		delete(defaults, "nheads-kv") // as --nheads
	}
	problems, err := plan.problems(defaults)
	if err != nil {
		return w, err
	}
	w.timed, w.tiers = true, plan.tiers
	switch {
	case plan.allTiers:
		w.tiers = availableTiers(s.Device)
	case len(w.tiers) == 0:
		w.tiers = []attention.Tier{attention.TierAuto}
	}
	w.problems, err = a.withoutOptions(problems, s.Rank() == 0, onlyBench, func(x bench.Problem) bool {
		return x.Options == (bench.Options{}) && x.Config.KeyType == attention.KVSame
	})
	timing := ranks.Timing{Repeats: o.timing.Repeats, Warmup: o.timing.Warmup}
	if o.timing.Once {
		timing = ranks.Timing{Repeats: 1, Warmup: -1}
	}
	type key struct {
		shape attention.Shape
		cfg   attention.Config
		pass  bench.Pass
	}
	alone := map[key]ranks.One{} // by problem and tier
	w.row = func(ctx context.Context, x bench.Problem, tier attention.Tier, mode ranks.Mode, seed uint64) (*ranks.Row, error) {
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
	}
	return w, err
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

// verifiedOnRanks is the work of verify.
func (a *app) verifiedOnRanks(s *ranks.Session, o *verifyFlags, plan *verifyPlan) (w ranksWork, err error) {
	list, err := a.verifyProblems(plan, attention.On(s.Device), 0, s.Rank() == 0)
	if err != nil {
		return w, err
	}
	for _, x := range list {
		if x.Seqs != nil || x.Name != "" { // a call with options
			continue
		}
		p := bench.Problem{Shape: x.Shape, Config: attention.Config(x.Config(cases.On(attention.TierAuto, x.dtype)))}
		if plan.backward {
			p.Pass = bench.PassBackward
		}
		w.problems = append(w.problems, p)
	}
	w.tiers = plan.tiers
	if len(w.tiers) == 0 {
		w.tiers = availableTiers(s.Device)
	}
	w.row = func(ctx context.Context, x bench.Problem, tier attention.Tier, mode ranks.Mode, seed uint64) (*ranks.Row, error) {
		return ranks.Verify(ctx, s, x, tier, mode, o.times, seed)
	}
	return w, nil
}

// rowsOnRanks makes the rows of a command and prints them on rank 0, which saves the files of --save. After an error,
// which it returns, the finished rows are printed and saved.
func (a *app) rowsOnRanks(ctx context.Context, s *ranks.Session, p *ranksPlan, o *benchFlags, plan *benchPlan,
	set *atomicfile.Set, work workOf) (*ranksOutcome, error) {
	w, err := work(s)
	if err != nil {
		return nil, err
	}
	seed, err := s.Agree(ctx, o.seed, fmt.Sprint(w.problems, w.tiers))
	if err != nil {
		return nil, err
	}
	info := runInfo(attention.On(s.Device), seed)
	info.Suite, info.Wide = o.suite, o.wide
	var printers []bench.Printer[*ranks.Row]
	if s.Rank() == 0 {
		planned := ranks.Planned(s, w.problems, w.tiers, p.modes, seed)
		printer := func(f bench.Format, to io.Writer) bench.Printer[*ranks.Row] {
			return ranks.NewPrinter(f, to, info, w.timed, planned)
		}
		if printers, err = openSaved(set, plan.saved, printer); err != nil {
			return nil, err
		}
		printers = append(printers, printer(plan.format, a.stdout))
	}
	out, all := bench.Printers(printers...), &ranksOutcome{}
	err = all.rowsOf(ctx, w, p.modes, seed, out)
	switch {
	case ctx.Err() != nil:
		info.Stopped, err = stopReason(ctx.Err()), ctx.Err()
	case err != nil:
		info.Stopped = flagtext.OneLine(err.Error())
	}
	if all.Rows > 0 || err == nil {
		err = errors.Join(err, out.Close(info), commitRows(ctx, set, all.Rows))
	}
	if s.Rank() == 0 {
		count := ""
		if !w.timed {
			count = flagtext.Count(len(w.problems), "problem") + ", "
		}
		fmt.Fprintf(a.stderr, "%s%s, %s, transport %v, seed %d\n", count, flagtext.Count(all.Rows, "row"),
			flagtext.Count(s.Ranks(), "rank"), s.Transport, seed)
	}
	return all, err
}

// ranksOutcome counts rows.
type ranksOutcome struct{ bench.Tally }

// rowsOf makes and prints the rows until one of them ends the run.
func (o *ranksOutcome) rowsOf(ctx context.Context, w ranksWork, modes []ranks.Mode, seed uint64, out bench.Printer[*ranks.Row]) error {
	for _, x := range w.problems {
		for _, tier := range w.tiers {
			for _, mode := range modes {
				if err := ctx.Err(); err != nil {
					return err
				}
				r, _, err := patiently(ctx, func() (*ranks.Row, error) { return w.row(ctx, x, tier, mode, seed) })
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
