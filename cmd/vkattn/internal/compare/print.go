package compare

import (
	"fmt"
	"io"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Print prints the report as a Markdown table with its summary.
func (r *Report) Print(w io.Writer) error {
	if len(r.Pairs) > 0 {
		m := markdown.New("row<", "old ms", "new ms", "new / old", "95 % interval", "p", "runs", "verdict<")
		for _, p := range r.Pairs {
			ratio, interval, current := "-", "-", "-"
			if p.Ratio > 0 {
				ratio, current = fmt.Sprintf("%.4f", p.Ratio), bench.Digits(p.New.Median)
			}
			if p.High > 0 {
				interval = fmt.Sprintf("%.4f to %.4f", p.Low, p.High)
			}
			verdict := string(p.Verdict)
			if p.Note != "" {
				verdict += ": " + p.Note
			}
			m.Row(strings.TrimPrefix(p.Row, "/"), bench.Digits(p.Old.Median), current, ratio, interval, fmt.Sprintf("%.3f", p.P),
				fmt.Sprintf("%d, %d", p.Runs[0], p.Runs[1]), verdict)
		}
		if _, err := fmt.Fprintf(w, "%s\n\n", m); err != nil {
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
