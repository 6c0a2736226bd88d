package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
)

// axisTexts are the values of the flags of bench.Axes, not parsed yet.
type axisTexts map[string]string

// add adds the flag of an axis.
func (t axisTexts) add(f *pflag.FlagSet, a *bench.Axis) {
	if a.Usage != "" {
		f.Var(axisFlag{t, a}, a.Flag, a.Usage)
		f.Lookup(a.Flag).NoOptDefVal = a.Alone
	}
}

// axisFlag is the flag of an axis.
type axisFlag struct {
	texts axisTexts
	axis  *bench.Axis
}

func (v axisFlag) String() string {
	if v.axis == nil { // pflag asks a zero value
		return ""
	}
	return v.texts[v.axis.Flag]
}

func (v axisFlag) Set(text string) error {
	v.texts[v.axis.Flag] = text
	return nil
}

// Type is the name of the value in a help text.
func (v axisFlag) Type() string { return v.axis.Kind }

// parse parses the texts.
func (t axisTexts) parse() (bench.Sweep, error) {
	lists := bench.Sweep{}
	for _, a := range bench.Axes {
		text := t[a.Flag]
		if text == "" {
			continue
		}
		values, err := a.Parse(text)
		switch {
		case err != nil && a.Single && !strings.Contains(err.Error(), strconv.Quote(text)):
			return nil, badInputf("--%s %q: %w", a.Flag, text, err)
		case err != nil:
			return nil, badInputf("--%s: %w", a.Flag, err)
		}
		lists[a.Flag] = values
	}
	return lists, nil
}

// readLists parses the flags of the axes into the plan and refuses those that would have no effect.
func (o *benchFlags) readLists(p *benchPlan) (err error) {
	var passes []bench.Pass
	if err := words(&passes, o.lists["pass"], oneOf(o.takesPasses, bench.ParsePass)); err != nil {
		return badInputf("--pass: %w", err)
	}
	if p.lists, err = o.lists.parse(); err != nil {
		return err
	}
	s := p.lists
	block, alone := bench.ListOf[[2]int](s, "block-size"), len(p.suites) == 0
	switch {
	case s.Some("lse") && len(s["pass"]) > 0 && !slices.Contains(s["pass"], any(bench.PassForward)):
		return badInputf("--lse needs --pass fwd: rows of the other passes always have LSE")
	case len(s["padded"]) > 0 && len(s["varlen"]) == 0:
		return badInputf("--padded needs --varlen")
	case s.Some("kv-layout") && !s.Some("page-size") && alone:
		return badInputf("--kv-layout needs --page-size")
	case len(block) > 0 && !s.Some("block-ratio"):
		return badInputf("--block-size needs --block-ratio")
	case len(block) > 0 && !(powerFrom16(block[0][0]) && powerFrom16(block[0][1])):
		return badInputf("--block-size %d,%d: want powers of two, at least 16", block[0][0], block[0][1])
	case s.Some("align") && !s.Some("window") && !s.Some("alibi") && alone && len(p.presets) == 0:
		return badInputf("--align needs --window or --alibi")
	case !alone && s.NotInSuites() != "":
		return badInputf("--%s does not narrow a suite: leave out one of them", s.NotInSuites())
	case len(s["varlen"]) == 0:
		return nil
	}
	rows := 0
	switch lengths := bench.ListOf[int](s, "seqlen"); {
	case len(s["batch-size"]) > 0:
		return badInputf("--batch-size and --varlen exclude one another: the sequences are counted")
	case len(s["seqlen-k"]) > 0:
		return badInputf("--seqlen-k and --varlen exclude one another")
	case len(lengths) > 1:
		return badInputf("--seqlen: with --varlen give one number, the rows of each sequence")
	case len(lengths) == 1:
		rows = lengths[0]
	}
	lengths, err := bench.ParseLengths(o.lists["varlen"], rows)
	if err != nil {
		return badInputf("--varlen: %w", err)
	}
	s["varlen"] = []any{lengths}
	return nil
}

// neutral returns values for the axes without a list with which the lists are possible if they are with any.
func (p *benchPlan) neutral() bench.Sweep {
	s := bench.Defaults(nil)
	s["seqlen"], s["headdim"] = s["seqlen"][:1], s["headdim"][:1]
	if list := p.lists["nheads-kv"]; len(list) > 0 {
		s["nheads"] = list
	}
	wide := slices.DeleteFunc(slices.Clone(p.lists["headdim-v"]),
		func(v any) bool { return v.(int) <= attention.MaxHeadDim })
	if len(wide) < len(p.lists["headdim-v"]) || len(wide) == 0 { // else none is possible with the first
		wide = append(wide, s["headdim"]...)
	}
	s["headdim"] = wide
	return s
}

// parsed is the value of a flag that parse reads, "" if it is zero.
type parsed[T comparable] struct {
	to    *T
	parse func(string) (T, error)
	kind  string // in help texts
	print func(T) string
}

func (v parsed[T]) String() string {
	var zero T
	switch {
	case v.to == nil: // pflag asks a zero value
		return ""
	case v.print != nil:
		return v.print(*v.to)
	case *v.to == zero:
		return ""
	}
	return fmt.Sprint(*v.to)
}

func (v parsed[T]) Set(text string) (err error) {
	x, err := v.parse(text)
	if err == nil {
		*v.to = x
	}
	return err
}

// Type is the name of the value in a help text.
func (v parsed[T]) Type() string { return v.kind }
