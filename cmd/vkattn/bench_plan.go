package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/cmd/vkattn/internal/sweep"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// benchPlan holds the parsed flags of a command that takes sweeps.
type benchPlan struct {
	suites    []*bench.Suite
	presets   []*bench.Preset
	lists     bench.Sweep      // of the axes that were given
	tiers     []attention.Tier // empty: chosen for the device
	allTiers  bool             // --tier all
	kernels   []string         // families of tier cuda
	variants  []int
	ablations []problem.Ablation
	baselines []bench.Baseline // nil: as the suites say
	format    bench.Format
	saved     []saved
	small     bool // suites that shrink do
	shrunk    bool // one did
	onePass   bool // the command has no rows of several passes: suites choose none
}

// plan parses the flags of a command that prints in the given formats. It needs no device.
func (o *benchFlags) plan(formats []bench.Format) (*benchPlan, error) {
	p := &benchPlan{onePass: o.onePass}
	variants := o.variant
	if strings.EqualFold(variants, "all") {
		variants = "v1,v2,v3,v4,v5,v6,v7,v8"
	}
	tiers := o.tier
	p.allTiers = strings.EqualFold(tiers, "all")
	if p.allTiers {
		tiers = ""
	}
	var err error
	if p.format, err = bench.ParseFormat(o.format, formats); err != nil {
		return nil, badInputf("-o: %w", err)
	}
	if p.saved, err = parseSaved(o.save, formats); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		flag string
		err  error
	}{
		{"tier", words(&p.tiers, tiers, oneOf(o.takesTiers, attention.ParseTier))},
		{"cuda-kernel", words(&p.kernels, o.kernels, parseCUDAKernel)},
		{"suite", words(&p.suites, o.suite, func(name string) (*bench.Suite, error) { return bench.ParseSuite(name) })},
		{"preset", words(&p.presets, o.preset, bench.ParsePreset)},
		{"variant", words(&p.variants, variants, bench.ParseVariant)},
		{"ablate", words(&p.ablations, o.ablate, problem.ParseAblation)},
		{"against", against(&p.baselines, o.baselines)},
	} {
		if f.err != nil {
			return nil, badInputf("--%s: %w", f.flag, f.err)
		}
	}
	if !o.takesCeilings && slices.ContainsFunc(p.suites, (*bench.Suite).IsCeilings) {
		return nil, badInputf("--suite ceilings: only vkattn bench measures it")
	}
	for _, tile := range o.tile {
		if err := plan.CheckTile(tile); err != nil {
			return nil, badInputf("--tile: %w", err)
		}
	}
	for _, tiles := range o.tiles {
		if err := plan.CheckBackwardTiles(tiles); err != nil {
			return nil, badInputf("--bwd-tile: %w", err)
		}
	}
	if err := cmp.Or(excludes(o.changed, "tile", "bwd-tile"), excludes(o.changed, "preset", "suite")); err != nil {
		return nil, err
	}
	if err := o.readLists(p); err != nil {
		return nil, err
	}
	// Refuse a sweep that is too large or impossible before a device is opened.
	_, err = p.problems(p.neutral())
	return p, err
}

// vulkanTiers have dispatches and tiles. For tune, TierAuto is TierNoCUDA.
var vulkanTiers = []attention.Tier{attention.TierAuto, attention.TierNoCUDA, attention.TierScalar, attention.TierCoopMat, attention.TierCoopMat2}

// oneOf is parse for a command that takes some of the values only. nil: it takes all.
func oneOf[T interface {
	comparable
	fmt.Stringer
}](some []T, parse func(string) (T, error)) func(string) (T, error) {
	if some == nil {
		return parse
	}
	return func(text string) (T, error) {
		x, err := parse(text)
		if err != nil || !slices.Contains(some, x) {
			return x, fmt.Errorf("%q is none of %s", text, commas(some))
		}
		return x, nil
	}
}

// against parses the list of baselines; "none" leaves the baselines of the suites out.
func against(to *[]bench.Baseline, list string) error {
	if list == "none" {
		*to = []bench.Baseline{}
		return nil
	}
	return words(to, list, bench.ParseBaseline)
}

// words parses a list. An empty list leaves *to unchanged.
func words[T comparable](to *[]T, list string, parse func(string) (T, error)) (err error) {
	if list != "" {
		*to, err = sweep.Words(list, parse)
	}
	return err
}

// problems lists the problems of the suites that the given lists select. Without suites
// it is the cross product of the lists, or of the defaults for axes without a list.
// Storage types select nothing: a suite runs once in each.
func (p *benchPlan) problems(defaults bench.Sweep) ([]bench.Problem, error) {
	if len(p.presets) > 0 {
		return p.presetProblems()
	}
	if len(p.suites) == 0 {
		problems, err := defaults.With(p.lists).Problems()
		if err == nil {
			err = impossible(problems)
		}
		if err != nil {
			return nil, badInput(err)
		}
		return problems, nil
	}
	var out []bench.Problem
	var names []string
	for _, s := range p.suites {
		names = append(names, s.Name)
		passes := s.Passes
		if p.onePass {
			passes = nil
		}
		list := s.Problems(s.Types(bench.ListOf[attention.DType](p.lists, "dtype")))
		if p.small && s.Shrinks && !p.lists.Narrows() {
			list, p.shrunk = bench.Shrink(list), true
		}
		list, err := p.lists.OfSuite(list, passes)
		if err != nil {
			return nil, badInput(err)
		}
		out = sweep.Union(out, list...)
	}
	if len(out) == 0 {
		return nil, badInputf("--suite %s: the other flags select no problem of it", strings.Join(names, ","))
	}
	return out, nil
}

// impossible returns the error of a value that no problem of a sweep can have. A value that
// some can have is a row where it cannot. So is a problem of any size.
func impossible(list []bench.Problem) error {
	wrong := make([]error, len(list))
	for i := range list {
		var size *attention.ShapeError
		wrong[i] = list[i].Shape.Validate()
		if wrong[i] == nil || errors.As(wrong[i], &size) && size.Field == "B*Hq*Sq" {
			wrong[i] = list[i].Config.Validate()
		}
	}
	return bench.Impossible(list, wrong)
}

// withoutOptions lists the problems that a command can run, each once. If tell is set, it prints why and
// how many it leaves out. It refuses a list of which nothing is left.
func (a *app) withoutOptions(list []bench.Problem, tell bool, why string, can func(bench.Problem) bool) (out []bench.Problem, err error) {
	left := 0
	for _, p := range list {
		if p.Ceiling != "" || !can(p) {
			left++
		} else if p = (bench.Problem{Shape: p.Shape, Config: p.Config, Pass: p.Pass, LSE: p.LSE, Options: bench.Options{Tables: p.Tables}}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, badInputf("all %d problems are left out: %s", left, why)
	}
	if left > 0 && tell {
		fmt.Fprintf(a.stderr, "vkattn: %d of %d problems are left out: %s\n", left, len(list), why)
	}
	return out, nil
}

// Why withoutOptions leaves problems out.
const (
	onlyBench = "they have options, which vkattn bench verifies on one device"
	notTuned  = "they have options, and such calls use the heuristic's tiles"
)

// denseCall reports whether a problem has no options.
func denseCall(p bench.Problem) bool { return p.Plain() && p.Config.FixedSplit == 0 }

// parseCUDAKernel parses the name of a kernel family of tier cuda.
func parseCUDAKernel(name string) (string, error) {
	return flagtext.Find("family", name, attention.CUDAKernels())
}

// availableTiers lists the tiers that run any storage type on a device. Without a device
// that is tier cpu.
func availableTiers(dev *vk.Device) (tiers []attention.Tier) {
	for _, s := range attention.TierReport(dev) {
		if s.Available && (s.Tier != attention.TierCPU || dev == nil) && !slices.Contains(tiers, s.Tier) {
			tiers = append(tiers, s.Tier)
		}
	}
	slices.Sort(tiers)
	return tiers
}

// chosenBaselines lists the baselines of --against, or else of the suites.
func (p *benchPlan) chosenBaselines() []bench.Baseline {
	return chosen(p, p.baselines, func(s *bench.Suite) []bench.Baseline { return s.Baselines })
}

// chosenAblations lists the ablations of --ablate, or else of the suites.
func (p *benchPlan) chosenAblations() []problem.Ablation {
	return chosen(p, p.ablations, func(s *bench.Suite) []problem.Ablation { return s.Ablations })
}

// chosen is the list of a flag, or if that was not given the lists of all suites.
func chosen[T comparable](p *benchPlan, given []T, of func(*bench.Suite) []T) (out []T) {
	if given != nil {
		return given
	}
	for _, s := range p.suites {
		out = sweep.Union(out, of(s)...)
	}
	return out
}

// named lists the rows without the ceilings that only --plot asked for.
func (p *benchPlan) named(rows []*bench.Row) []*bench.Row {
	if slices.ContainsFunc(p.suites, (*bench.Suite).IsCeilings) {
		return rows
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r *bench.Row) bool { return r.Ceiling != "" })
}

// ceilingsOnly reports whether no suite has problems of attention.
func (p *benchPlan) ceilingsOnly() bool {
	return len(p.suites) > 0 && !slices.ContainsFunc(p.suites, func(s *bench.Suite) bool { return !s.IsCeilings() })
}

// listOnly refuses flags that have no effect on --list.
func (o *benchFlags) listOnly(p *benchPlan) error {
	if p.format != "md" {
		return badInputf("--list prints Markdown: leave out -o %s", p.format)
	}
	return excludes(o.changed, "save plot monitor", "list")
}

// list prints the problems of the chosen presets and suites, or all presets and suites.
func (p *benchPlan) list(w io.Writer) error {
	if len(p.suites) > 0 || len(p.presets) > 0 {
		problems, err := p.problems(bench.Sweep{})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, shapes(problems))
		return err
	}
	var problems []bench.Problem
	for _, s := range bench.Presets {
		list, err := s.With(nil)
		if err != nil {
			return err
		}
		problems = append(problems, list...)
	}
	about := markdown.Of(bench.Presets, true, []markdown.Column[*bench.Preset]{
		{Title: "preset<", Cell: func(s *bench.Preset) any { return s.Name }}, {Title: "what it is<", Cell: func(s *bench.Preset) any { return s.About }}})
	suites := markdown.Of(bench.Suites, true, []markdown.Column[*bench.Suite]{
		{Title: "suite<", Cell: func(s *bench.Suite) any { return s.Name }},
		{Title: "problems", Cell: func(s *bench.Suite) any { return len(s.Problems(s.Types(nil))) }},
		{Title: "what it is<", Cell: func(s *bench.Suite) any { return s.About }}})
	_, err := fmt.Fprintf(w, "Presets (--preset LIST). Lists and options on the command line replace those of a preset.\n\n%v\n\n%v\n\nSuites (--suite LIST). Lists select problems of a suite.\n\n%v\n",
		about, shapes(problems), suites)
	return err
}

// shapes is a table of problems.
func shapes(list []bench.Problem) string {
	rows := (&bench.Bench{Specs: []bench.Spec{{}}}).Planned(list)
	columns := bench.ProblemColumns(rows, false, func(r *bench.Row) *bench.Row { return r })
	last := &columns[len(columns)-1] // the tier
	*last = markdown.Column[*bench.Row]{Title: "layers", Cell: markdown.If(func(r *bench.Row) bool { return r.Layers > 0 },
		func(r *bench.Row) any { return r.Layers })}
	columns[0].Cell = func(r *bench.Row) any {
		if r.Ceiling != "" {
			return r.Problem()
		}
		return r.Line
	}
	return markdown.Of(rows, false, columns)
}

// presetProblems are the problems of the presets. Lists and options of the command line
// replace a preset's own.
func (p *benchPlan) presetProblems() (out []bench.Problem, err error) {
	for _, s := range p.presets {
		list, err := s.With(p.lists)
		if err == nil {
			err = impossible(list)
		}
		if err != nil {
			return nil, badInput(err)
		}
		out = sweep.Union(out, list...)
	}
	return out, nil
}
