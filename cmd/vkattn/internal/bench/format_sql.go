package bench

import (
	"fmt"
	"io"
	"strings"
)

// sqlPrinter prints statements that SQLite, PostgreSQL and MySQL in ANSI mode take: one
// that creates the table vkattn_bench, if there is none, and one for each row. The columns
// are the columns of CSV without the ratios to peers and baselines, and the start of the
// run.
type sqlPrinter struct {
	w      io.Writer
	info   *RunInfo
	header bool
}

func (p *sqlPrinter) begin() error {
	if p.header {
		return nil
	}
	p.header = true
	list := []string{`"started" TEXT`}
	for _, c := range columns {
		list = append(list, fmt.Sprintf(`"%s" %s`, c.name, c.sql))
	}
	_, err := fmt.Fprintf(p.w, "CREATE TABLE IF NOT EXISTS vkattn_bench (\n  %s\n);\n", strings.Join(list, ",\n  "))
	return err
}

func (p *sqlPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	// Without the names a table with more columns, or in another order, takes no row.
	names := []string{`"started"`}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	values := []string{quote(p.info.Started.Format("2006-01-02T15:04:05Z07:00"))}
	for _, c := range columns {
		v := c.cell(r, p.info)
		switch {
		case v == "":
			v = "NULL"
		case c.sql == sqlText:
			v = quote(v)
		case notFinite[v] != "":
			v = notFinite[v]
		}
		names, values = append(names, `"`+c.name+`"`), append(values, v)
	}
	_, err := fmt.Fprintf(p.w, "INSERT INTO vkattn_bench (%s) VALUES (%s);\n", strings.Join(names, ", "), strings.Join(values, ", "))
	return err
}

// notFinite are the numbers that SQL has no literals of. PostgreSQL converts the texts, and SQLite keeps them.
// MySQL, which has no such numbers, would store 0: it alone executes what such a comment holds, and stores NULL.
var notFinite = map[string]string{"NaN": "'NaN' /*! + NULL */", "+Inf": "'Infinity' /*! + NULL */", "-Inf": "'-Infinity' /*! + NULL */"}

func (p *sqlPrinter) Close(*RunInfo) error { return p.begin() }
