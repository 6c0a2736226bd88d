package verify

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Formats of NewPrinter.
var Formats = []bench.Format{"md", "json", "jsonl"}

// NewPrinter prints to w. In Markdown it prints a table of all rows. Of the conformance
// table, which has thousands, it prints a summary and the rows that are not ok.
func NewPrinter(f bench.Format, w io.Writer, info *bench.RunInfo, conformance bool) bench.Printer[*Row] {
	if f != "md" {
		return bench.NewJSONPrinter[*Row](f, w, info)
	}
	return bench.Collect(func(rows []*Row, _ *bench.RunInfo) error {
		p := &mdPrinter{w: w, rows: rows}
		if conformance {
			return p.conformance()
		}
		return p.table(rows)
	})
}

type mdPrinter struct {
	w    io.Writer
	rows []*Row
}

// conformance prints a summary and the rows that are not ok.
func (p *mdPrinter) conformance() error {
	if err := p.totals(); err != nil {
		return err
	}
	var bad []*Row
	for _, r := range p.rows {
		if r.Status == bench.Fail || r.Status == bench.Broken || r.Status == bench.OOM || r.Status == bench.Interrupted {
			bad = append(bad, r)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(p.w); err != nil {
		return err
	}
	return p.table(bad)
}

// table prints a line for each row.
func (p *mdPrinter) table(rows []*Row) error {
	if len(rows) > 0 && rows[0].Pass == bench.PassBackward {
		return p.backwardTable(rows)
	}
	t := markdown.New("implementation<", "tile<")
	t.Columns(fields.Columns...)
	t.Columns("reference<", "rows", "max diff", "NMSE", "LSE diff", "NaN", "max pair", "worst partner<", "float64 rows", "max error")
	tail := tailOf(t, rows)
	for _, r := range rows {
		row := append([]any{r.Who, r.Tile}, r.Cells()...)
		if r.Reference == "" { // nothing to compare
			row = append(row, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-")
		} else {
			row = append(row, r.Reference, count(r.Rows, r.Of), small(r.O.Max), small(r.O.NMSE))
			wrong := r.O.Wrong
			if r.LSE != nil {
				wrong += r.LSE.Wrong
				row = append(row, small(r.LSE.Max))
			} else {
				row = append(row, "-")
			}
			row = append(row, wrong)
			if r.Partner != "" {
				row = append(row, small(r.PairMax), r.Partner)
			} else {
				row = append(row, "-", "-")
			}
			row = append(row, count(int64(r.Float64.Rows), r.Float64.Of), small(r.Float64.MaxError))
		}
		t.Row(append(row, tail(r)...)...)
	}
	_, err := fmt.Fprintln(p.w, t)
	return err
}

// tailOf adds the last columns of a table, and returns their cells of a row. Cases and notes
// have a column if a row has any.
func tailOf(t *markdown.Table, rows []*Row) func(*Row) []any {
	named := slices.ContainsFunc(rows, func(r *Row) bool { return r.Case != "" })
	notes := slices.ContainsFunc(rows, func(r *Row) bool { return len(r.Reasons) > 0 })
	t.Columns("runs", "verdict<")
	if named {
		t.Column("case<")
	}
	if notes {
		t.Column("note<")
	}
	return func(r *Row) []any {
		cells := []any{r.Runs, string(r.Status)}
		if named {
			cells = append(cells, r.Case)
		}
		if notes {
			cells = append(cells, r.Note())
		}
		return cells
	}
}

// gradientNames are the gradients in the order of their columns.
var gradientNames = []string{"dQ", "dK", "dV", "dBias", "dSinks"}

// backwardTable prints a line for each row of gradients.
func (p *mdPrinter) backwardTable(rows []*Row) error {
	t := markdown.New("implementation<", "tile<")
	t.Columns(fields.Columns...)
	t.Columns("rows", "keys")
	used := map[string]bool{}
	for _, r := range rows {
		for name := range r.Gradients {
			used[name] = true
		}
	}
	for _, name := range gradientNames {
		if used[name] {
			t.Column(name + " error")
		}
	}
	t.Columns("error/limit", "NMSE")
	tail := tailOf(t, rows)
	for _, r := range rows {
		row := append([]any{r.Who, r.Tile}, r.Cells()...)
		if r.Reference == "" {
			row = append(row, "-", "-")
		} else {
			row = append(row, count(r.Rows, r.Of), r.Float64.Keys)
		}
		for _, name := range gradientNames {
			if d, ok := r.Gradients[name]; ok {
				row = append(row, small(d.Max))
			} else if used[name] {
				row = append(row, "-")
			}
		}
		if r.Reference == "" {
			row = append(row, "-", "-")
		} else {
			row = append(row, fmt.Sprintf("%.2f", r.limitUsed()), small(r.Float64.NMSE))
		}
		t.Row(append(row, tail(r)...)...)
	}
	_, err := fmt.Fprintln(p.w, t)
	return err
}

// limitUsed is the largest difference of O, or of any gradient, over its limit.
func (r *Row) limitUsed() (most float64) {
	for _, d := range r.diffs() {
		if limit := float64(d.Limit); limit > 0 {
			most = max(most, float64(d.Max)/limit)
		}
	}
	return most
}

// diffs are the differences of O, or of the gradients.
func (r *Row) diffs() []Diff {
	if r.Pass != bench.PassBackward {
		return []Diff{r.O}
	}
	var list []Diff
	for _, name := range gradientNames {
		if d, ok := r.Gradients[name]; ok {
			list = append(list, d)
		}
	}
	return list
}

// count prints a number of rows, "all" if it is all of them.
func count(n, of int64) string {
	if n == of {
		return "all"
	}
	return strconv.FormatInt(n, 10)
}

func small(v bench.Number) string { return fmt.Sprintf("%.1e", float64(v)) }

// total counts the outcomes of one implementation in one storage type.
type total struct {
	who                                string
	dtype                              attention.DType
	cases, ok, failed, refused, broken int
	tooLarge                           int // OOM
	rows, wrong                        int64
	limitUsed, nmse, lse               float64 // the largest of all cases
	why                                string  // reason of the first case that is not supported
}

// totals prints a line for each implementation and storage type.
func (p *mdPrinter) totals() error {
	var list []*total
	of := map[string]*total{}
	for _, r := range p.rows {
		key := r.Who + "/" + r.DType.String()
		t := of[key]
		if t == nil {
			t = &total{who: r.Who, dtype: r.DType}
			of[key] = t
			list = append(list, t)
		}
		t.add(r)
	}
	t := markdown.New("implementation<", "dtype<", "cases", "ok", "FAIL", "error", "unsupported", "OOM", "rows compared", "diff/limit", "worst NMSE", "LSE diff", "NaN", "note<")
	for _, x := range list {
		t.Row(x.who, x.dtype, x.cases, x.ok, x.failed, x.broken, x.refused, x.tooLarge, x.rows,
			fmt.Sprintf("%.2f", x.limitUsed), fmt.Sprintf("%.1e", x.nmse), fmt.Sprintf("%.1e", x.lse), x.wrong, x.why)
	}
	_, err := fmt.Fprintln(p.w, t)
	return err
}

func (t *total) add(r *Row) {
	if r.Status == bench.Interrupted {
		return
	}
	t.cases++
	switch r.Status {
	case bench.OK:
		t.ok++
	case bench.Fail:
		t.failed++
	case bench.Unsupported:
		t.refused++
	case bench.OOM:
		t.tooLarge++
	default:
		t.broken++
	}
	if t.why == "" && (r.Status == bench.Unsupported || r.Status == bench.OOM) {
		t.why = r.Note()
	}
	t.rows += r.Rows
	t.limitUsed = math.Max(t.limitUsed, r.limitUsed())
	for _, d := range r.diffs() {
		t.wrong += d.Wrong
		t.nmse = math.Max(t.nmse, float64(d.NMSE))
	}
	if r.LSE != nil {
		t.lse = math.Max(t.lse, float64(r.LSE.Max))
		t.wrong += r.LSE.Wrong
	}
}
