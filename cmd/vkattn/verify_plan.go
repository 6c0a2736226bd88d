package main

import (
	"regexp"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/internal/cases"
)

// verifyPlan holds the parsed flags of `vkattn verify`.
type verifyPlan struct {
	*benchPlan
	table    bool // the conformance table or that of options
	options  bool // that of options
	backward bool // gradients
	only     *regexp.Regexp
}

func (o *verifyFlags) plan() (*verifyPlan, error) {
	p := &verifyPlan{table: o.suite == conformance || o.suite == options, options: o.suite == options}
	b := o.benchFlags
	b.onePass, b.takesPasses = true, []bench.Pass{bench.PassForward, bench.PassBackward}
	if p.table {
		b.suite = ""
	}
	for _, name := range strings.FieldsFunc(b.suite, func(r rune) bool { return r == ',' || r == ' ' }) {
		if name == conformance || name == options {
			return nil, badInputf("--suite %s stands alone", name)
		}
		if _, err := bench.ParseSuite(name, conformance, options); err != nil {
			return nil, badInputf("--suite: %w", err)
		}
	}
	var err error
	if p.benchPlan, err = b.plan(verify.Formats); err != nil {
		return nil, err
	}
	switch list := bench.ListOf[bench.Pass](p.lists, "pass"); {
	case len(list) > 1:
		return nil, badInputf("--pass %s: want fwd or bwd", o.lists["pass"])
	case len(list) == 1:
		p.backward = list[0] == bench.PassBackward
		delete(p.lists, "pass")
	}
	if o.times < 1 || o.times > bench.MaxRepeats {
		return nil, badInputf("--repeat %d: want a positive number up to %d", o.times, bench.MaxRepeats)
	}
	for _, tier := range p.tiers {
		if tier.Auto() {
			return nil, badInputf("--tier %v: name the tiers; without --tier verify runs all of them", tier)
		}
	}
	if o.only != "" && !p.table {
		return nil, badInputf("--case needs --suite %s or %s", conformance, options)
	}
	if p.options && !p.backward {
		return nil, badInputf("--suite %s needs --pass bwd", options)
	}
	for _, axis := range bench.Axes {
		if p.table && axis.Verified() && len(p.lists[axis.Flag]) > 0 {
			return nil, badInputf("--%s does not narrow a suite: leave out one of them", axis.Flag)
		}
	}
	if p.only, err = regexp.Compile(o.only); err != nil {
		return nil, badInputf("--case: %w", err)
	}
	return p, nil
}

// verifyProblem is one problem in one storage type.
type verifyProblem struct {
	cases.Case
	dtype attention.DType
}

// verifyDefaults is the sweep of `vkattn verify` without lists and suites.
func verifyDefaults(dev *attention.Device) bench.Sweep {
	if bench.OnCPU(dev) {
		return bench.Lists("batch-size=1 nheads=4 nheads-kv=2 seqlen=100 seqlen-k=300 headdim=64 causal=none,bottom-right dtype=f16,bf16")
	}
	return bench.Lists("batch-size=4 nheads=8 nheads-kv=2 seqlen=1000,4096 seqlen-k=4096 headdim=64,128 causal=none,bottom-right dtype=f16,bf16")
}

// verifyProblems lists the problems that the flags select. Problems with options are left out; if
// tell is set, it prints how many.
func (a *app) verifyProblems(p *verifyPlan, dev *attention.Device, seed uint64, tell bool) ([]verifyProblem, error) {
	if p.table {
		return p.conformance(dev)
	}
	defaults := verifyDefaults(dev)
	if len(p.lists["nheads"]) > 0 {
		delete(defaults, "nheads-kv") // as --nheads
	}
	if len(p.lists["seqlen"]) > 0 {
		delete(defaults, "seqlen-k") // as --seqlen
	}
	list, err := p.problems(defaults)
	if err == nil {
		list, err = a.withoutOptions(list, tell, onlyBench, verifiedCall)
	}
	if err != nil {
		return nil, err
	}
	var out []verifyProblem
	for _, x := range list {
		if err := x.Shape.Validate(); err != nil {
			return nil, err
		}
		if err := x.Config.Validate(); err != nil {
			return nil, err
		}
		c := cases.Case{D: x.Config.HeadDim, Dv: x.Config.ValueDim(), Causal: x.Config.Causal, Align: x.Config.Align, Shape: x.Shape,
			LSE: true, Seed: seed}
		if x.Modified() {
			c.Modifiers = &cases.Modifiers{Score: x.Config.ScoreMod, Mask: x.Config.MaskMod, Tables: x.Tables.Memory(seed)}
		}
		out = append(out, verifyProblem{c, x.Config.DType})
	}
	return out, nil
}

// verifiedCall reports whether a problem has no options but modifiers.
func verifiedCall(p bench.Problem) bool {
	p.Config.ScoreMod, p.Config.MaskMod, p.Tables = score.Expr{}, score.Expr{}, ""
	return denseCall(p)
}

// conformance lists the cases of the conformance table, or of that of options, that the flags select. On a
// driver that runs on the CPU it is a subset of the table that compiles in minutes; --case
// selects from the whole table.
func (p *verifyPlan) conformance(dev *attention.Device) (out []verifyProblem, err error) {
	dtypes := bench.ListOf[attention.DType](p.lists, "dtype")
	if len(dtypes) == 0 {
		dtypes = attention.DTypes()
	}
	for _, dtype := range dtypes {
		list := cases.All()
		if p.options {
			list = cases.AllOptions()
		} else if p.only.String() == "" && bench.OnCPU(dev) {
			list = slices.Concat(cases.Brief(int(dtype)), cases.Notable())
		}
		for _, c := range list {
			problem := bench.Problem{Shape: c.Shape, Config: attention.Config(c.Config(cases.On(0, dtype)))}
			if p.backward && !c.HasGradients() {
				continue
			}
			if p.lists.Has(problem) && p.only.MatchString(c.String()) {
				out = append(out, verifyProblem{c, dtype})
			}
		}
	}
	if len(out) == 0 {
		return nil, badInputf("--suite %s: the other flags select no problem of it",
			map[bool]string{false: conformance, true: options}[p.options])
	}
	return out, nil
}
