package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/cmd/vkattn/internal/sweep"
)

// RatioRun is the rows of a file with a name for tables.
type RatioRun struct {
	Name string
	Rows []*Row
}

// ratioKey is what a line of the table of ratios is of: masks, lengths and storage types are
// summed up, runs are not.
type ratioKey struct {
	run         int // its index
	device, who string
	pass        Pass
	d, dv       int
	options     string
}

// ratioLine sums up the ratios of one implementation to each peer.
type ratioLine struct {
	ratioKey
	dtypes          []string
	least, most     int // keys
	cells, unsteady int
	known           bool // the clocks were read for each row
	ratios          map[string][]float64
}

// Ratios is a table with the ratios of each implementation to each peer: the range and the
// geometric mean, the lengths of keys and the number of cells that they cover, and of how many
// the GPU was throttled or its clock not steady. Above 1 the implementation is faster. A list of
// series selects implementations by name.
func Ratios(runs []RatioRun, series []string) (string, error) {
	var lines []*ratioLine
	var peers, names []string
	at := map[ratioKey]*ratioLine{}
	for i, run := range runs {
		for _, r := range run.Rows {
			if r.Peer && !slices.Contains(peers, r.Name()) {
				peers = append(peers, r.Name())
			}
		}
		for _, r := range run.Rows {
			if r.Peer || r.Baseline != "" || r.Ceiling != "" || !slices.ContainsFunc(peers, func(p string) bool {
				_, has := r.Versus[p]
				return has
			}) {
				continue
			}
			names = sweep.Union(names, r.Who())
			if len(series) > 0 && !slices.Contains(series, r.Who()) {
				continue
			}
			k := ratioKey{i, r.Device, r.Who(), r.Pass, r.D, r.Dv, r.OptionText}
			l := at[k]
			if l == nil {
				l = &ratioLine{ratioKey: k, least: r.Sk, known: true, ratios: map[string][]float64{}}
				at[k] = l
				lines = append(lines, l)
			}
			l.add(r, peers)
		}
	}
	switch {
	case len(names) == 0:
		return "", errors.New("no row has a ratio to a peer")
	case len(lines) == 0:
		return "", fmt.Errorf("the rows with a ratio to a peer are of %s", strings.Join(names, ", "))
	}
	slices.SortStableFunc(lines, func(a, b *ratioLine) int { // the lines of an implementation in a run follow one another
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(slices.Index(names, a.who), slices.Index(names, b.who)))
	})
	return ratioTable(runs, lines, peers), nil
}

func (l *ratioLine) add(r *Row, peers []string) {
	l.least, l.most = min(l.least, r.Sk), max(l.most, r.Sk)
	l.cells++
	l.dtypes = sweep.Union(l.dtypes, r.DType.String())
	if r.Unsteady != "" {
		l.unsteady++
	}
	l.known = l.known && r.GPU != nil
	for _, p := range peers {
		if x, ok := r.Versus[p]; ok {
			l.ratios[p] = append(l.ratios[p], x)
		}
	}
}

func ratioTable(runs []RatioRun, lines []*ratioLine, peers []string) string {
	columns := []markdown.Column[*ratioLine]{
		{Title: "run<", Cell: func(l *ratioLine) any { return runs[l.run].Name }},
		{Title: "device<", Cell: func(l *ratioLine) any { return l.device }},
		{Title: "tier<", Always: true, Cell: func(l *ratioLine) any { return l.who }},
		{Title: "pass<", Cell: func(l *ratioLine) any { return l.pass }},
		{Title: "dtype<", Cell: func(l *ratioLine) any { return strings.Join(l.dtypes, ", ") }},
		{Title: "head dim", Short: "D", Always: true, Cell: func(l *ratioLine) any {
			if l.d != l.dv && l.dv != 0 {
				return fmt.Sprintf("%d/%d", l.d, l.dv)
			}
			return l.d
		}},
		{Title: "options<", Cell: func(l *ratioLine) any { return l.options }},
		{Title: "lengths<", Cell: func(l *ratioLine) any {
			if l.least == l.most {
				return l.least
			}
			return fmt.Sprintf("%d to %d", l.least, l.most)
		}},
		{Title: "cells", Room: 1, Cell: func(l *ratioLine) any { return l.cells }},
		{Title: "unsteady", Room: 1, Cell: func(l *ratioLine) any {
			if !l.known {
				return "?"
			}
			return l.unsteady
		}},
	}
	for _, p := range peers {
		columns = append(columns, markdown.Column[*ratioLine]{Title: "x " + p + ", mean<", Room: 1,
			Cell: func(l *ratioLine) any { return rangeText(l.ratios[p], l.cells) }})
	}
	return markdown.Of(lines, false, columns)
}

// rangeText is the range and the geometric mean of ratios, with their number if it is not that of
// all cells.
func rangeText(list []float64, cells int) string {
	if len(list) == 0 {
		return "-"
	}
	least, most := fmt.Sprintf("%.2f", slices.Min(list)), fmt.Sprintf("%.2f", slices.Max(list))
	text := least
	if least != most {
		logs := 0.0
		for _, x := range list {
			logs += math.Log(x)
		}
		text = fmt.Sprintf("%s to %s, %.2f", least, most, math.Exp(logs/float64(len(list))))
	}
	switch {
	case len(list) == cells:
	case len(list) == 1:
		text += " (1 cell)"
	default:
		text += fmt.Sprintf(" (%d cells)", len(list))
	}
	return text
}

// compare fills in Row.Versus of the rows of one problem, which were timed in turns.
func compare(rows []*Row) {
	for _, p := range rows {
		if !p.isBaseline() || p.Status != OK {
			continue
		}
		for _, r := range rows {
			if r.Status != OK || r.Ms.Median <= 0 {
				continue // an ablation is no result and has no ratio
			}
			if r.Versus == nil {
				r.Versus = map[string]float64{}
			}
			r.Versus[p.Name()] = p.Ms.Median / r.Ms.Median
		}
	}
}

// Comparison sums up the ratios of one tier to one peer or baseline.
type Comparison struct {
	Who, Peer string
	Cells     int     // problems that both ran
	GeoMean   float64 // of the ratios; above 1 the tier is faster
	Min       float64 // the least ratio
	At        *Row    // the row with the least ratio
}

// Compare returns a Comparison for each pair of a tier (with its variant) and a peer or
// baseline that ran the same problem, in the order of the rows.
func Compare(rows []*Row) []Comparison {
	var peers []string
	seen := map[string]bool{}
	for _, r := range rows {
		if r.isBaseline() && !seen[r.Name()] {
			seen[r.Name()] = true
			peers = append(peers, r.Name())
		}
	}
	var out []Comparison
	at := map[[2]string]int{}
	for _, r := range rows {
		if r.Peer || r.Baseline != "" {
			continue
		}
		for _, p := range peers {
			x, ok := r.Versus[p]
			if !ok || p == r.Name() {
				continue
			}
			key := [2]string{r.Who(), p}
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key] = i
				out = append(out, Comparison{Who: key[0], Peer: p, Min: math.Inf(1)})
			}
			c := &out[i]
			c.Cells++
			c.GeoMean += math.Log(x)
			if x < c.Min {
				c.Min, c.At = x, r
			}
		}
	}
	for i := range out {
		out[i].GeoMean = math.Exp(out[i].GeoMean / float64(out[i].Cells))
	}
	return out
}

// String is the line below a table.
func (c Comparison) String() string {
	cells := "cells"
	if c.Cells == 1 {
		cells = "cell"
	}
	return fmt.Sprintf("%s / %s: geometric mean %.3fx, minimum %.3fx at %v, %d %s", c.Who, c.Peer, c.GeoMean, c.Min,
		c.At.Problem(), c.Cells, cells)
}

// Problem is the problem of the row.
func (r *Row) Problem() Problem {
	if r.problem != (Problem{}) {
		return r.problem
	}
	if r.Ceiling != "" {
		return Problem{Ceiling: r.Ceiling, Config: attention.Config{DType: r.DType}}
	}
	return Problem{Shape: r.Shape(), Config: r.Config(), LSE: r.LSE}
}

// Summary summarizes the samples of a row, in milliseconds. No sample is dropped: quote
// the median with its interval, and judge it by its distance from Min and Max.
type Summary struct {
	Min    float64 `json:"min"`
	Mean   float64 `json:"mean,omitzero"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	// Low and High bound the interval that holds the true median with a probability of at
	// least 95 %, by the binomial distribution of ranks. They are 0 for fewer than six
	// samples, which have no such interval.
	Low  float64 `json:"median_low,omitzero"`
	High float64 `json:"median_high,omitzero"`
}

// Confidence is the confidence of a median's interval.
const Confidence = 0.95

// Summarize returns the Summary of samples, zeros if there are none.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := benchmath.NewSample(slices.Clone(samples), &benchmath.DefaultThresholds)
	of := benchmath.AssumeNothing.Summary(s, Confidence)
	out := Summary{Min: s.Values[0], Median: of.Center, Max: s.Values[len(s.Values)-1]}
	for _, v := range samples {
		out.Mean += v / float64(len(samples))
	}
	if !math.IsInf(of.Lo, 0) && !math.IsInf(of.Hi, 0) {
		out.Low, out.High = of.Lo, of.Hi
	}
	return out
}

// Noise is the larger distance of the interval's ends from the median, as a share of the
// median. It is +Inf if the samples are too few for an interval.
func (s Summary) Noise() float64 {
	if s.High == 0 || s.Median <= 0 {
		return math.Inf(1)
	}
	return max(s.High-s.Median, s.Median-s.Low) / s.Median
}
