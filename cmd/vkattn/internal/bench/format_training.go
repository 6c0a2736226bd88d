package bench

import (
	"fmt"
	"slices"

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
func timeOf(r *Row, factor float64) string {
	switch {
	case r == nil:
		return "-"
	case r.Status == OK:
		return Digits(r.Ms.Median * factor)
	}
	return string(r.Status)
}

// steps is the number of steps of the model whose total time training prints.
const steps = 10

// training prints the models, attention alone, and forward and backward passes by kernel with
// their ratios.
func (p *mdPrinter) training(info *RunInfo) error {
	var tables []string
	if rows := linesOf(p.rows, "small", "medium", "large"); len(rows) > 0 {
		m := markdown.New("model_name<", "kernel<", "avg_forward_time", "total_forward_time",
			"avg_backward_time", "total_backward_time", "avg_total_time", "memory")
		for _, cell := range passesOf(rows) {
			r := first(cell)
			s := float64(r.Layers) / 1e3
			m.Row(r.Line, r.Who(), timeOf(cell[0], s), timeOf(cell[0], s*steps),
				timeOf(cell[1], s), timeOf(cell[1], s*steps), timeOf(cell[2], s), hostmem.Bytes(r.Memory))
		}
		tables = append(tables, fmt.Sprintf("Attention of all layers of a model, in seconds; totals of %d steps\n\n%v", steps, m))
	}
	if rows := linesOf(p.rows, lineAlone); len(rows) > 0 {
		m := markdown.New("d_model", "seq_len", "kernel<", "fwd(ms)", "bwd(ms)", "mem_before(MB)")
		for _, cell := range passesOf(rows) {
			r := first(cell)
			memory := "-"
			if b := cell[1]; b != nil && b.Status == OK {
				memory = Digits(float64(b.Memory) / (1 << 20))
			}
			m.Row(r.D, r.Sk, r.Who(), timeOf(cell[0], 1), timeOf(cell[1], 1), memory)
		}
		tables = append(tables, "Attention alone; memory is that of the tensors and the scratch of the backward pass\n\n"+m.String())
	}
	if rows := linesOf(p.rows, lineFlash); len(rows) > 0 {
		tables = append(tables, "Forward, backward and both, in ms; speedups of the first kernel\n\n"+speedups(rows))
	}
	for i, t := range tables {
		if i > 0 {
			t = "\n" + t
		}
		if _, err := fmt.Fprintln(p.w, t); err != nil {
			return err
		}
	}
	if err := p.notes(); err != nil {
		return err
	}
	return p.comparisons()
}

// speedups is a table with a line for each problem: the times of each kernel by pass, and
// the times of the others divided by the times of the first.
func speedups(rows []*Row) string {
	var kernels []string
	for _, r := range rows {
		if !slices.Contains(kernels, r.Who()) {
			kernels = append(kernels, r.Who())
		}
	}
	m := markdown.New("seq_len", "d_model", "precision<")
	for _, k := range kernels {
		for _, pass := range []string{"ft_", "bt_", "fbt_"} {
			m.Column(pass + k)
		}
	}
	for _, k := range kernels[1:] {
		of := ""
		if len(kernels) > 2 {
			of = "_" + k
		}
		for _, pass := range []string{"fwd", "bwd", "tot"} {
			m.Column("speedup_" + pass + of)
		}
	}
	for _, group := range groupBy(rows, func(r *Row) string { return fmt.Sprint(r.Sk, r.D, r.DType) }) {
		cells := map[string][3]*Row{}
		for _, cell := range passesOf(group.rows) {
			cells[first(cell).Who()] = cell
		}
		r := group.rows[0]
		line := []any{r.Sk, r.D, r.DType}
		for _, k := range kernels {
			for _, c := range cells[k] {
				line = append(line, timeOf(c, 1))
			}
		}
		for _, k := range kernels[1:] {
			for i, c := range cells[k] {
				own := cells[kernels[0]][i]
				if c == nil || own == nil || c.Status != OK || own.Status != OK {
					line = append(line, "N/A")
					continue
				}
				line = append(line, fmt.Sprintf("%.1fx", c.Ms.Median/own.Ms.Median))
			}
		}
		m.Row(line...)
	}
	return m.String()
}
