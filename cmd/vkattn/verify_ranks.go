package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/outfile"
	"vkattn/cmd/vkattn/internal/ranks"
)

// verifyRanks is `vkattn verify --ranks` of a rank.
func (a *app) verifyRanks(ctx context.Context, o *verifyFlags, p *ranksPlan) (err error) {
	plan, err := o.plan()
	switch {
	case err != nil:
		return err
	case plan.backward:
		return badInputf("--ranks verifies the forward pass only")
	}
	s, done, err := a.session(ctx, p, o.device, plan.tiers)
	if err != nil {
		return err
	}
	defer done()
	problems, tiers, seed, err := a.agreed(ctx, s, plan, o.seed)
	if err != nil {
		return errors.Join(err, s.Group.Close())
	}
	var set outfile.Set
	defer a.flushed(&set)()
	out, info, err := a.ranksPrinter(s, plan.benchPlan, &set, seed, false)
	if err != nil {
		return errors.Join(err, s.Group.Close())
	}
	info.Suite = o.suite
	var all ranksOutcome
	for _, x := range problems {
		for _, tier := range tiers {
			for _, mode := range p.modes {
				if err := ctx.Err(); err != nil {
					return errors.Join(err, s.Group.Close())
				}
				row, err := ranks.Verify(ctx, s, x, tier, mode, o.times, seed)
				if err != nil {
					return errors.Join(err, s.Group.Close())
				}
				all.add(row)
				if err := out.Row(row); err != nil {
					return err
				}
			}
		}
	}
	if err := errors.Join(out.Close(info), commitRows(ctx, &set, all.rows)); err != nil {
		return err
	}
	if err := s.Close(ctx); err != nil {
		return err
	}
	if s.Rank() == 0 {
		fmt.Fprintf(a.stderr, "%d problems, %d rows, %d ranks, transport %v, seed %d\n", len(problems), all.rows, s.Ranks(), s.Transport, seed)
	}
	return errors.Join(all.err(), validated(s.Device))
}

// agreed returns the problems, tiers and seed of rank 0 on every rank: devices may differ.
func (a *app) agreed(ctx context.Context, s *ranks.Session, plan *verifyPlan, seed uint64) ([]bench.Problem, []attention.Tier, uint64, error) {
	seeds, err := ranks.Gather(ctx, s, seed)
	if err != nil {
		return nil, nil, 0, err
	}
	list, err := plan.problems(s.Device, seeds[0])
	if err != nil {
		return nil, nil, 0, err
	}
	var problems []bench.Problem
	for _, x := range list {
		if x.Seqs != nil || x.Name != "" { // a call with options
			continue
		}
		config := x.Case.Config(cases.On(attention.TierAuto, x.dtype))
		problems = append(problems, bench.Problem{Shape: x.Case.Shape, Config: config})
	}
	tiers := plan.tiers
	if len(tiers) == 0 {
		tiers = availableTiers(s.Device)
	}
	names := ""
	for _, p := range problems {
		names += p.String() + ";"
	}
	all, err := ranks.Gather(ctx, s, fmt.Sprint(len(names), tiers))
	if err != nil {
		return nil, nil, 0, err
	}
	for r, x := range all {
		if x != all[0] {
			return nil, nil, 0, badInputf("rank %d has other problems or tiers than rank 0: name them with flags", r)
		}
	}
	return problems, tiers, seeds[0], nil
}

// ranksPrinter prints on rank 0 and saves the files of --save there.
func (a *app) ranksPrinter(s *ranks.Session, plan *benchPlan, set *outfile.Set, seed uint64, timed bool) (bench.Printer[*ranks.Row], *bench.RunInfo, error) {
	info := runInfo(s.Device, seed)
	if s.Rank() > 0 {
		return noPrinter{}, info, nil
	}
	printer := func(f bench.Format, w io.Writer) bench.Printer[*ranks.Row] {
		return ranks.NewPrinter(f, w, info, timed)
	}
	files, err := openSaved(set, plan.saved, printer)
	if err != nil {
		return nil, nil, err
	}
	return bench.Printers(append(files, printer(plan.format, a.stdout))...), info, nil
}

// ranksOutcome counts rows.
type ranksOutcome struct {
	rows, good, failed, broken, tooLarge int
	firstFailed, firstBroken, why        string
}

func (o *ranksOutcome) add(r *ranks.Row) {
	o.rows++
	text := r.Name()
	if note := r.Note(); note != "" {
		text += ": " + note
	}
	switch r.Status {
	case bench.OK:
		o.good++
	case bench.Fail:
		if o.failed++; o.firstFailed == "" {
			o.firstFailed = text
		}
	case bench.Broken:
		if o.broken++; o.firstBroken == "" {
			o.firstBroken = text
		}
	case bench.OOM:
		o.tooLarge++
		o.why = text
	default:
		o.why = text
	}
}

// err is the error for the exit code.
func (o *ranksOutcome) err() error {
	switch {
	case o.failed > 0:
		return fmt.Errorf("%d of %d rows are wrong: %s", o.failed, o.rows, o.firstFailed)
	case o.broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", o.broken, o.rows, o.firstBroken)}
	case o.good == 0 && o.rows > 0:
		return unsupportedf("no row is supported and fits the memory: %s", o.why)
	}
	return nil
}
