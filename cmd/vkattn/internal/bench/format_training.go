package bench

import (
	"fmt"
	"slices"
	"strings"

	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
)

// linesOf are the rows whose problem has one of the lines.
func linesOf(rows []*Row, lines ...string) (out []*Row) {
	for _, r := range rows {
		if slices.Contains(lines, r.Line) {
			out = append(out, r)
		}
	}
	return out
}

// passesOf groups rows of one problem and one kernel, which have a row for each pass.
func passesOf(rows []*Row) (out [][3]*Row) {
	for _, g := range groupBy(rows, func(r *Row) string {
		x := *r
		x.Pass = PassForward
		return x.Line + x.Key().String()
	}) {
		var cell [3]*Row
		for _, r := range g.rows {
			cell[r.Pass] = r
		}
		out = append(out, cell)
	}
	return out
}

// first is a row of the cell.
func first(cell [3]*Row) *Row {
	for _, r := range cell {
		if r != nil {
			return r
		}
	}
	return nil
}

// timeOf is the median of a row times a factor, its status if it has none, "-" without a
// row.
func timeOf(r *Row, factor float64) any {
	switch {
	case r == nil:
		return markdown.None
	case r.Status == OK:
		return Digits(r.Ms.Median * factor)
	}
	return string(r.Status)
}

// steps is the number of steps of the model whose total time training prints.
const steps = 10

// passes are the rows of one problem and one kernel by pass.
type passes = [3]*Row

// trainingTables has the models, attention alone, and forward and backward passes by kernel with
// their ratios.
func trainingTables(rows []*Row) string {
	who := markdown.Column[passes]{Title: "kernel<", Cell: func(c passes) any { return first(c).Who() }}
	var tables []string
	if rows := linesOf(rows, "small", "medium", "large"); len(rows) > 0 {
		seconds := func(pass Pass, steps int) func(passes) any {
			return func(c passes) any { return timeOf(c[pass], float64(first(c).Layers)/1e3*float64(steps)) }
		}
		t := markdown.Of(passesOf(rows), []markdown.Column[passes]{
			{Title: "model_name<", Cell: func(c passes) any { return first(c).Line }}, who,
			{Title: "avg_forward_time", Cell: seconds(PassForward, 1)},
			{Title: "total_forward_time", Cell: seconds(PassForward, steps)},
			{Title: "avg_backward_time", Cell: seconds(PassBackward, 1)},
			{Title: "total_backward_time", Cell: seconds(PassBackward, steps)},
			{Title: "avg_total_time", Cell: seconds(PassBoth, 1)},
			{Title: "memory", Cell: func(c passes) any { return hostmem.Bytes(first(c).Memory) }},
		})
		tables = append(tables, fmt.Sprintf("Attention of all layers of a model, in seconds; totals of %d steps\n\n%v\n",
			steps, t))
	}
	if rows := linesOf(rows, lineAlone); len(rows) > 0 {
		t := markdown.Of(passesOf(rows), []markdown.Column[passes]{
			{Title: "d_model", Cell: func(c passes) any { return first(c).D }},
			{Title: "seq_len", Cell: func(c passes) any { return first(c).Sk }}, who,
			{Title: "fwd(ms)", Cell: func(c passes) any { return timeOf(c[PassForward], 1) }},
			{Title: "bwd(ms)", Cell: func(c passes) any { return timeOf(c[PassBackward], 1) }},
			{Title: "mem_before(MB)", Cell: func(c passes) any {
				if b := c[PassBackward]; b != nil && b.Status == OK {
					return Digits(float64(b.Memory) / (1 << 20))
				}
				return markdown.None
			}},
		})
		tables = append(tables, fmt.Sprintf("Attention alone; memory is that of the tensors and the scratch of the "+
			"backward pass\n\n%v\n", t))
	}
	if rows := linesOf(rows, lineFlash); len(rows) > 0 {
		tables = append(tables, fmt.Sprintf("Forward, backward and both, in ms; speedups of the first kernel\n\n%s\n",
			speedups(rows)))
	}
	return strings.Join(tables, "\n") + notes(rows) + comparisons(rows)
}

// speedups is a table with a line for each problem: the times of each kernel by pass, and
// the times of the others divided by the times of the first.
func speedups(rows []*Row) *markdown.Table {
	type line struct {
		r     *Row
		cells map[string]passes // by kernel
	}
	var lines []line
	for _, group := range groupBy(rows, func(r *Row) string { return fmt.Sprint(r.Sk, r.D, r.DType) }) {
		l := line{group.rows[0], map[string]passes{}}
		for _, c := range passesOf(group.rows) {
			l.cells[first(c).Who()] = c
		}
		lines = append(lines, l)
	}
	columns := []markdown.Column[line]{
		{Title: "seq_len", Cell: func(l line) any { return l.r.Sk }},
		{Title: "d_model", Cell: func(l line) any { return l.r.D }},
		{Title: "precision<", Cell: func(l line) any { return l.r.DType }},
	}
	kernels := groupBy(rows, (*Row).Who)
	for _, k := range kernels {
		for i, name := range []string{"ft_", "bt_", "fbt_"} {
			columns = append(columns, markdown.Column[line]{Title: name + k.title,
				Cell: func(l line) any { return timeOf(l.cells[k.title][i], 1) }})
		}
	}
	for _, k := range kernels[1:] {
		of := ""
		if len(kernels) > 2 {
			of = "_" + k.title
		}
		for i, name := range []string{"fwd", "bwd", "tot"} {
			columns = append(columns, markdown.Column[line]{Title: "speedup_" + name + of, Cell: func(l line) any {
				c, own := l.cells[k.title][i], l.cells[kernels[0].title][i]
				if c == nil || own == nil || c.Status != OK || own.Status != OK {
					return "N/A"
				}
				return fmt.Sprintf("%.1fx", c.Ms.Median/own.Ms.Median)
			}})
		}
	}
	return markdown.Of(lines, columns)
}
