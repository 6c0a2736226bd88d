// Package markdown prints tables.
package markdown

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table is a Markdown table. Its cells are padded, so that it is readable as text.
type Table struct {
	header  table.Row
	columns []table.ColumnConfig
	rows    []table.Row
}

// New returns a table with the given columns. They are aligned right, or left if the name
// ends in "<", which is not printed.
func New(columns ...string) *Table {
	t := &Table{}
	t.Columns(columns...)
	return t
}

// Columns appends columns, named as in New.
func (t *Table) Columns(names ...string) {
	for _, n := range names {
		t.Column(n)
	}
}

// Column appends a column, named as in New.
func (t *Table) Column(name string) {
	align := text.AlignRight
	if words, ok := strings.CutSuffix(name, "<"); ok {
		name, align = words, text.AlignLeft
	}
	t.header = append(t.header, name)
	t.columns = append(t.columns, table.ColumnConfig{Number: len(t.header), Align: align, AlignHeader: align})
}

// Row appends a row.
func (t *Table) Row(cells ...any) { t.rows = append(t.rows, cells) }

// String is the table, without a newline at the end.
func (t *Table) String() string {
	w := table.NewWriter()
	w.Style().Markdown.PadContent = true
	w.AppendHeader(t.header)
	w.SetColumnConfigs(t.columns)
	w.AppendRows(t.rows)
	return w.RenderMarkdown()
}

// Column is a column of a table of rows of type R.
type Column[R any] struct {
	Title  string // as in New
	Cell   func(R) any
	Hidden bool
	// Optional columns are left out if every cell is "" or None.
	Optional bool
}

// None is a cell without a value.
const None = "-"

// If is a cell of the rows that have it, and None in the others.
func If[R any](has func(R) bool, cell func(R) any) func(R) any {
	return func(r R) any {
		if !has(r) {
			return None
		}
		return cell(r)
	}
}

// Of is a table with a line for each row.
func Of[R any](rows []R, columns []Column[R]) *Table {
	cells := make([][]any, len(rows))
	t := New()
	for _, c := range columns {
		if c.Hidden {
			continue
		}
		column, some := make([]any, len(rows)), !c.Optional
		for i, r := range rows {
			column[i] = c.Cell(r)
			some = some || column[i] != "" && column[i] != None
		}
		if !some {
			continue
		}
		t.Column(c.Title)
		for i, cell := range column {
			cells[i] = append(cells[i], cell)
		}
	}
	for _, line := range cells {
		t.Row(line...)
	}
	return t
}
