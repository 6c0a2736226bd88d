package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// sqlText are the columns of text. The others are numbers.
var sqlText = []string{"device", "driver", "version", "tier", "tile", "causal", "dtype", "status", "reason", "variant", "ablation", "timer",
	"samples_ms", "line", "baseline", "options", "pass", "unsteady", "ceiling"}

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
	columns := []string{`"started" TEXT`}
	for _, c := range csvColumns {
		kind := "DOUBLE PRECISION"
		switch {
		case slices.Contains(sqlText, c):
			kind = "TEXT"
		case c == "peer", c == "lse":
			kind = "BOOLEAN"
		case c == "seed":
			kind = "NUMERIC(20)" // all 64 bits
		}
		columns = append(columns, fmt.Sprintf(`"%s" %s`, c, kind))
	}
	_, err := fmt.Fprintf(p.w, "CREATE TABLE IF NOT EXISTS vkattn_bench (\n  %s\n);\n", strings.Join(columns, ",\n  "))
	return err
}

func (p *sqlPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	values := []string{quote(p.info.Started.Format("2006-01-02T15:04:05Z07:00"))}
	for i, v := range csvRecord(r, p.info) {
		switch {
		case v == "":
			v = "NULL"
		case slices.Contains(sqlText, csvColumns[i]):
			v = quote(v)
		case notFinite[v] != "":
			v = notFinite[v]
		}
		values = append(values, v)
	}
	_, err := fmt.Fprintf(p.w, "INSERT INTO vkattn_bench (%s) VALUES (%s);\n", sqlNames, strings.Join(values, ", "))
	return err
}

// notFinite are the numbers that SQL has no literals of. PostgreSQL converts the texts, and SQLite keeps them.
// MySQL, which has no such numbers, would store 0: it alone executes what such a comment holds, and stores NULL.
var notFinite = map[string]string{"NaN": "'NaN' /*! + NULL */", "+Inf": "'Infinity' /*! + NULL */", "-Inf": "'-Infinity' /*! + NULL */"}

// sqlNames names the columns of a row. Without them a table with more columns, or in another order, takes no row.
var sqlNames = `"started", "` + strings.Join(csvColumns, `", "`) + `"`

func (p *sqlPrinter) Close(*RunInfo) error { return p.begin() }
