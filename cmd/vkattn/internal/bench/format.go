package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Format is how rows are printed.
type Format string

// Formats lists the formats in the order of the help text.
var Formats = []Format{"md", "csv", "json", "jsonl"}

// ParseFormat reads one of Formats.
func ParseFormat(s string) (Format, error) {
	for _, f := range Formats {
		if string(f) == s {
			return f, nil
		}
	}
	return "", fmt.Errorf("unknown output format %q, want md, csv, json or jsonl", s)
}

// Printer prints rows as they come, or keeps them until Close where the format
// needs all of them.
type Printer interface {
	Row(*Row) error
	// Close ends the output. info now holds what was learned on the way.
	Close(info *RunInfo) error
}

// NewPrinter prints to w.
func NewPrinter(f Format, w io.Writer, info *RunInfo) Printer {
	switch f {
	case "csv":
		return &csvPrinter{w: csv.NewWriter(w), info: info}
	case "json":
		return &jsonPrinter{w: w}
	case "jsonl":
		return &jsonlPrinter{w: w, info: info}
	}
	return &mdPrinter{w: w}
}

// mdPrinter aligns its columns, so it prints at the end.
type mdPrinter struct {
	w    io.Writer
	rows []*Row
}

func (p *mdPrinter) Row(r *Row) error {
	p.rows = append(p.rows, r)
	return nil
}

func (p *mdPrinter) Close(*RunInfo) error {
	t := table.NewWriter()
	t.Style().Markdown.PadContent = true
	left := map[string]bool{"device": true, "tier": true, "tile": true, "causal": true, "dtype": true, "note": true}
	header := table.Row{"device", "tier", "tile", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal", "dtype",
		"ms min", "ms median", "ms max", "TFLOP/s", "max error", "memory"}
	notes := false
	for _, r := range p.rows {
		notes = notes || r.Note() != ""
	}
	if notes {
		header = append(header, "note")
	}
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i, name := range header {
		align := text.AlignRight
		if left[name.(string)] {
			align = text.AlignLeft
		}
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: align, AlignHeader: align})
	}
	t.SetColumnConfigs(columns)
	for _, r := range p.rows {
		row := table.Row{r.Device, r.Tier.String(), r.Tile, r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Dv, r.Causal.String(), r.DType.String()}
		switch r.Status {
		case OK:
			row = append(row, digits(r.Ms.Min), digits(r.Ms.Median), digits(r.Ms.Max), digits(r.TFLOPs))
		case Fail:
			row = append(row, "-", "-", "-", "FAIL")
		default:
			row = append(row, "-", "-", "-", "-")
		}
		checked := "-"
		if r.Checked.Rows > 0 {
			checked = fmt.Sprintf("%.1e", r.Checked.MaxError)
		}
		row = append(row, checked, Bytes(r.Memory))
		if notes {
			row = append(row, r.Note())
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintln(p.w, t.RenderMarkdown())
	return err
}

// digits prints about four significant digits without an exponent.
func digits(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v >= 0.01 || v == 0:
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// Bytes prints a size with its binary unit.
func Bytes(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	at := -1
	for v >= 1024 && at < len(units)-1 {
		v /= 1024
		at++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[at])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[at])
}

// csvColumns are the header of a CSV file and of nothing else.
var csvColumns = []string{"device", "driver", "version", "seed", "tier", "tile", "batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "headdim", "headdim_v",
	"causal", "dtype", "status", "reason", "ms_min", "ms_median", "ms_max", "samples", "tflops", "max_error", "nmse", "checked_rows", "memory_bytes"}

type csvPrinter struct {
	w      *csv.Writer
	info   *RunInfo
	header bool
}

func (p *csvPrinter) begin() error {
	if p.header {
		return nil
	}
	p.header = true
	return p.w.Write(csvColumns)
}

func (p *csvPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	number := func(v float64, known bool) string {
		if !known {
			return ""
		}
		return strconv.FormatFloat(v, 'g', 9, 64)
	}
	timed, compared := r.Status == OK, r.Checked.Rows > 0
	record := []string{r.Device, p.info.Device.Driver, p.info.Version, strconv.FormatUint(p.info.Seed, 10), r.Tier.String(), r.Tile}
	for _, n := range []int{r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Dv} {
		record = append(record, strconv.Itoa(n))
	}
	record = append(record, r.Causal.String(), r.DType.String(), string(r.Status), r.Reason,
		number(r.Ms.Min, timed), number(r.Ms.Median, timed), number(r.Ms.Max, timed), strconv.Itoa(len(r.Samples)),
		number(r.TFLOPs, timed), number(float64(r.Checked.MaxError), compared), number(float64(r.Checked.NMSE), compared),
		strconv.Itoa(r.Checked.Rows), strconv.FormatUint(r.Memory, 10))
	if err := p.w.Write(record); err != nil {
		return err
	}
	p.w.Flush()
	return p.w.Error()
}

func (p *csvPrinter) Close(*RunInfo) error {
	err := p.begin()
	p.w.Flush()
	if err == nil {
		err = p.w.Error()
	}
	return err
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

// jsonlPrinter prints a line a row, each with the run it belongs to, so that
// files of several runs can be joined.
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
