package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/compare"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/results"
)

// compareFlags are the flags of `vkattn compare`.
type compareFlags struct {
	compare.Options
	format string
}

func (a *app) compareCommand() *cobra.Command {
	var o compareFlags
	c := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "tell which rows of two benchmarks differ in speed",
		Long: `Compares two files of "vkattn bench --save FILE.json" (or .jsonl, also gzipped), row by
row. Rows match if tier, variant, pass, problem and options are equal.

The ratio is the new median time divided by the old: above 1 the row is slower. p is the
result of the Mann-Whitney U test. vkattn help columns defines every column.

  same       the whole interval is within the threshold
  faster     the ratio is below 1 by more than the threshold, the interval does not
             contain 1, and p < 0.05
  slower     the ratio is above 1, with the same conditions
  ambiguous  none of these: measure again with more runs or a lower --max-noise
  broken     the old row has a speed and the new one has none

A row that is damaged or has an impossible time, such as 0 ms, is left out with a line on
standard error.

Exit codes: 0 no regression, 1 a row is slower or broken, 2 bad flags or files, or a
row that only one of the files has.`,
		Example: `  vkattn bench --preset llama3-8b --save old.json
  vkattn bench --preset llama3-8b --save new.json
  vkattn compare old.json new.json --fail-over 5%`,
		Args: wantWords("compare takes two files, OLD and NEW,", 2),
		RunE: func(_ *cobra.Command, args []string) error { return a.compare(args[0], args[1], &o) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) < 2 {
				return []string{"json", "jsonl", "gz"}, cobra.ShellCompDirectiveFilterFileExt
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.Var(percentFlag(&o.Threshold), "threshold", "the smallest change that counts as faster or slower, as a `percentage` (default 2%)")
	f.Var(percentFlag(&o.FailOver), "fail-over",
		"exit with 1 only for rows that are slower by more than this `percentage` (default: for every slower row)")
	f.BoolVar(&o.Subset, "subset", false, "allow rows that only OLD has")
	f.StringVarP(&o.format, "output", "o", "md", "md or json")
	f.BoolVar(&o.Wide, "wide", false, wideUsage)
	return c
}

// wantWords refuses another number of arguments.
func wantWords(what string, n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return badInputf("%s not %d", what, len(args))
		}
		return nil
	}
}

// savedRows reads the rows that a benchmark saved.
func (a *app) savedRows(path string) ([]*bench.Row, error) {
	f, err := results.ReadFile(path)
	a.saySkipped(f)
	return f.Bench(), err
}

// saySkipped prints a line on each row of the files that is left out.
func (a *app) saySkipped(files ...results.File) {
	for _, f := range files {
		for _, why := range f.Skipped {
			fmt.Fprintf(a.stderr, "%s%s: left out: %s\n", errorPrefix, f.Path, flagtext.OneLine(why))
		}
	}
}

func (a *app) compare(old, current string, o *compareFlags) error {
	format, err := bench.ParseFormat(o.format, []bench.Format{"md", "json"})
	if err != nil {
		return badInputf("-o: %w", err)
	}
	before, err := a.savedRows(old)
	if err != nil {
		return badInput(err)
	}
	after, err := a.savedRows(current)
	if err != nil {
		return badInput(err)
	}
	report := compare.Runs(before, after, o.Options)
	if format == "json" {
		err = bench.WriteJSON(a.stdout, report)
	} else {
		err = report.Print(a.stdout)
	}
	if err != nil {
		return err
	}
	return compared(report)
}

// compared is the error of a comparison that found a regression, or rows without a match.
func compared(r *compare.Report) error {
	switch n := r.Regressions(); {
	case n > 0:
		return fmt.Errorf("%d of %d rows are slower or broken", n, len(r.Pairs))
	case len(r.Pairs) == 0 && r.Unmatched() == 0:
		return badInputf("no row has a speed in either run")
	case len(r.Pairs) == 0:
		return badInputf("no row is in both runs")
	case r.Unmatched() > 0:
		if r.Unmatched() == 1 {
			return badInputf("1 row is in one run only")
		}
		return badInputf("%d rows are in one run only", r.Unmatched())
	}
	return nil
}

// compareWith compares the rows of a benchmark with the rows of --baseline. The table
// follows a Markdown table; with other formats it goes to standard error.
func (a *app) compareWith(baseline []*bench.Row, path string, rows []*bench.Row, f bench.Format) error {
	report := compare.Runs(baseline, rows, compare.Options{Subset: true})
	var w io.Writer = a.stderr
	if f == "md" {
		w = a.stdout
	}
	if _, err := fmt.Fprintf(w, "\ncompared with %s:\n\n", filepath.Base(path)); err != nil {
		return err
	}
	if err := report.Print(w); err != nil {
		return err
	}
	return compared(report)
}
