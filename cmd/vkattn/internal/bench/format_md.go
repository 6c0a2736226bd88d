package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
)

// mdPrinter prints at the end, as it aligns columns. The suite of a row decides which table it
// stands in: results, serving, decode, the ladder of variants or ablations. Ceilings have one of
// their own.
type mdPrinter struct {
	w    io.Writer
	rows []*Row
}

func (p *mdPrinter) print(info *RunInfo) error {
	isCeiling := func(r *Row) bool { return r.Ceiling != "" }
	var limits []*Row
	for _, r := range p.rows {
		if isCeiling(r) {
			limits = append(limits, r)
		}
	}
	p.rows = slices.DeleteFunc(p.rows, isCeiling)
	tables := groupBy(p.rows, func(r *Row) string { return tableOf(r.Problem().Suite) })
	if len(tables)+len(limits) == 0 {
		tables = []*titled{{}} // a table without rows
	}
	var err error
	for i, g := range tables {
		if i > 0 {
			_, err = fmt.Fprintln(p.w)
		}
		if err == nil {
			err = (&mdPrinter{w: p.w, rows: g.rows}).table(g.title, info.of(g.rows))
		}
		if err != nil {
			return err
		}
	}
	if len(limits) > 0 {
		if len(tables) > 0 {
			_, err = fmt.Fprintln(p.w)
		}
		if err == nil {
			err = p.ceilings(limits)
		}
	}
	if err == nil && info.Shrunk {
		_, err = fmt.Fprintf(p.w, "\nShapes are cut down for a CPU: one sequence, a 16th of the rows and keys, at most %d heads.\n", smallHeads)
	}
	return err
}

// Tables of suites. Other suites have the table of results.
const (
	tableDecode   = "decode"
	tableLadder   = "ladder"
	tableServing  = "serving"
	tableTraining = "training"
	tableWide     = "wide" // that of results with every column
)

// tableOf is the table of a suite.
func tableOf(suite string) string {
	switch suite {
	case "presets":
		return tableWide
	case tableDecode, tableLadder, tableServing, tableTraining:
		return suite
	}
	return ""
}

// of is the run with those baselines alone that are among the rows of a table.
func (i *RunInfo) of(rows []*Row) *RunInfo {
	part := *i
	part.Baselines = slices.DeleteFunc(slices.Clone(i.Baselines), func(name string) bool {
		return !slices.ContainsFunc(rows, func(r *Row) bool { return r.Name() == name })
	})
	return &part
}

func (p *mdPrinter) table(name string, info *RunInfo) error {
	layout := p.results
	switch name {
	case tableServing:
		layout = p.serving
	case tableDecode:
		layout = p.decode
	case tableLadder:
		return p.ladderSuite(info)
	case tableTraining:
		return p.training(info)
	case tableWide:
		info.Wide = true
	}
	for _, r := range p.rows {
		if r.Ablation != "" {
			layout = p.ablations
			break
		}
		if r.Variant != "" {
			layout = p.ladder
		}
	}
	return layout(info)
}

// mdColumn is a column of the table of results: its title as markdown.New takes it, whether the
// table has it, and its cell in a row.
type mdColumn struct {
	title string
	shown bool
	cell  func(*Row) any
}

// results prints a line for each row, and the comparisons with peers below.
func (p *mdPrinter) results(info *RunInfo) error {
	var shown []mdColumn
	m := markdown.New()
	for _, c := range p.columns(info) {
		if c.shown {
			shown = append(shown, c)
			m.Column(c.title)
		}
	}
	for _, r := range p.rows {
		var cells []any
		for _, c := range shown {
			cells = append(cells, c.cell(r))
		}
		m.Row(cells...)
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	return p.comparisons()
}

// columns lists the columns in their order. Those that follow from others are for wide tables
// alone.
func (p *mdPrinter) columns(info *RunInfo) []mdColumn {
	in := func(has func(*Row) bool) bool { return slices.ContainsFunc(p.rows, has) }
	timed := func(text func(Summary) string) func(*Row) any {
		return func(r *Row) any {
			if r.Status != OK {
				return "-"
			}
			return text(r.Ms)
		}
	}
	speed := func(of func(*Row) float64) func(*Row) any {
		return func(r *Row) any {
			if r.Status != OK || IsCopy(r.Name()) {
				return "-"
			}
			return Digits(of(r))
		}
	}
	use := func(of func(*Row) uint64) func(*Row) any { // peers and baselines have no uses of memory
		return func(r *Row) any {
			if r.PlainBytes == 0 {
				return "-"
			}
			return hostmem.Bytes(of(r))
		}
	}
	wide := info.Wide
	layers := in(func(r *Row) bool { return r.Layers > 0 })
	uses := wide && in(func(r *Row) bool { return r.PlainBytes > 0 })
	list := []mdColumn{
		{"name<", in(func(r *Row) bool { return r.Line != "" }), func(r *Row) any { return r.Line }},
		{"device<", true, func(r *Row) any { return r.Device }},
		{"tier<", true, func(r *Row) any { return r.Name() }},
		{"tile<", true, func(r *Row) any { return r.Tile }},
		{"B", true, func(r *Row) any { return r.B }},
		{"Hq", true, func(r *Row) any { return r.Hq }},
		{"Hkv", true, func(r *Row) any { return r.Hkv }},
		{"Sq", true, func(r *Row) any { return r.Sq }},
		{"Sk", true, func(r *Row) any { return r.Sk }},
		{"D", true, func(r *Row) any { return r.D }},
		{"Dv", true, func(r *Row) any { return r.Dv }},
		{"causal<", true, func(r *Row) any { return r.Causal }},
		{"dtype<", true, func(r *Row) any { return r.DType }},
		{"pass<", in(func(r *Row) bool { return r.Pass != PassForward }), func(r *Row) any { return r.Pass }},
		{"ms min", true, timed(func(s Summary) string { return Digits(s.Min) })},
		{"ms mean", wide, timed(func(s Summary) string { return Digits(s.Mean) })},
		{"ms median", true, timed(func(s Summary) string { return Digits(s.Median) })},
		{"+-", true, timed(noiseText)},
		{"ms max", true, timed(func(s Summary) string { return Digits(s.Max) })},
		{"layers", layers, layersText},
		{"ms of all layers", layers, layersTime},
		{"TFLOP/s", true, func(r *Row) any {
			if r.Status == Fail || r.Status == OOM {
				return string(r.Status)
			}
			return speed(func(r *Row) float64 { return r.TFLOPs })(r)
		}},
		{"TFLOP/s mean", wide, speed(func(r *Row) float64 { return r.MeanTFLOPs })},
		{"TFLOP/s peak", wide, speed(func(r *Row) float64 { return r.PeakTFLOPs })},
	}
	for _, other := range info.others() {
		list = append(list, mdColumn{"x " + other, true, func(r *Row) any { return ratio(r, other) }})
	}
	return append(list, []mdColumn{
		{"max error", true, checkedText},
		{"memory", true, memoryText},
		{"in", uses, use(func(r *Row) uint64 { return r.InputBytes })},
		{"out", uses, use(func(r *Row) uint64 { return r.OutputBytes })},
		{"workspace", uses, use(func(r *Row) uint64 { return r.WorkspaceBytes })},
		{"plain needs", uses, use(func(r *Row) uint64 { return r.PlainBytes })},
		{"splits", in(func(r *Row) bool { return r.Splits > 1 }), func(r *Row) any { return splitsText(r) }},
		{"options<", in(func(r *Row) bool { return r.OptionText != "" }), func(r *Row) any { return r.OptionText }},
		{"note<", in(func(r *Row) bool { return r.Note() != "" }), func(r *Row) any { return r.Note() }},
	}...)
}

// noiseText is the distance of the 95 % interval's ends from the median, such as "0.4%".
func noiseText(s Summary) string {
	if n := s.Noise(); n < 10 {
		return fmt.Sprintf("%.1f%%", 100*n)
	}
	return "-"
}

// checkedText is the largest error of a row, "-" if it was not checked.
func checkedText(r *Row) any {
	if r.Checked.Rows == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1e", r.Checked.MaxError)
}

// memoryText is the memory of a row, "-" if it is not known: the row did not run.
func memoryText(r *Row) any {
	if r.Memory == 0 {
		return "-"
	}
	return hostmem.Bytes(r.Memory)
}

// layersText is the number of layers of a model, "-" for other problems.
func layersText(r *Row) any {
	if r.Layers == 0 {
		return "-"
	}
	return r.Layers
}

// layersTime is the time of all layers of a model.
func layersTime(r *Row) any {
	if r.Layers == 0 || r.Status != OK {
		return "-"
	}
	return Digits(float64(r.Layers) * r.Ms.Median)
}

func (p *mdPrinter) comparisons() error {
	list := Compare(p.rows)
	if len(list) > 0 {
		if _, err := fmt.Fprintln(p.w); err != nil {
			return err
		}
	}
	for _, c := range list {
		if _, err := fmt.Fprintln(p.w, c); err != nil {
			return err
		}
	}
	return nil
}

// ratio is a ratio of Row.Versus, "-" if one side was not timed.
func ratio(r *Row, other string) string {
	x, ok := r.Versus[other]
	if !ok || r.Status != OK {
		return "-"
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

// Digits prints about four significant digits, without an exponent from 0.01 on.
func Digits(v float64) string {
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
