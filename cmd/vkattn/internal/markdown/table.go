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
