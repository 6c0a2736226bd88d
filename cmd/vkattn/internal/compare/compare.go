// Package compare tells which rows of one benchmark are faster or slower than the same
// rows of another.
//
// Rows match if their keys are equal (bench.Key). The statistics are the same as
// benchstat's: medians, binomial intervals of medians and the Mann-Whitney U test, from
// golang.org/x/perf/benchmath.
package compare

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Verdict says how the time of a row changed.
type Verdict string

// The verdicts.
const (
	Faster    Verdict = "faster"    // the medians differ by at least the threshold, and not by chance
	Slower    Verdict = "slower"    // the same
	Same      Verdict = "same"      // the whole interval of the ratio is within the threshold
	Ambiguous Verdict = "ambiguous" // the runs are too few or too noisy to tell
	Broken    Verdict = "broken"    // the row had a speed and has none
)

const (
	// Threshold is the least change that counts. Two runs of one binary differ by up to
	// a percent, by clocks, temperature and the place of buffers in memory.
	Threshold = 0.02
	// alpha is the p-value from which on a difference may be chance.
	alpha = 0.05
	// each is the confidence of the interval of either median. Both hold at once in at
	// least 95 % of all comparisons, whatever the distributions, and then so does the
	// interval of the ratio.
	each = 0.975
)

// Options of a comparison.
type Options struct {
	Threshold float64 // the least change that counts; 0: Threshold
	FailOver  float64 // the least slowdown that is a regression; 0: every row that is Slower
	Subset    bool    // rows that only the old run has are not reported
	Wide      bool    // Print prints every column
}

// Pair is a row of both runs.
type Pair struct {
	Row     string        `json:"row"` // the key of the row
	Old     bench.Summary `json:"old_ms"`
	New     bench.Summary `json:"new_ms,omitzero"`
	Runs    [2]int        `json:"runs"`           // samples, old and new
	Ratio   float64       `json:"ratio,omitzero"` // new median over old: above 1 the row is slower
	Low     float64       `json:"low,omitzero"`   // the 95 % interval of the ratio; 0 if the runs are too few
	High    float64       `json:"high,omitzero"`  //
	P       float64       `json:"p"`              // that the Mann-Whitney U test computes
	Verdict Verdict       `json:"verdict"`        //
	Note    string        `json:"note,omitempty"` // why a row is broken, or its time may be off
	Regress bool          `json:"regression,omitzero"`

	row      *bench.Row // one of the new rows
	old, new []float64  // samples
}

// Report is the comparison of two runs.
type Report struct {
	Pairs   []Pair   `json:"rows"`
	OnlyOld []string `json:"only_old,omitempty"` // keys of rows that the other run lacks
	OnlyNew []string `json:"only_new,omitempty"`
	GeoMean float64  `json:"geomean,omitzero"` // of the ratios
	Notes   []string `json:"notes,omitempty"`
	wide    bool
}

// sample are the runs of all rows with one key.
type sample struct {
	key    string
	device string
	row    *bench.Row // the last
	ms     []float64
	median float64
	note   string
	failed bool // one of the rows is wrong, or its device failed
}

// timed reports whether the rows have a speed.
func (s *sample) timed() bool { return s.median > 0 && !s.failed }

// samples collects the rows of a run by key. Rows with the same key, of files that were
// concatenated, are one sample.
func samples(rows []*bench.Row) (list []*sample, at map[string]*sample) {
	at = map[string]*sample{}
	for _, r := range rows {
		key := r.Key().String()
		s := at[key]
		if s == nil {
			s = &sample{key: key, device: r.Device}
			at[key] = s
			list = append(list, s)
		}
		s.row = r
		if r.Status == bench.OK || r.Status == bench.Ablated {
			s.ms = append(s.ms, r.Samples...)
		}
		s.failed = s.failed || r.Status == bench.Fail || r.Status == bench.Broken
		if n := r.Note(); n != "" {
			s.note = n
		}
	}
	for _, s := range list {
		s.median = bench.Summarize(s.ms).Median
	}
	return list, at
}

// Runs compares the rows of two runs.
func Runs(old, current []*bench.Row, o Options) *Report {
	if o.Threshold == 0 {
		o.Threshold = Threshold
	}
	before, _ := samples(old)
	after, at := samples(current)
	r := &Report{Pairs: []Pair{}, wide: o.Wide}
	logs, ratios := 0.0, 0
	matched := map[string]bool{}
	for _, a := range before {
		b := at[a.key]
		switch {
		case !a.timed() && (b == nil || !b.timed()): // no speed in either
			matched[a.key] = true
			continue
		case !a.timed(): // only the new run has a speed
			continue
		case b == nil:
			if !o.Subset {
				r.OnlyOld = append(r.OnlyOld, a.key)
			}
			continue
		}
		matched[a.key] = true
		p := pair(a, b, o)
		if p.Ratio > 0 {
			logs += math.Log(p.Ratio)
			ratios++
		}
		if note := fmt.Sprintf("devices differ: %s and %s", a.device, b.device); a.device != b.device && !slices.Contains(r.Notes, note) {
			r.Notes = append(r.Notes, note)
		}
		r.Pairs = append(r.Pairs, p)
	}
	for _, b := range after {
		if b.timed() && !matched[b.key] {
			r.OnlyNew = append(r.OnlyNew, b.key)
		}
	}
	if ratios > 0 {
		r.GeoMean = math.Exp(logs / float64(ratios))
	}
	return r
}

func pair(a, b *sample, o Options) Pair {
	p := Pair{Row: a.key, Old: bench.Summarize(a.ms), New: bench.Summarize(b.ms), Runs: [2]int{len(a.ms), len(b.ms)},
		Note: b.note, row: b.row, old: a.ms, new: b.ms}
	if !b.timed() {
		p.Verdict, p.P, p.Regress = Broken, 1, true
		return p
	}
	before := benchmath.NewSample(slices.Clone(a.ms), &benchmath.DefaultThresholds)
	after := benchmath.NewSample(slices.Clone(b.ms), &benchmath.DefaultThresholds)
	p.P = benchmath.AssumeNothing.Compare(before, after).P
	p.Ratio = p.New.Median / p.Old.Median
	x, y := benchmath.AssumeNothing.Summary(before, each), benchmath.AssumeNothing.Summary(after, each)
	if low, high := y.Lo/x.Hi, y.Hi/x.Lo; low > 0 && !math.IsInf(high, 0) {
		p.Low, p.High = low, high
	}
	p.Verdict = p.verdict(o.Threshold)
	p.Regress = p.Verdict == Slower && p.Ratio > 1+o.FailOver
	return p
}

func (p *Pair) verdict(threshold float64) Verdict {
	least, most := 1/(1+threshold), 1+threshold
	switch {
	case p.High == 0:
		return Ambiguous
	case p.Low >= least && p.High <= most:
		return Same
	case p.P < alpha && p.Low > 1 && p.Ratio >= most:
		return Slower
	case p.P < alpha && p.High < 1 && p.Ratio <= least:
		return Faster
	}
	return Ambiguous
}

// Regressions is the number of rows that fail the comparison.
func (r *Report) Regressions() (n int) {
	for _, p := range r.Pairs {
		if p.Regress {
			n++
		}
	}
	return n
}

// Unmatched is the number of rows that one of the runs lacks.
func (r *Report) Unmatched() int { return len(r.OnlyOld) + len(r.OnlyNew) }

// Print prints the report as a Markdown table with its summary.
func (r *Report) Print(w io.Writer) error {
	if len(r.Pairs) > 0 {
		if _, err := fmt.Fprintf(w, "%s\n\n%s", r.table(), r.below()); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		where string
		keys  []string
	}{{"old", r.OnlyOld}, {"new", r.OnlyNew}} {
		for _, k := range list.keys {
			if _, err := fmt.Fprintf(w, "only in the %s run: %s\n", list.where, strings.TrimPrefix(k, "/")); err != nil {
				return err
			}
		}
	}
	for _, n := range r.Notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, r.Summary())
	return err
}

func (r *Report) table() string {
	pairs := make([]*Pair, len(r.Pairs))
	for i := range r.Pairs {
		pairs[i] = &r.Pairs[i]
	}
	known := func(p *Pair) bool { return p.Ratio > 0 }
	return markdown.Of(pairs, r.wide, slices.Concat(
		bench.ProblemColumns(pairs, r.wide, func(p *Pair) *bench.Row { return p.row }), []markdown.Column[*Pair]{
			markdown.Result("old ms", 1, func(p *Pair) any { return bench.Digits(p.Old.Median) }),
			markdown.Result("new ms", 1, markdown.If(known, func(p *Pair) any { return bench.Digits(p.New.Median) })),
			{Title: "new / old", Short: "ratio", Room: 1, Cell: markdown.If(known,
				func(p *Pair) any { return fmt.Sprintf("%.4f", p.Ratio) })},
			{Title: "95 % interval", Room: 1, Cell: markdown.If(func(p *Pair) bool { return p.High > 0 },
				func(p *Pair) any { return fmt.Sprintf("%.3f to %.3f", p.Low, p.High) })},
			markdown.Result("p", 1, func(p *Pair) any { return fmt.Sprintf("%.3f", p.P) }).InWide(),
			markdown.Result("runs", 1,
				func(p *Pair) any { return fmt.Sprintf("%d, %d", p.Runs[0], p.Runs[1]) }).InWide(),
			markdown.Result("verdict<", 1, func(p *Pair) any { return string(p.Verdict) }),
		}))
}

// below has the notes, and the distributions of samples whose intervals overlap: of rows whose verdict they leave
// open, in a wide report also of those that are the same.
func (r *Report) below() (text string) {
	type samples struct {
		row *bench.Row
		of  string
		ms  []float64
	}
	var open []samples
	for _, p := range r.Pairs {
		if p.Note != "" {
			text += fmt.Sprintf("%s: %s\n", strings.TrimPrefix(p.Row, "/"), p.Note)
		}
		if p.Verdict == Ambiguous || r.wide && p.Verdict == Same {
			open = append(open, samples{p.row, "old", p.old}, samples{p.row, "new", p.new})
		}
	}
	if text != "" {
		text += "\n"
	}
	if len(open) == 0 {
		return text
	}
	columns := append(bench.ProblemColumns(open, r.wide, func(s samples) *bench.Row { return s.row }),
		markdown.Result("run<", 3, func(s samples) any { return s.of }))
	for _, percent := range []int{0, 25, 50, 75, 100} {
		columns = append(columns, markdown.Result(fmt.Sprintf("%d %%", percent), 6, func(s samples) any {
			return bench.Digits(percentile(s.ms, percent))
		}))
	}
	return fmt.Sprintf("%sms at percentiles of the samples whose intervals overlap:\n\n%s\n\n", text,
		markdown.Of(open, r.wide, columns))
}

// percentile is between two samples where it is none; 50 is the median.
func percentile(ms []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(ms))
	at := percent * (len(sorted) - 1)
	below, above := sorted[at/100], sorted[(at+99)/100]
	return below + (above-below)*float64(at%100)/100
}

// Summary is one line: the geometric mean and the number of rows of each verdict.
func (r *Report) Summary() string {
	count := map[Verdict]int{}
	for _, p := range r.Pairs {
		count[p.Verdict]++
	}
	parts := []string{flagtext.Count(len(r.Pairs), "row")}
	for _, v := range []Verdict{Faster, Slower, Same, Ambiguous, Broken} {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	if r.GeoMean > 0 {
		parts = append(parts, fmt.Sprintf("geometric mean of new / old %.4f", r.GeoMean))
	}
	return strings.Join(parts, ", ")
}
