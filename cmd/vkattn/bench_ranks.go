package main

import (
	"context"
	"fmt"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/outfile"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/vk"
)

// checkRanks refuses flags of bench that several ranks do not have.
func (o *benchFlags) checkRanks() (*benchPlan, error) {
	plan, err := o.plan(ranks.Formats)
	if err != nil {
		return nil, err
	}
	for _, x := range []struct {
		flag  string
		given bool
	}{
		{"peer", len(o.peers) > 0}, {"against", o.baselines != ""}, {"variant", len(plan.variants) > 0}, {"ablate", len(plan.ablations) > 0},
		{"cuda-kernel", len(plan.kernels) > 0}, {"plot", len(o.plots) > 0}, {"monitor", o.monitor != ""}, {"baseline", o.baseline != ""}, {"list", o.list},
		{"tile", len(o.tile) > 0}, {"bwd-tile", len(o.tiles) > 0}, {"min-time", o.timing.MinTime != 0}, {"max-noise", o.timing.MaxNoise != 0},
		{"timeout", o.timing.Timeout != 0}, {"delay", o.timing.Delay != 0}, {"warm-cache", o.timing.WarmCache}, {"wide", o.wide},
	} {
		if x.given {
			return nil, badInputf("--%s and --ranks exclude one another", x.flag)
		}
	}
	for _, axis := range bench.Axes {
		if !axis.OnRanks() && len(plan.lists[axis.Flag]) > 0 {
			return nil, badInputf("--%s and --ranks exclude one another", axis.Flag)
		}
	}
	return plan, nil
}

// ranksSweep is the sweep of `vkattn bench --ranks` without lists and suites.
func ranksSweep(dev *vk.Device) bench.Sweep {
	if dev == nil || dev.Info().Type == vk.DeviceCPU {
		return bench.Lists("batch-size=1 nheads=4 seqlen=512 headdim=64 causal=none,bottom-right")
	}
	return bench.Lists("batch-size=1 nheads=32 nheads-kv=8 seqlen=65536 headdim=128 causal=none,bottom-right")
}

func (o *benchFlags) alone(ctx context.Context, a *app) error { return a.bench(ctx, o) }

func (o *benchFlags) admit() ([]saved, error) {
	plan, err := o.checkRanks()
	if err != nil {
		return nil, err
	}
	return plan.saved, nil
}

// rank is `vkattn bench --ranks` of a rank.
func (o *benchFlags) rank(ctx context.Context, a *app, p *ranksPlan) error {
	plan, err := o.checkRanks()
	if err != nil {
		return err
	}
	return a.onSession(ctx, p, o.device, plan.tiers, plan.allTiers, func(s *ranks.Session, set *outfile.Set) (*ranksOutcome, error) {
		return a.timeRanks(ctx, s, o, plan, p, set)
	})
}

// timeRanks times the rows and prints them on rank 0.
func (a *app) timeRanks(ctx context.Context, s *ranks.Session, o *benchFlags, plan *benchPlan, p *ranksPlan, set *outfile.Set) (*ranksOutcome, error) {
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
		return x.Options == (bench.Options{}) && x.Config.KV == attention.KVSame
	})
	if err != nil {
		return nil, err
	}
	seed, err := s.Agree(ctx, o.seed, fmt.Sprint(list, tiers))
	if err != nil {
		return nil, err
	}
	out, info, err := a.ranksPrinter(s, plan, set, seed, true)
	if err != nil {
		return nil, err
	}
	info.Suite = o.suite
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
	err = a.closeRanks(ctx, s, out, info, set, all, err)
	if s.Rank() == 0 {
		fmt.Fprintf(a.stderr, "%s, %s, transport %v, seed %d\n", flagtext.Count(all.Rows, "row"), flagtext.Count(s.Ranks(), "rank"), s.Transport, seed)
	}
	return all, err
}
