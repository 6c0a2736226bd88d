package bench

import (
	"encoding/csv"
	"io"
)

// csvPrinter prints the columns of CSV and adds a column "x NAME" for each peer and baseline of the run.
type csvPrinter struct {
	w      *csv.Writer
	info   *RunInfo
	header bool
}

func newCSVPrinter(w io.Writer, info *RunInfo) *csvPrinter {
	return &csvPrinter{w: csv.NewWriter(w), info: info}
}

func (p *csvPrinter) begin() error {
	if p.header {
		return nil
	}
	p.header = true
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	for _, other := range p.info.others() {
		names = append(names, "x "+other)
	}
	return p.w.Write(names)
}

func (p *csvPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	var record []string
	for _, c := range columns {
		record = append(record, c.cell(r, p.info))
	}
	for _, other := range p.info.others() {
		ratio := ""
		if x, ok := r.Versus[other]; ok && r.ok() {
			ratio = decimal(x)
		}
		record = append(record, ratio)
	}
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
