package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
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
	B           int                  `json:"b"`
	Hq          int                  `json:"hq"`
	Hkv         int                  `json:"hkv"`
	Sq          int                  `json:"sq"`
	Sk          int                  `json:"sk"`
	D           int                  `json:"headdim"`
	Dv          int                  `json:"headdim_v"`
	Causal      string               `json:"causal"`
	DType       attention.DType      `json:"dtype"`
	LSE         bool                 `json:"lse"`
	Pass        bench.Pass           `json:"pass,omitzero"`
	Unsupported string               `json:"unsupported,omitempty"`
	OOM         string               `json:"oom,omitempty"` // does not fit the memory
	Failed      string               `json:"failed,omitempty"`
	Report      attention.TuneReport `json:"report"`
	name        string
}

// reason says why there is no report. It is empty if there is one.
func (r *tuneRow) reason() string { return cmp.Or(r.Unsupported, r.OOM, r.Failed) }

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

// tunePrinter prints each report at once, as JSON or with --check all at the end.
type tunePrinter struct {
	w                io.Writer
	json, check, all bool
	stores           bool // results must be stored
	doc              tuneDoc
}

func (p *tunePrinter) add(r *tuneRow) error {
	p.doc.Rows = append(p.doc.Rows, r)
	if p.json || p.check {
		return nil
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
func (p *tunePrinter) verdict(tolerance float64, stopped error) error {
	var all bench.Tally
	slow, worst, rows := 0, 0.0, len(p.doc.Rows)
	for _, r := range p.doc.Rows {
		switch {
		case r.Failed != "":
			all.Add(bench.Broken, r.Failed)
		case r.Unsupported != "":
			all.Add(bench.Unsupported, r.Unsupported)
		case r.OOM != "":
			all.Add(bench.OOM, r.OOM)
		case p.stores && r.Report.Stored == "":
			all.Add(bench.Fail, r.notStored())
		case p.check && r.slower() > tolerance:
			slow++
			worst = max(worst, r.slower())
		}
	}
	refused, tooLarge, lost := all.Count[bench.Unsupported], all.Count[bench.OOM], all.Count[bench.Fail]
	switch {
	case all.Count[bench.Broken] > 0:
		return &coded{exitDevice, fmt.Errorf("not everything was tuned: %s", all.First[bench.Broken])}
	case stopped == nil && refused == rows && refused > 0:
		return unsupportedf("no problem is supported: %s", all.First[bench.Unsupported])
	case stopped == nil && tooLarge > 0 && refused+tooLarge == rows:
		return unsupportedf("no problem fits the memory: %s", all.First[bench.OOM])
	case lost > 0:
		return fmt.Errorf("%d of %d results are not stored: %s", lost, rows, all.First[bench.Fail])
	case p.stores && stopped == nil && rows == 0:
		return errors.New("nothing was tuned")
	case slow > 0:
		return fmt.Errorf("%d of %d heuristic tiles are over %g %% slower than the best, by up to %.1f %%", slow, rows, tolerance, worst)
	}
	return nil
}

// report prints one problem: its candidates, the winner and where it is stored.
func (p *tunePrinter) report(r *tuneRow) error {
	e := &errWriter{w: p.w}
	if reason := r.reason(); reason != "" {
		e.printf("%s: %s\n\n", r.name, reason)
		return e.err
	}
	x := &r.Report
	what := r.name
	if x.Outputs != "" {
		what += ", kernel of " + x.Outputs
	}
	e.printf("%s on %v, timed with shape %v\nclass %s\n\n", what, x.Tier, x.Shape, x.Class)
	t := markdown.Titled("tile<", "choice<", "registers", "estimated", "spills", "shared", "compile ms", "runs", "ms", "TFLOP/s", "status<", "reason<")
	pruned := 0
	for _, c := range x.Candidates {
		if c.Status == attention.TunePruned {
			pruned++
			if !p.all {
				continue
			}
		}
		mark := ""
		if c.Heuristic {
			mark = "heuristic"
		}
		if c.Winner {
			mark = "winner"
			if c.Heuristic {
				mark = "winner, heuristic"
			}
		}
		spills := dash(float64(c.SpillBytes))
		if c.Registers > 0 && c.SpillBytes == 0 {
			spills = "0"
		}
		if c.SpillShared > 0 {
			spills += fmt.Sprintf(", %d shared", c.SpillShared)
		}
		t.Row(c.Tile, mark, dash(float64(c.Registers)), c.Estimate, spills, c.SharedBytes,
			dash(math.Round(c.CompileMs)), dash(float64(c.Runs)), dash(c.Ms), dash(c.TFLOPs), string(c.Status), c.Reason)
	}
	e.printf("%s\n\n", t)
	if !p.all && pruned > 0 {
		e.printf("%d more were pruned (--all prints them)\n", pruned)
	}
	switch {
	case x.Gain == 0:
		e.printf("heuristic: %s; source of the tile in use: %s\n", x.Heuristic, x.Source)
	case x.Winner == x.Heuristic:
		e.printf("winner: %s, the heuristic's tile; found in %.1f s\n", x.Winner, x.Seconds)
	default:
		e.printf("winner: %s; the heuristic's tile %s is %.1f %% slower; found in %.1f s\n", x.Winner, x.Heuristic, r.slower(), x.Seconds)
	}
	if x.Stored != "" {
		e.printf("stored in %s\n", x.Stored)
	}
	for _, n := range x.Notes {
		e.printf("note: %s\n", n)
	}
	e.printf("\n")
	return e.err
}

// summary is the table of --check.
func (p *tunePrinter) summary() error {
	t := markdown.Titled("problem<", "tier<", "heuristic<", "best<", "ms", "ms best", "slower %", "s")
	var worst, logs float64
	n := 0
	for _, r := range p.doc.Rows {
		x := &r.Report
		if reason := r.reason(); reason != "" {
			t.Row(r.name, "", "", "", "-", "-", reason, "-")
			continue
		}
		i := slices.IndexFunc(x.Candidates, func(c attention.TuneCandidate) bool { return c.Winner })
		best := x.Candidates[i].Ms
		t.Row(strings.TrimSpace(r.name+" "+x.Outputs), x.Tier.String(), x.Heuristic, x.Winner, dash(best*x.Gain), dash(best),
			fmt.Sprintf("%.1f", r.slower()), fmt.Sprintf("%.1f", x.Seconds))
		worst, logs, n = max(worst, r.slower()), logs+math.Log(x.Gain), n+1
	}
	e := &errWriter{w: p.w}
	e.printf("%s\n", t)
	if n > 0 {
		e.printf("\nthe heuristic's tile is slower than the best by at most %.1f %%, by %.1f %% in the geometric mean of %s\n",
			worst, 100*(math.Exp(logs/float64(n))-1), flagtext.Count(n, "problem"))
	}
	return e.err
}

// printCaches prints tuning caches, and where there is none the place where they would be.
func printCaches(w io.Writer, format, place string, list []attention.TuningCache) error {
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
			e.printf("\n%s\n", classTable(c.Classes))
		}
	}
	return e.err
}

// classTable is the table of the entries of a cache.
func classTable(list []attention.TunedClass) string {
	t := markdown.Titled("class<", "tile<", "ms", "gain", "shape timed<", "when<", "state<")
	for _, x := range list {
		state := "current"
		if x.Stale {
			state = "stale: the SPIR-V has changed"
		}
		t.Row(x.Class, x.Tile, dash(x.Ms), fmt.Sprintf("%.3f", x.Gain), x.Shape, x.When.Format("2006-01-02 15:04"), state)
	}
	return t.String()
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
