package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/markdown"
)

// listOnly refuses flags that have no effect on --list.
func (o *benchFlags) listOnly(p *benchPlan) error {
	if p.format != "md" {
		return badInputf("--list prints Markdown: leave out -o %s", p.format)
	}
	for _, f := range []struct {
		given bool
		flag  string
	}{{len(o.save) > 0, "save"}, {len(o.plots) > 0, "plot"}, {o.monitor != "", "monitor"}} {
		if f.given {
			return badInputf("--list runs nothing: leave out --%s", f.flag)
		}
	}
	return nil
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
	about := markdown.New("preset<", "what it is<")
	for _, s := range bench.Presets {
		list, err := s.With(nil)
		if err != nil {
			return err
		}
		problems = append(problems, list...)
		about.Row(s.Name, s.About)
	}
	suites := markdown.New("suite<", "problems", "types<", "passes<", "what it is<")
	for _, s := range bench.Suites {
		list := s.Problems(s.Types(nil))
		var types []string
		for _, q := range list {
			if t := q.Config.DType.String(); !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
		passes := []string{bench.PassForward.String()}
		for i, q := range s.Passes {
			passes = append(passes[:min(i, len(passes))], q.String())
		}
		suites.Row(s.Name, len(list), strings.Join(types, " "), strings.Join(passes, " "), s.About)
	}
	_, err := fmt.Fprintf(w, "Presets (--preset LIST). Lists and options on the command line replace the lists and options of a preset.\n\n%v\n\n%v\n\nSuites (--suite LIST). Lists select problems of a suite.\n\n%v\n",
		about, shapes(problems), suites)
	return err
}

// shapes is a table of problems.
func shapes(list []bench.Problem) string {
	m := markdown.New("name<", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal<", "dtype<", "pass<", "layers", "options<")
	for _, p := range list {
		layers := "-"
		if p.Layers > 0 {
			layers = strconv.Itoa(p.Layers)
		}
		s, c := p.Shape, p.Config
		if p.Ceiling != "" {
			m.Row(p.String(), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "")
			continue
		}
		m.Row(p.Line, s.B, s.Hq, s.KVHeads(), s.Sq, s.Sk, c.HeadDim, c.ValueDim(), c.Causal, c.DType, p.Pass, layers, p.OptionText())
	}
	return m.String()
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
		for _, q := range list {
			if !slices.Contains(out, q) {
				out = append(out, q)
			}
		}
	}
	return out, nil
}
