package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Format is an output format.
type Format string

// Formats lists the formats in the order of the help text.
var Formats = []Format{"md", "csv", "json", "jsonl", "sql", "gobench"}

// ParseFormat parses one of the formats of a list.
func ParseFormat(s string, formats []Format) (Format, error) {
	if f := Format(s); slices.Contains(formats, f) {
		return f, nil
	}
	var names []string
	for _, f := range formats {
		names = append(names, string(f))
	}
	last := len(names) - 1
	return "", fmt.Errorf("unknown output format %q, want %s or %s", s, strings.Join(names[:last], ", "), names[last])
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
	return Collect(func(rows []*Row, info *RunInfo) error {
		_, err := io.WriteString(w, markdownOf(rows, info))
		return err
	})
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
