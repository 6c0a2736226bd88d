package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
)

// tuneDoc is the JSON of `vkattn tune -o json`.
type tuneDoc struct {
	Run  *bench.RunInfo `json:"run"`
	Rows []*tuneRow     `json:"rows"`
}

// tuneRow is the outcome of one problem on one tier.
type tuneRow struct {
	fields.Call
	LSE     bool                 `json:"lse"`
	Pass    bench.Pass           `json:"pass,omitzero"`
	Status  bench.Status         `json:"status"`
	Reason  string               `json:"reason,omitempty"` // why there is no report
	Report  attention.TuneReport `json:"report"`
	problem bench.Problem
}

// notStored says why a result was not stored.
func (r *tuneRow) notStored() string {
	for _, n := range r.Report.Notes {
		if why, ok := strings.CutPrefix(n, "not stored: "); ok {
			return why
		}
	}
	return "no reason was given"
}

// slower is by how many percent the heuristic's tile is slower than the winner.
func (r *tuneRow) slower() float64 { return 100 * (r.Report.Gain - 1) }

// best is the time of the winner.
func (r *tuneRow) best() float64 {
	i := slices.IndexFunc(r.Report.Candidates, func(c attention.TuneCandidate) bool { return c.Winner })
	return r.Report.Candidates[i].Ms
}

func newTuneRow(p bench.Problem, r attention.TuneReport) *tuneRow {
	return &tuneRow{Call: fields.Of(p.Shape, p.Config), LSE: p.LSE, Pass: p.Pass, Status: bench.OK, Report: r, problem: p}
}

// tunePrinter prints each report at once, with --check as a row of a table. JSON comes at the end.
type tunePrinter struct {
	w                      io.Writer
	json, check, all, wide bool
	stores                 bool // results must be stored
	tolerance              float64
	table                  *markdown.Table[*tuneRow] // of --check
	doc                    tuneDoc
}

// plan prepares the table of --check for rows.
func (p *tunePrinter) plan(rows []*tuneRow) {
	type column = markdown.Column[*tuneRow]
	timed := func(title string, room int, of func(*tuneRow) string) column {
		return markdown.Result(title, room, markdown.If(func(r *tuneRow) bool { return r.Report.Gain > 0 },
			func(r *tuneRow) any { return of(r) }))
	}
	columns := append(fields.Columns(rows, p.wide, func(r *tuneRow) *fields.Call { return &r.Call }),
		column{Title: "pass<", Cell: func(r *tuneRow) any { return r.Pass }},
		column{Title: "LSE", Cell: markdown.If(func(r *tuneRow) bool { return r.LSE }, func(*tuneRow) any { return "yes" })})
	if slices.ContainsFunc(rows, func(r *tuneRow) bool { return r.Pass != bench.PassForward }) {
		columns = append(columns, markdown.Result("kernel<", 5, func(r *tuneRow) any { return r.Report.Outputs }))
	}
	columns = append(columns,
		column{Title: "tier<", Room: len("coopmat2"), Always: true, Cell: func(r *tuneRow) any { return r.Report.Tier }},
		timed("heuristic<", 30, func(r *tuneRow) string { return r.Report.Heuristic }).InWide(),
		timed("best<", 30, func(r *tuneRow) string { return r.Report.Winner }),
		timed("ms", 6, func(r *tuneRow) string { return dash(r.best() * r.Report.Gain) }),
		timed("best ms", 6, func(r *tuneRow) string { return dash(r.best()) }).InWide(),
		timed("slower %", 6, func(r *tuneRow) string { return fmt.Sprintf("%.1f", r.slower()) }),
		timed("s", 5, func(r *tuneRow) string { return fmt.Sprintf("%.1f", r.Report.Seconds) }).InWide(),
		bench.VerdictColumn(func(r *tuneRow) string {
			if r.Status == bench.OK && r.slower() > p.tolerance {
				return "slower"
			}
			return string(r.Status)
		}))
	p.table = markdown.New(p.w, rows, p.wide, columns)
}

func (p *tunePrinter) add(r *tuneRow) error {
	p.doc.Rows = append(p.doc.Rows, r)
	switch {
	case p.json:
		return nil
	case p.check:
		return p.table.Row(r)
	}
	return p.report(r)
}

func (p *tunePrinter) close() error {
	switch {
	case p.json:
		return bench.WriteJSON(p.w, p.doc)
	case p.check:
		return p.summary()
	}
	return nil
}

// verdict returns the error for the exit code, nil if all went well.
func (p *tunePrinter) verdict(stopped error) error {
	var all bench.Tally
	slow, worst, rows := 0, 0.0, len(p.doc.Rows)
	for _, r := range p.doc.Rows {
		switch {
		case r.Status != bench.OK:
			all.Add(r.Status, r.Reason)
		case p.stores && r.Report.Stored == "":
			all.Add(bench.Fail, r.notStored())
		case p.check && r.slower() > p.tolerance:
			slow++
			worst = max(worst, r.slower())
		}
	}
	lost, none := all.Count[bench.Fail], noneRan(&all, "problem", rows)
	switch {
	case all.Count[bench.Broken] > 0:
		return &coded{exitDevice, fmt.Errorf("not everything was tuned: %s", all.First[bench.Broken])}
	case stopped == nil && none != nil:
		return none
	case lost > 0:
		return fmt.Errorf("%d of %d results are not stored: %s", lost, rows, all.First[bench.Fail])
	case p.stores && stopped == nil && rows == 0:
		return errors.New("nothing was tuned")
	case slow > 0:
		return fmt.Errorf("%d of %d heuristic tiles are over %g %% slower than the best, by up to %.1f %%", slow, rows,
			p.tolerance, worst)
	}
	return nil
}

// report prints one problem: its candidates, the winner and where it is stored.
func (p *tunePrinter) report(r *tuneRow) error {
	e := &errWriter{w: p.w}
	if r.Status != bench.OK {
		e.printf("%s\n\n", markdown.Paragraph(r.problem.String()+": "+r.Reason))
		return e.err
	}
	x := &r.Report
	what := r.problem.String()
	if x.Outputs != "" {
		what += ", kernel of " + x.Outputs
	}
	e.printf("%s\n%s\n\n", markdown.Paragraph(fmt.Sprintf("%s on %v, timed with shape %v", what, x.Tier, x.Shape)),
		markdown.Paragraph("class "+x.Class))
	var rows, reasons []*attention.TuneCandidate
	pruned := 0
	for i := range x.Candidates {
		c := &x.Candidates[i]
		if c.Status == attention.TunePruned {
			pruned++
			if !p.all {
				continue
			}
		}
		if c.Status != attention.TunePruned || p.wide {
			rows = append(rows, c)
		}
		if c.Reason != "" && !p.wide {
			reasons = append(reasons, c)
		}
	}
	e.printf("%s\n\n", p.candidates(rows))
	for _, c := range reasons {
		e.printf("%s\n", markdown.Paragraph(fmt.Sprintf("%s: %s: %s", c.Tile, c.Status, c.Reason)))
	}
	if !p.all && pruned > 0 {
		e.printf("%d more were pruned (--all prints them)\n", pruned)
	}
	switch {
	case x.Gain == 0:
		e.printf("heuristic: %s; source of the tile in use: %s\n", x.Heuristic, x.Source)
	case x.Winner == x.Heuristic:
		e.printf("winner: %s, the heuristic's tile; found in %.1f s\n", x.Winner, x.Seconds)
	default:
		e.printf("%s\n", markdown.Paragraph(fmt.Sprintf("winner: %s; the heuristic's tile %s is %.1f %% slower; found in "+
			"%.1f s", x.Winner, x.Heuristic, r.slower(), x.Seconds)))
	}
	if x.Stored != "" {
		e.printf("stored in %s\n", x.Stored)
	}
	for _, n := range x.Notes {
		e.printf("%s\n", markdown.Paragraph("note: "+n))
	}
	e.printf("\n")
	return e.err
}

// candidates is the table of tiles, without columns that none has. The last ones are left out where it is too wide.
func (p *tunePrinter) candidates(rows []*attention.TuneCandidate) string {
	type candidate = *attention.TuneCandidate
	type column = markdown.Column[candidate]
	number := func(title string, spare bool, of func(candidate) float64) column {
		return column{Title: title, Room: 1, Spare: spare, Cell: func(c candidate) any { return dash(of(c)) }}
	}
	columns := []column{
		{Title: "tile<", Always: true, Cell: func(c candidate) any { return c.Tile }},
		markdown.Result("choice<", 1, func(c candidate) any {
			switch {
			case c.Winner && c.Heuristic:
				return "winner, heuristic"
			case c.Winner:
				return "winner"
			case c.Heuristic:
				return "heuristic"
			}
			return ""
		}),
		number("ms", false, func(c candidate) float64 { return c.Ms }),
		number("TFLOP/s", false, func(c candidate) float64 { return c.TFLOPs }),
		number("registers", true, func(c candidate) float64 { return float64(c.Registers) }),
		{Title: "spills", Room: 1, Spare: true, Cell: func(c candidate) any {
			switch {
			case c.Registers > 0 && c.SpillBytes == 0:
				return "0"
			case c.SpillShared > 0:
				return fmt.Sprintf("%d, %d shared", c.SpillBytes, c.SpillShared)
			}
			return dash(float64(c.SpillBytes))
		}},
		number("shared", true, func(c candidate) float64 { return float64(c.SharedBytes) }),
		number("runs", true, func(c candidate) float64 { return float64(c.Runs) }),
		number("compile ms", true, func(c candidate) float64 { return math.Round(c.CompileMs) }),
		number("estimated", true, func(c candidate) float64 { return float64(c.Estimate) }),
		markdown.Result("status<", 1, func(c candidate) any { return string(c.Status) }),
		markdown.Result("reason<", 1, func(c candidate) any { return c.Reason }).InWide(),
	}
	return markdown.Of(rows, p.wide, slices.DeleteFunc(columns, func(one column) bool {
		return !slices.ContainsFunc(rows, func(c candidate) bool { x := one.Cell(c); return x != "" && x != markdown.None })
	}))
}

// summary stands below the table of --check.
func (p *tunePrinter) summary() error {
	e := &errWriter{w: p.w}
	if len(p.doc.Rows) == 0 {
		e.err = p.table.Close()
	}
	worst, logs, n := 0.0, 0.0, 0
	for _, r := range p.doc.Rows {
		if r.Status != bench.OK {
			e.printf("\n%s\n", markdown.Paragraph(r.problem.String()+": "+r.Reason))
			continue
		}
		worst, logs, n = max(worst, r.slower()), logs+math.Log(r.Report.Gain), n+1
	}
	if n > 0 {
		e.printf("\n%s\n", markdown.Paragraph(fmt.Sprintf("the heuristic's tile is slower than the best by at most %.1f %%, "+
			"by %.1f %% in the geometric mean of %s", worst, 100*(math.Exp(logs/float64(n))-1), flagtext.Count(n, "problem"))))
	}
	return e.err
}

// printCaches prints tuning caches, and where there is none the place where they would be.
func printCaches(w io.Writer, format string, wide bool, place string, list []attention.TuningCache) error {
	if format == "json" {
		if list == nil {
			list = []attention.TuningCache{}
		}
		return bench.WriteJSON(w, list)
	}
	e := &errWriter{w: w}
	if len(list) == 0 {
		e.printf("%s\nnothing is tuned\n", place)
	}
	for i, c := range list {
		if i > 0 {
			e.printf("\n")
		}
		if c.Device != "" {
			e.printf("%s, driver %s\n", c.Device, c.Driver)
		}
		e.printf("%s\n", c.Path)
		if c.Note != "" {
			e.printf("note: %s\n", c.Note)
		} else if len(c.Classes) == 0 {
			e.printf("nothing is tuned\n")
		}
		if len(c.Classes) > 0 {
			e.printf("\n%s\n", classTable(c.Classes, wide))
		}
	}
	return e.err
}

// classTable is the table of the entries of a cache.
func classTable(list []attention.TunedClass, wide bool) string {
	words := func(title string, of func(attention.TunedClass) any) markdown.Column[attention.TunedClass] {
		return markdown.Column[attention.TunedClass]{Title: title, Cell: of}
	}
	return markdown.Of(list, wide, []markdown.Column[attention.TunedClass]{
		words("class<", func(x attention.TunedClass) any { return x.Class }),
		markdown.Result("tile<", 1, func(x attention.TunedClass) any { return x.Tile }),
		markdown.Result("ms", 1, func(x attention.TunedClass) any { return dash(x.Ms) }),
		markdown.Result("gain", 1, func(x attention.TunedClass) any { return fmt.Sprintf("%.3f", x.Gain) }),
		markdown.Result("shape timed<", 1, func(x attention.TunedClass) any { return x.Shape }),
		markdown.Result("when<", 1, func(x attention.TunedClass) any { return x.When.Format("2006-01-02 15:04") }).InWide(),
		words("state<", func(x attention.TunedClass) any {
			if x.Stale {
				return "stale: the SPIR-V has changed"
			}
			return "current"
		}),
	})
}

// dash prints a number with four digits, and "-" for 0.
func dash(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}
