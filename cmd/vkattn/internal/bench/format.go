package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/perf/benchfmt"

	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Format is an output format.
type Format string

// Formats lists the formats in the order of the help text.
var Formats = []Format{"md", "csv", "json", "jsonl", "sql", "gobench"}

// ParseFormat parses one of the formats of a list.
func ParseFormat(s string, formats []Format) (Format, error) {
	return flagtext.Find("output format", s, formats)
}

// Printer prints rows of type R: each at once, or all in Close if the format needs that.
type Printer[R any] interface {
	Row(R) error
	// Close ends the output. info has the end of the run, which the info of NewPrinter
	// lacks.
	Close(info *RunInfo) error
}

// NewPrinter prints rows of a benchmark to w.
func NewPrinter(f Format, w io.Writer, info *RunInfo) Printer[*Row] {
	switch f {
	case "csv":
		return csvLines(w, info)
	case "json", "jsonl":
		return NewJSONPrinter[*Row](f, w, info)
	case "sql":
		return sqlLines(w, info)
	case "gobench":
		return gobenchLines(w, info)
	}
	return newMarkdown(w, info)
}

// NewJSONPrinter prints rows of any type to w in the format json or jsonl.
func NewJSONPrinter[R any](f Format, w io.Writer, info *RunInfo) Printer[R] {
	if f == "jsonl" {
		return jsonLines[R](w, info)
	}
	return Collect(func(rows []R, info *RunInfo) error { return WriteJSON(w, jsonDocument[R]{info, rows}) })
}

// collector keeps the rows for a format that needs all of them.
type collector[R any] struct {
	print func(rows []R, info *RunInfo) error
	rows  []R
}

// Collect prints all rows in Close.
func Collect[R any](print func(rows []R, info *RunInfo) error) Printer[R] {
	return &collector[R]{print: print, rows: []R{}}
}

func (p *collector[R]) Row(r R) error {
	p.rows = append(p.rows, r)
	return nil
}

func (p *collector[R]) Close(info *RunInfo) error { return p.print(p.rows, info) }

// tablePrinter prints a table, and lines below it.
type tablePrinter[R any] struct {
	w     io.Writer
	table *markdown.Table[R]
	rows  []R
	below func([]R) string
}

// NewTablePrinter prints rows in a table as they come, and then the lines below it.
func NewTablePrinter[R any](w io.Writer, t *markdown.Table[R], below func([]R) string) Printer[R] {
	return &tablePrinter[R]{w: w, table: t, below: below}
}

func (p *tablePrinter[R]) Row(r R) error {
	p.rows = append(p.rows, r)
	return p.table.Row(r)
}

func (p *tablePrinter[R]) Close(*RunInfo) error {
	if len(p.rows) == 0 {
		return p.table.Close()
	}
	_, err := io.WriteString(p.w, p.below(p.rows))
	return err
}

type printers[R any] []Printer[R]

// Printers prints the same rows to each of the list.
func Printers[R any](list ...Printer[R]) Printer[R] { return printers[R](list) }

func (p printers[R]) Row(r R) error {
	var all []error
	for _, one := range p {
		all = append(all, one.Row(r))
	}
	return errors.Join(all...)
}

func (p printers[R]) Close(info *RunInfo) error {
	var all []error
	for _, one := range p {
		all = append(all, one.Close(info))
	}
	return errors.Join(all...)
}

// jsonDocument is the output of format json.
type jsonDocument[R any] struct {
	Run  *RunInfo `json:"run"`
	Rows []R      `json:"rows"`
}

// WriteJSON prints a value as an indented document.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// linePrinter prints the text of each row at once, behind a header that a run without rows has too.
type linePrinter[R any] struct {
	w      io.Writer
	header string
	text   func(R) (string, error)
	begun  bool
}

func (p *linePrinter[R]) Row(r R) error {
	text, err := p.text(r)
	if err != nil {
		return err
	}
	return p.write(text)
}

func (p *linePrinter[R]) Close(*RunInfo) error { return p.write("") }

func (p *linePrinter[R]) write(text string) error {
	if !p.begun {
		p.begun, text = true, p.header+text
	}
	if text == "" {
		return nil
	}
	_, err := io.WriteString(p.w, text)
	return err
}

// jsonLines prints a line for each row, with the run it belongs to as the last field
// "run", so that files of several runs can be concatenated.
func jsonLines[R any](w io.Writer, info *RunInfo) Printer[R] {
	return &linePrinter[R]{w: w, text: func(r R) (string, error) {
		row, err := json.Marshal(r)
		if err != nil {
			return "", err
		}
		run, err := json.Marshal(info)
		return fmt.Sprintf("%s,\"run\":%s}\n", row[:len(row)-1], run), err // within the row's braces
	}}
}

// csvLines prints the columns of CSV and adds a column "x NAME" for each peer and baseline of the run.
func csvLines(w io.Writer, info *RunInfo) Printer[*Row] {
	line := func(cells []string) string {
		var text strings.Builder
		c := csv.NewWriter(&text)
		_ = c.Write(cells) // strings.Builder takes everything
		c.Flush()
		return text.String()
	}
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	for _, other := range info.others() {
		names = append(names, "x "+other)
	}
	return &linePrinter[*Row]{w: w, header: line(names), text: func(r *Row) (string, error) {
		var record []string
		for _, c := range columns {
			record = append(record, c.cell(r, info))
		}
		for _, other := range info.others() {
			ratio := ""
			if x, ok := r.Versus[other]; ok && r.ok() {
				ratio = decimal(x)
			}
			record = append(record, ratio)
		}
		return line(record), nil
	}}
}

// sqlLines prints statements that SQLite, PostgreSQL and MySQL in ANSI mode take: one
// that creates the table vkattn_bench, if there is none, and one for each row. The columns
// are the columns of CSV without the ratios to peers and baselines, and the start of the
// run.
func sqlLines(w io.Writer, info *RunInfo) Printer[*Row] {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	// Without the names a table with more columns, or in another order, takes no row.
	types, names := []string{`"started" TEXT`}, []string{`"started"`}
	for _, c := range columns {
		types, names = append(types, fmt.Sprintf(`"%s" %s`, c.name, c.sql())), append(names, `"`+c.name+`"`)
	}
	header := fmt.Sprintf("CREATE TABLE IF NOT EXISTS vkattn_bench (\n  %s\n);\n", strings.Join(types, ",\n  "))
	return &linePrinter[*Row]{w: w, header: header, text: func(r *Row) (string, error) {
		values := []string{quote(info.Started.Format("2006-01-02T15:04:05Z07:00"))}
		for _, c := range columns {
			v := c.cell(r, info)
			switch {
			case v == "":
				v = "NULL"
			case c.sql() == sqlText:
				v = quote(v)
			case notFinite[v] != "":
				v = notFinite[v]
			}
			values = append(values, v)
		}
		return fmt.Sprintf("INSERT INTO vkattn_bench (%s) VALUES (%s);\n", strings.Join(names, ", "), strings.Join(values,
			", ")), nil
	}}
}

// notFinite are the numbers that SQL has no literals of. PostgreSQL converts the texts, and SQLite keeps them.
// MySQL, which has no such numbers, would store 0: it alone executes what such a comment holds, and stores NULL.
var notFinite = map[string]string{"NaN": "'NaN' /*! + NULL */", "+Inf": "'Infinity' /*! + NULL */",
	"-Inf": "'-Infinity' /*! + NULL */"}

// gobenchLines prints the format of Go benchmarks, which benchstat reads: a line for
// each run of each row, so that benchstat has all samples. A row without a speed is a
// comment.
func gobenchLines(w io.Writer, info *RunInfo) Printer[*Row] {
	var text bytes.Buffer
	lines := benchfmt.NewWriter(&text)
	copies := false // the unit GB/s was declared
	return &linePrinter[*Row]{w: w, header: "Unit TFLOP/s better=higher\n", text: func(r *Row) (string, error) {
		if r.Status != OK {
			return fmt.Sprintf("# %s: %s\n", r.Key(), r.Note()), nil
		}
		text.Reset()
		if r.Bytes > 0 && !copies {
			copies = true
			fmt.Fprintln(&text, "Unit GB/s better=higher")
		}
		res := &benchfmt.Result{Iters: 1, Name: benchfmt.Name("Attention" + r.Key().String())}
		for _, c := range []Field{{"pkg", info.Program}, {"version", info.Version}, {"cpu", info.CPU}, {"device", r.Device},
			{"driver", info.Device.Driver}} {
			if c.Value != "" {
				res.SetConfig(c.Name, c.Value)
			}
		}
		for i := range res.Config {
			res.Config[i].File = true
		}
		for _, ms := range r.Samples {
			res.Values = []benchfmt.Value{{Value: ms * 1e-3, Unit: "sec/op", OrigValue: ms * 1e6, OrigUnit: "ns/op"}}
			if r.TFLOPs > 0 && ms > 0 {
				res.Values = append(res.Values, benchfmt.Value{Value: r.TFLOPs * r.Ms.Median / ms, Unit: "TFLOP/s"})
			}
			if r.Bytes > 0 && ms > 0 {
				res.Values = append(res.Values, benchfmt.Value{Value: float64(r.Bytes) / ms / 1e6, Unit: "GB/s"})
			}
			if err := lines.Write(res); err != nil {
				return "", err
			}
		}
		return text.String(), nil
	}}
}
