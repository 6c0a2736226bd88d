package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/sweep"
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
	if before := v.texts[v.axis.Flag]; v.axis.Repeats && before != "" {
		text = before + "," + text
	}
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
		values, err := a.Parse(text, lists)
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
	modified := s.Some("score-mod") || s.Some("mask-mod")
	if err := cmp.Or(unread(s), needs(o.changed, "padded", "varlen"), excludes(o.changed, "batch-size seqlen-k", "varlen")); err != nil {
		return err
	}
	block, alone := bench.ListOf[[2]int](s, "block-size"), len(p.suites) == 0
	switch {
	case s.Some("lse") && len(s["pass"]) > 0 && !slices.Contains(s["pass"], any(bench.PassForward)):
		return badInputf("--lse needs --pass fwd: rows of the other passes always have LSE")
	case s.Some("shared-kv") && (s.Some("k-dtype") || s.Some("v-dtype")):
		return badInputf("--shared-kv has one type of K and V: give --kv-dtype")
	case s.Some("kv-layout") && !s.Some("page-size") && alone:
		return badInputf("--kv-layout needs --page-size")
	case len(block) > 0 && !s.Some("block-ratio"):
		return badInputf("--block-size needs --block-ratio")
	case len(block) > 0 && !(powerFrom16(block[0][0]) && powerFrom16(block[0][1])):
		return badInputf("--block-size %d,%d: want powers of two, at least 16", block[0][0], block[0][1])
	case s.Some("align") && !s.Some("window") && !s.Some("alibi") && !modified && alone && len(p.presets) == 0:
		return badInputf("--align needs --window, --alibi, --score-mod or --mask-mod")
	case !alone && s.NotInSuites() != "":
		return badInputf("--%s does not narrow a suite: leave out one of them", s.NotInSuites())
	case len(s["varlen"]) == 0:
		return nil
	}
	rows := 0
	switch lengths := bench.ListOf[int](s, "seqlen"); {
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

// needs refuses those of some flags that are given without another.
func needs(given func(string) bool, flags, other string) error {
	for flag := range strings.FieldsSeq(flags) {
		if given(flag) && !given(other) {
			return badInputf("--%s needs --%s", flag, other)
		}
	}
	return nil
}

// excludes refuses those of some flags that are given with another.
func excludes(given func(string) bool, flags, other string) error {
	for flag := range strings.FieldsSeq(flags) {
		if given(flag) && given(other) {
			return badInputf("--%s and --%s exclude one another", flag, other)
		}
	}
	return nil
}

// unread refuses a table that no modifier reads.
func unread(s bench.Sweep) error {
	var modifiers []score.Expr
	for _, flag := range []string{"score-mod", "mask-mod"} {
		modifiers = append(modifiers, bench.ListOf[score.Expr](s, flag)...)
	}
	read, err := score.TablesOf(modifiers...)
	if err != nil {
		return badInput(err)
	}
	for _, tables := range bench.ListOf[bench.Tables](s, "table") {
		names, _ := tables.Names()
		for _, name := range names {
			if !slices.ContainsFunc(read, func(t score.Table) bool { return t.Name() == name }) {
				return badInputf("--table %s: neither --score-mod nor --mask-mod reads it", name)
			}
		}
	}
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

// timingFlags are the flags of `vkattn bench` that say how often a row is timed.
type timingFlags struct{ bench.Timing }

func (t *timingFlags) add(f *pflag.FlagSet) {
	f.IntVarP(&t.Repeats, "repetitions", "r", 0, "timed runs of each row (default 30); after 2 s of them, 3 are enough")
	f.DurationVar(&t.MinTime, "min-time", 0, "time each row for at least this long, e.g. 2s")
	f.Var(percentFlag(&t.MaxNoise), "max-noise", "time each row until +- is at most this `percentage`, e.g. 0.5%; the 95 % interval of its median is then within it; a row that stays wider ends after a minute of runs")
	f.DurationVar(&t.Warmup, "warmup", bench.DefaultWarmup, "least time of unrecorded runs before the timed runs; 50ms on a CPU unless set; on a GPU they go on for 3s at most until its clock is up; 0: none")
	f.DurationVar(&t.Timeout, "timeout", 0, "end each row after this long, with the runs that it has by then; a device that finishes no run for 3s more hangs: the finished rows are printed and saved, and the exit code is 4 (default: no limit)")
	f.DurationVar(&t.Delay, "delay", 0, "pause before each problem, for a device that gets hot, e.g. 2s")
	f.BoolVar(&t.WarmCache, "warm-cache", false, "use the same inputs in all runs, so that caches may hold them (default: rotate through inputs larger than the last-level cache)")
	f.BoolVar(&t.Once, "run-once", false, "run each row only twice, once to verify and once to time it, without warm-up: for a profiler")
}

// check completes the flags and refuses values out of range.
func (t *timingFlags) check(f *pflag.FlagSet) error {
	if t.Repeats < 0 || t.Repeats > bench.MaxRepeats || f.Changed("repetitions") && t.Repeats == 0 {
		return badInputf("-r %d: want a positive number up to %d", t.Repeats, bench.MaxRepeats)
	}
	for _, d := range []struct {
		flag string
		time time.Duration
	}{{"min-time", t.MinTime}, {"warmup", t.Warmup}, {"delay", t.Delay}} {
		if d.time < 0 {
			return badInputf("--%s %v: want a duration of 0 or more", d.flag, d.time)
		}
	}
	if err := checkTimeout(f, t.Timeout); err != nil {
		return err
	}
	if err := excludes(f.Changed, "repetitions min-time max-noise warmup", "run-once"); err != nil {
		return err
	}
	switch {
	case !f.Changed("warmup"):
		t.Warmup = 0
	case t.Warmup == 0:
		t.Warmup = -1
	}
	return nil
}

// addTimeout adds the flag --timeout of a command whose rows have no time of their own. ends says what the
// command does then.
func addTimeout(f *pflag.FlagSet, to *time.Duration, ends string) {
	f.DurationVar(to, "timeout", 0,
		"a device that finishes no run for this long hangs; the command "+ends+" with exit code 4 (default: no limit)")
}

func checkTimeout(f *pflag.FlagSet, timeout time.Duration) error {
	if timeout < 0 || f.Changed("timeout") && timeout == 0 {
		return badInputf("--timeout %v: want a positive duration", timeout)
	}
	return nil
}

// percentFlag is a flag with a share above 0 and below 1 as a percentage.
func percentFlag(to *float64) pflag.Value {
	return parsed[float64]{to: to, parse: sweep.Percentage, kind: "percentage", print: func(share float64) string {
		if share == 0 {
			return ""
		}
		return strconv.FormatFloat(100*share, 'g', 6, 64) + "%"
	}}
}
