package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
)

// mdColumn is a column of a table of rows.
type mdColumn = markdown.Column[*Row]

// markdownOf are the tables of rows. The suite of a row decides which table it stands in: results, serving,
// decode, the ladder of variants or ablations. Ceilings have one of their own.
func markdownOf(rows []*Row, info *RunInfo) string {
	limits := filter(rows, func(r *Row) bool { return r.Ceiling != "" })
	rows = filter(rows, func(r *Row) bool { return r.Ceiling == "" })
	tables := groupBy(rows, func(r *Row) string { return tableOf(r.Problem().Suite) })
	if len(tables)+len(limits) == 0 {
		tables = []*titled{{}} // a table without rows
	}
	var texts []string
	for _, g := range tables {
		texts = append(texts, tableText(g.title, g.rows, info.of(g.rows)))
	}
	if len(limits) > 0 {
		texts = append(texts, ceilingTable(limits))
	}
	text := strings.Join(texts, "\n")
	if info.Shrunk {
		text += fmt.Sprintf("\nShapes are cut down for a CPU: one sequence, a 16th of the rows and keys, at most %d "+
			"heads.\n", smallHeads)
	}
	return text
}

func filter(rows []*Row, keep func(*Row) bool) []*Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r *Row) bool { return !keep(r) })
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

// tableText is a table with the lines below it.
func tableText(name string, rows []*Row, info *RunInfo) string {
	with := func(has func(*Row) bool) bool { return slices.ContainsFunc(rows, has) }
	switch {
	case name == tableLadder:
		return ladderSuite(rows, info)
	case name == tableTraining:
		return trainingTables(rows)
	case with(func(r *Row) bool { return r.Ablation != "" }):
		return ablationTable(rows)
	case with(func(r *Row) bool { return r.Variant != "" }):
		return ladderTables(rows, info)
	case name == tableServing:
		return servingTable(rows)
	case name == tableDecode:
		return decodeTable(rows, info)
	}
	info.Wide = info.Wide || name == tableWide
	return fmt.Sprintln(markdown.Of(rows, resultColumns(rows, info))) + comparisons(rows)
}

// shapeColumns are those of sizes, without the mask and the storage type.
var shapeColumns = fields.Columns(func(r *Row) *fields.Call { return &r.Call })[:7]

// The columns of several tables.
var (
	causalColumn  = mdColumn{Title: "causal<", Cell: func(r *Row) any { return r.Causal }}
	dtypeColumn   = mdColumn{Title: "dtype<", Cell: func(r *Row) any { return r.DTypeText() }}
	optionColumn  = mdColumn{Title: "options<", Optional: true, Cell: func(r *Row) any { return r.OptionText }}
	noteColumn    = mdColumn{Title: "note<", Optional: true, Cell: func(r *Row) any { return r.Note() }}
	errorColumn   = mdColumn{Title: "max error", Cell: func(r *Row) any { return checkedError(r) }}
	versusColumns = func(prefix string, info *RunInfo, text func(*Row, string) string) (list []mdColumn) {
		for _, other := range info.others() {
			list = append(list, mdColumn{Title: prefix + other, Cell: func(r *Row) any { return text(r, other) }})
		}
		return list
	}
)

// msColumns are the columns of times, in milliseconds or by a factor in another unit.
func msColumns(unit string, factor float64, wide bool) []mdColumn {
	timed := func(of func(Summary) float64) func(*Row) any {
		return markdown.If((*Row).ok, func(r *Row) any { return Digits(factor * of(r.Ms)) })
	}
	return []mdColumn{
		{Title: unit + " min", Cell: timed(func(s Summary) float64 { return s.Min })},
		{Title: unit + " mean", Cell: timed(func(s Summary) float64 { return s.Mean }), Hidden: !wide},
		{Title: unit + " median", Cell: timed(func(s Summary) float64 { return s.Median })},
		{Title: "+-", Cell: markdown.If((*Row).ok, func(r *Row) any { return noiseText(r.Ms) })},
		{Title: unit + " max", Cell: timed(func(s Summary) float64 { return s.Max })},
	}
}

// resultColumns lists the columns of results in their order. Those that follow from others are for wide
// tables alone.
func resultColumns(rows []*Row, info *RunInfo) []mdColumn {
	in := func(has func(*Row) bool) bool { return slices.ContainsFunc(rows, has) }
	speed := func(of func(*Row) float64) func(*Row) any {
		return markdown.If(func(r *Row) bool { return r.ok() && !IsCopy(r.Name()) },
			func(r *Row) any { return Digits(of(r)) })
	}
	use := func(of func(*Row) uint64) func(*Row) any { // peers and baselines have no uses of memory
		return markdown.If(func(r *Row) bool { return r.PlainBytes > 0 }, func(r *Row) any { return hostmem.Bytes(of(r)) })
	}
	wide := info.Wide
	layers := func(r *Row) bool { return r.Layers > 0 }
	return slices.Concat([]mdColumn{
		{Title: "name<", Optional: true, Cell: func(r *Row) any { return r.Line }},
		{Title: "device<", Cell: func(r *Row) any { return r.Device }},
		{Title: "tier<", Cell: func(r *Row) any { return r.Name() }},
		{Title: "tile<", Cell: func(r *Row) any { return r.Tile }},
	}, shapeColumns, []mdColumn{
		causalColumn, dtypeColumn,
		{Title: "pass<", Hidden: !in(func(r *Row) bool { return r.Pass != PassForward }),
			Cell: func(r *Row) any { return r.Pass }},
	}, msColumns("ms", 1, wide), []mdColumn{
		{Title: "layers", Optional: true, Cell: markdown.If(layers, func(r *Row) any { return r.Layers })},
		{Title: "ms of all layers", Hidden: !in(layers),
			Cell: markdown.If(func(r *Row) bool { return layers(r) && r.ok() },
				func(r *Row) any { return Digits(float64(r.Layers) * r.Ms.Median) })},
		{Title: "TFLOP/s", Cell: func(r *Row) any {
			if r.Status == Fail || r.Status == OOM {
				return string(r.Status)
			}
			return speed(func(r *Row) float64 { return r.TFLOPs })(r)
		}},
		{Title: "TFLOP/s mean", Hidden: !wide, Cell: speed(func(r *Row) float64 { return r.MeanTFLOPs })},
		{Title: "TFLOP/s peak", Hidden: !wide, Cell: speed(func(r *Row) float64 { return r.PeakTFLOPs })},
	}, versusColumns("x ", info, ratio), []mdColumn{
		errorColumn,
		{Title: "memory", Cell: markdown.If(func(r *Row) bool { return r.Memory > 0 },
			func(r *Row) any { return hostmem.Bytes(r.Memory) })},
		{Title: "in", Hidden: !wide, Optional: true, Cell: use(func(r *Row) uint64 { return r.InputBytes })},
		{Title: "out", Hidden: !wide, Optional: true, Cell: use(func(r *Row) uint64 { return r.OutputBytes })},
		{Title: "workspace", Hidden: !wide, Optional: true, Cell: use(func(r *Row) uint64 { return r.WorkspaceBytes })},
		{Title: "plain needs", Hidden: !wide, Optional: true, Cell: use(func(r *Row) uint64 { return r.PlainBytes })},
		{Title: "splits", Hidden: !in(func(r *Row) bool { return r.Splits > 1 }), Cell: splitsText},
		optionColumn, noteColumn,
	})
}

// ceilingTable has a line for each ceiling, and the time of a barrier below.
func ceilingTable(rows []*Row) string {
	rate := func(factor float64, of func(*Row) float64) func(*Row) any {
		return markdown.If(func(r *Row) bool { return r.ok() && of(r) > 0 },
			func(r *Row) any { return Digits(factor * of(r)) })
	}
	text := fmt.Sprintln(markdown.Of(rows, slices.Concat([]mdColumn{
		{Title: "device<", Cell: func(r *Row) any { return r.Device }},
		{Title: "ceiling<", Cell: func(r *Row) any { return r.Ceiling }},
		dtypeColumn,
		{Title: "tile<", Cell: func(r *Row) any { return r.Tile }},
	}, msColumns("us", 1e3, false), []mdColumn{
		{Title: "TFLOP/s", Cell: rate(1, func(r *Row) float64 { return r.TFLOPs })},
		{Title: "GB/s", Cell: rate(1e3, func(r *Row) float64 { return r.TBs })},
		{Title: "description<", Cell: func(r *Row) any { return r.Ceiling.about() }},
		noteColumn,
	})))
	if ms := barrierMs(rows); ms > 0 {
		text += fmt.Sprintf("\nA barrier takes %s us: the median of barrier less that of dispatch.\n", Digits(ms*1e3))
	}
	return text
}

// attentionText is a text that only rows of attention have. It is empty for ceilings.
func attentionText(r *Row, text string) string {
	if r.Ceiling != "" {
		return ""
	}
	return text
}

// DTypeText is the storage type, empty for a ceiling that has none.
func (r *Row) DTypeText() string {
	if r.Ceiling != "" && !r.Ceiling.typed() {
		return ""
	}
	return r.DType.String()
}

// notesAlone: notes shared by more rows than this are printed once.
const notesAlone = 3

// notes has the note of each row without a speed and of each row whose clock was not
// steady. A note that many rows share is printed once.
func notes(rows []*Row) (text string) {
	for _, g := range groupBy(rows, (*Row).Note) {
		switch {
		case g.title == "":
		case len(g.rows) > notesAlone:
			var who []string
			for _, r := range g.rows {
				if !slices.Contains(who, r.Who()) {
					who = append(who, r.Who())
				}
			}
			text += fmt.Sprintf("%d rows (%s): %s\n", len(g.rows), strings.Join(who, ", "), g.title)
		default:
			for _, r := range g.rows {
				text += fmt.Sprintf("%s, %v: %s\n", r.Who(), r.Problem(), g.title)
			}
		}
	}
	if text == "" {
		return ""
	}
	return "\n" + text
}

// comparisons has a line for each comparison with a peer or baseline.
func comparisons(rows []*Row) (text string) {
	for _, c := range Compare(rows) {
		text += fmt.Sprintln(c)
	}
	if text == "" {
		return ""
	}
	return "\n" + text
}

// noiseText is the distance of the 95 % interval's ends from the median, such as "0.4%".
func noiseText(s Summary) string {
	if n := s.Noise(); n < 10 {
		return fmt.Sprintf("%.1f%%", 100*n)
	}
	return markdown.None
}

// checkedError is the largest error of a row that was checked.
func checkedError(r *Row) string {
	if r.Checked.Rows == 0 {
		return markdown.None
	}
	return fmt.Sprintf("%.1e", float64(r.Checked.MaxError))
}

// splitsText is the number of splits, none without a plan.
func splitsText(r *Row) any {
	if r.Splits == 0 {
		return markdown.None
	}
	return r.Splits
}

// versus prints a ratio of Row.Versus, none if one side was not timed.
func versus(r *Row, other string, text func(float64) string) string {
	x, ok := r.Versus[other]
	if !ok || r.Status != OK {
		return markdown.None
	}
	return text(x)
}

// ratio, percent and times print a ratio such as 1.234, "123.4%" and "12.3x".
func ratio(r *Row, other string) string {
	return versus(r, other, func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) })
}

func percent(r *Row, other string) string {
	return versus(r, other, func(x float64) string { return fmt.Sprintf("%.1f%%", 100*x) })
}

func times(r *Row, other string) string {
	return versus(r, other, func(x float64) string { return Digits(x) + "x" })
}

// timeOrStatus is the median time in milliseconds, or why there is none.
func timeOrStatus(r *Row) string {
	if r.Status == OK {
		return strconv.FormatFloat(r.Ms.Median, 'f', 3, 64)
	}
	return string(r.Status)
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

// titled is a group of rows with the same title.
type titled struct {
	title string
	rows  []*Row
}

// groupBy groups rows by title, in the order of first occurrence.
func groupBy(rows []*Row, title func(*Row) string) []*titled {
	var out []*titled
	at := map[string]*titled{}
	for _, r := range rows {
		t := title(r)
		g := at[t]
		if g == nil {
			g = &titled{title: t}
			at[t] = g
			out = append(out, g)
		}
		g.rows = append(g.rows, r)
	}
	return out
}
