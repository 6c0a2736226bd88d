package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Format is an output format.
type Format string

// Formats lists the formats in the order of the help text.
var Formats = []Format{"md", "csv", "json", "jsonl"}

// ParseFormat parses one of Formats.
func ParseFormat(s string) (Format, error) {
	for _, f := range Formats {
		if string(f) == s {
			return f, nil
		}
	}
	return "", fmt.Errorf("unknown output format %q, want md, csv, json or jsonl", s)
}

// Printer prints each row at once, or all rows in Close if the format needs that.
type Printer interface {
	Row(*Row) error
	// Close ends the output. info has the end of the run, unlike that of NewPrinter.
	Close(info *RunInfo) error
}

// NewPrinter prints to w.
func NewPrinter(f Format, w io.Writer, info *RunInfo) Printer {
	switch f {
	case "csv":
		return newCSVPrinter(w, info)
	case "json":
		return &jsonPrinter{w: w}
	case "jsonl":
		return &jsonlPrinter{w: w, info: info}
	}
	return &mdPrinter{w: w}
}

type printers []Printer

// Printers prints the same rows to each of the list.
func Printers(list ...Printer) Printer { return printers(list) }

func (p printers) Row(r *Row) error {
	var all []error
	for _, one := range p {
		all = append(all, one.Row(r))
	}
	return errors.Join(all...)
}

func (p printers) Close(info *RunInfo) error {
	var all []error
	for _, one := range p {
		all = append(all, one.Close(info))
	}
	return errors.Join(all...)
}

// jsonPrinter prints one document: {"run": {...}, "rows": [...]}.
type jsonPrinter struct {
	w    io.Writer
	rows []*Row
}

func (p *jsonPrinter) Row(r *Row) error {
	p.rows = append(p.rows, r)
	return nil
}

func (p *jsonPrinter) Close(info *RunInfo) error {
	rows := p.rows
	if rows == nil {
		rows = []*Row{}
	}
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Run  *RunInfo `json:"run"`
		Rows []*Row   `json:"rows"`
	}{info, rows})
}

// jsonlPrinter prints a line for each row, with the run it belongs to, so that files of
// several runs can be concatenated.
type jsonlPrinter struct {
	w    io.Writer
	info *RunInfo
}

func (p *jsonlPrinter) Row(r *Row) error {
	return json.NewEncoder(p.w).Encode(struct {
		*Row
		Run *RunInfo `json:"run"`
	}{r, p.info})
}

func (p *jsonlPrinter) Close(*RunInfo) error { return nil }
