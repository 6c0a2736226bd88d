package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
)

// mdColumn is a column of a table of rows.
type mdColumn = markdown.Column[*Row]

// mdPrinter prints each row at once: rows of attention in one table, ceilings in another. Notes and comparisons
// follow the last row.
type mdPrinter struct {
	w               io.Writer
	info            *RunInfo
	limits, results *markdown.Table[*Row]
	last            *markdown.Table[*Row] // the table of the last row
	rows            []*Row
}

func newMarkdown(w io.Writer, info *RunInfo) *mdPrinter {
	p := &mdPrinter{w: w, info: info}
	results := filter(info.Planned, func(r *Row) bool { return r.Ceiling == "" })
	limits := filter(info.Planned, func(r *Row) bool { return r.Ceiling != "" })
	p.limits = markdown.New(w, limits, info.Wide, ceilingColumns())
	p.results = markdown.New(w, results, info.Wide, p.columns(results))
	return p
}

func (p *mdPrinter) Row(r *Row) error {
	t := p.results
	if r.Ceiling != "" {
		t = p.limits
	}
	if p.last != nil && p.last != t {
		if _, err := fmt.Fprintln(p.w); err != nil {
			return err
		}
		t.Again()
	}
	p.last, p.rows = t, append(p.rows, r)
	return t.Row(r)
}

func (p *mdPrinter) Close(info *RunInfo) error {
	if p.last == nil {
		if err := p.results.Close(); err != nil {
			return err
		}
	}
	text := notes(p.rows) + comparisons(p.rows) + legend(p.rows)
	if ms := barrierMs(p.rows); ms > 0 {
		text += fmt.Sprintf("\nA barrier takes %s us: the median of barrier less that of dispatch.\n", Digits(ms*1e3))
	}
	if info.Shrunk {
		text += fmt.Sprintf("\nShapes are cut down for a CPU: one sequence, a 16th of the rows and keys, at most %d "+
			"heads.\n", smallHeads)
	}
	_, err := io.WriteString(p.w, text)
	return err
}

func filter(rows []*Row, keep func(*Row) bool) []*Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r *Row) bool { return !keep(r) })
}

// Room of results, as Digits prints them.
const (
	roomMs      = 6
	roomNoise   = 6  // "565.6%"
	roomSpeed   = 7  // "0.00071", on a CPU
	roomVerdict = 11 // "unsupported"
)

// VerdictColumn is the last column of tables whose rows have a status.
func VerdictColumn[R any](verdict func(R) string) markdown.Column[R] {
	return markdown.Column[R]{Title: "verdict<", Room: roomVerdict, Cell: func(r R) any { return verdict(r) }}
}

// Verdict is the status of a row, or that its time may be off.
func (r *Row) Verdict() string {
	if r.Status == OK && r.Unsteady != "" {
		return "unsteady"
	}
	return string(r.Status)
}

// msColumns are the median time in milliseconds, or by a factor in another unit, and its interval. Wide tables also
// have the least, mean and longest time.
func msColumns(unit string, factor float64) []mdColumn {
	timed := func(of func(Summary) float64) func(*Row) any {
		return markdown.If((*Row).timed, func(r *Row) any { return Digits(factor * of(r.Ms)) })
	}
	return []mdColumn{
		{Title: unit, Room: roomMs, Cell: timed(func(s Summary) float64 { return s.Median })},
		markdown.Result("+-", roomNoise, markdown.If((*Row).timed, func(r *Row) any { return NoiseText(r.Ms) })),
		{Title: unit + " min", Room: roomMs, Wide: true, Cell: timed(func(s Summary) float64 { return s.Min })},
		{Title: unit + " mean", Room: roomMs, Wide: true, Cell: timed(func(s Summary) float64 { return s.Mean })},
		{Title: unit + " max", Room: roomMs, Wide: true, Cell: timed(func(s Summary) float64 { return s.Max })},
	}
}

// ProblemColumns say what the rows of a table are of, and who computed them.
func ProblemColumns[R any](planned []R, wide bool, row func(R) *Row) []markdown.Column[R] {
	words := func(title string, of func(*Row) any) markdown.Column[R] {
		return markdown.Column[R]{Title: title, Cell: func(r R) any { return of(row(r)) }}
	}
	tier := words("tier<", func(r *Row) any {
		if r.Ceiling != "" {
			return r.Problem()
		}
		return strings.ReplaceAll(r.Who(), withLSE, "") // LSE is among the options
	})
	tier.Room, tier.Always = len("coopmat2"), true
	sizes := fields.Columns(planned, wide, func(r R) *fields.Call { return &row(r).Call })
	for i := range sizes {
		of := sizes[i].Cell
		sizes[i].Cell = markdown.If(func(r R) bool { return row(r).Ceiling == "" }, of)
	}
	return slices.Concat([]markdown.Column[R]{
		words("name<", func(r *Row) any { return r.Line }),
		words("device<", func(r *Row) any { return r.Device }),
	}, sizes, []markdown.Column[R]{
		words("pass<", func(r *Row) any { return attentionText(r, r.Pass.String()) }),
		words("options<", func(r *Row) any { return r.OptionText }),
		tier,
	})
}

// columns are those of rows of attention.
func (p *mdPrinter) columns(planned []*Row) []mdColumn {
	tflops := func(r *Row) float64 { return r.TFLOPs + r.AblationTFLOPs }
	decode := func(r *Row) float64 {
		if r.Sq != 1 {
			return 0
		}
		return r.TBs
	}
	list := slices.Concat(ProblemColumns(planned, p.info.Wide, func(r *Row) *Row { return r }), msColumns("ms", 1))
	// One row over a cache is bound by memory, many rows are bound by the matrix units.
	if p.info.Wide || len(planned) == 0 || slices.ContainsFunc(planned, func(r *Row) bool { return r.Sq > 1 }) {
		list = append(list, speedColumn("TFLOP/s", tflops))
	}
	if p.info.Wide || slices.ContainsFunc(planned, func(r *Row) bool { return r.Sq == 1 }) {
		list = append(list, speedColumn("TB/s", decode))
	}
	percent := func(title string, of func(*Row) float64, peak func(Peak) float64) mdColumn {
		return mdColumn{Title: title, Room: 6, Wide: !p.info.OfPeak, Cell: func(r *Row) any {
			if most := peak(p.info.Peak.of(r, p.rows)); r.ok() && most > 0 && of(r) > 0 {
				return fmt.Sprintf("%.1f", 100*of(r)/most)
			}
			return markdown.None
		}}
	}
	list = append(list, percent("% peak", tflops, func(k Peak) float64 { return k.TFLOPs }),
		percent("% copy", decode, func(k Peak) float64 { return k.TBs }))
	for i, other := range p.info.others() {
		list = append(list, mdColumn{Title: "x " + other, Short: fmt.Sprintf("x%d", i+1), Spare: true, Room: 5,
			Cell: func(r *Row) any { return ratio(r, other) }})
	}
	return append(append(list, p.wideColumns()...), VerdictColumn((*Row).Verdict))
}

// speedColumn is a column of speeds; copies compute nothing and have no TFLOP/s.
func speedColumn(title string, of func(*Row) float64) mdColumn {
	has := func(r *Row) bool { return r.timed() && of(r) > 0 && (title == "TB/s" || !IsCopy(r.Name())) }
	return markdown.Result(title, roomSpeed, markdown.If(has, func(r *Row) any { return SpeedText(of(r)) }))
}

// wideColumns follow from others, or describe the work and its result.
func (p *mdPrinter) wideColumns() []mdColumn {
	number := func(title string, has func(*Row) bool, text func(*Row) any) mdColumn {
		return markdown.Result(title, 7, markdown.If(has, text)).InWide()
	}
	size := func(title string, of func(*Row) uint64) mdColumn {
		return number(title, func(r *Row) bool { return of(r) > 0 }, func(r *Row) any { return hostmem.Bytes(of(r)) })
	}
	layers := func(r *Row) bool { return r.Layers > 0 }
	list := []mdColumn{
		speedColumn("TFLOP/s mean", func(r *Row) float64 { return r.MeanTFLOPs }).InWide(),
		speedColumn("TFLOP/s peak", func(r *Row) float64 { return r.PeakTFLOPs }).InWide(),
		number("layers", layers, func(r *Row) any { return r.Layers }),
		number("ms of all layers", func(r *Row) bool { return r.ok() && layers(r) },
			func(r *Row) any { return Digits(float64(r.Layers) * r.Ms.Median) }),
		markdown.Result("tile<", 20, func(r *Row) any { return r.Tile }).InWide(),
		number("splits", func(r *Row) bool { return r.Splits > 0 }, func(r *Row) any { return r.Splits }),
		number("max error", (*Row).compared, func(r *Row) any { return fmt.Sprintf("%.1e", float64(r.Checked.MaxError)) }),
		size("memory", func(r *Row) uint64 { return r.Memory }),
		size("in", func(r *Row) uint64 { return r.InputBytes }),
		size("out", func(r *Row) uint64 { return r.OutputBytes }),
		size("workspace", func(r *Row) uint64 { return r.WorkspaceBytes }),
		size("plain needs", func(r *Row) uint64 { return r.PlainBytes }),
		size("K+V", func(r *Row) uint64 { return r.KVBytes }),
		number("sparse ratio", func(r *Row) bool { return r.SparseRatio > 0 }, func(r *Row) any { return Digits(r.SparseRatio) }),
		number("max abs", (*Row).hasResult,
			func(r *Row) any { return strconv.FormatFloat(float64(r.Result.MaxAbs), 'g', 6, 64) }),
		number("NaN", (*Row).hasResult, func(r *Row) any { return r.Result.NaN }),
	}
	for _, other := range p.info.others() {
		from := func(r *Row) bool {
			if !r.hasResult() {
				return false
			}
			_, ok := r.Result.From[other]
			return ok
		}
		if Baseline(other).isReference() {
			list = append(list, number("from "+other, from,
				func(r *Row) any { return fmt.Sprintf("%.2e", float64(r.Result.From[other])) }))
		}
	}
	return list
}

// ceilingColumns are those of ceilings.
func ceilingColumns() []mdColumn {
	rate := func(title string, factor float64, of func(*Row) float64) mdColumn {
		return mdColumn{Title: title, Room: 6, Cell: markdown.If(func(r *Row) bool { return r.ok() && of(r) > 0 },
			func(r *Row) any { return Digits(factor * of(r)) })}
	}
	return slices.Concat([]mdColumn{
		{Title: "device<", Cell: func(r *Row) any { return r.Device }},
		{Title: "ceiling<", Always: true, Cell: func(r *Row) any { return r.Problem() }},
	}, msColumns("us", 1e3), []mdColumn{
		rate("TFLOP/s", 1, func(r *Row) float64 { return r.TFLOPs }),
		rate("GB/s", 1e3, func(r *Row) float64 { return r.TBs }),
		VerdictColumn((*Row).Verdict),
		markdown.Result("tile<", 28, func(r *Row) any { return r.Tile }),
	})
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

// IsCopy reports whether rows of a name are copies: rows of BaselineCopy, or of a peer
// with such a name.
func IsCopy(name string) bool {
	return name == string(BaselineCopy) || strings.HasPrefix(name, string(BaselineCopy)+".") ||
		strings.HasSuffix(name, "-"+string(BaselineCopy))
}

// notesAlone: notes shared by more rows than this are printed once.
const notesAlone = 3

// notes has the note of each row without a speed and of each row whose clock was not
// steady. A note that many rows share is printed once.
func notes(rows []*Row) (text string) {
	groups, order := map[string][]*Row{}, []string{}
	for _, r := range rows {
		note := r.Note()
		if note == "" || note == string(r.Status) { // the table says it
			continue
		}
		if groups[note] == nil {
			order = append(order, note)
		}
		groups[note] = append(groups[note], r)
	}
	for _, note := range order {
		var who []string
		for _, r := range groups[note] {
			switch {
			case len(groups[note]) > notesAlone && !slices.Contains(who, r.Who()):
				who = append(who, r.Who())
			case len(groups[note]) > notesAlone:
			case r.Ceiling != "":
				text += fmt.Sprintf("%v: %s\n", r.Problem(), note)
			default:
				text += fmt.Sprintf("%s, %v: %s\n", r.Who(), r.Problem(), note)
			}
		}
		if len(who) > 0 {
			text += fmt.Sprintf("%d rows (%s): %s\n", len(groups[note]), strings.Join(who, ", "), note)
		}
	}
	return paragraph(text)
}

func paragraph(text string) string {
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
	return paragraph(text)
}

// legend describes the baselines, steps and ablations among rows.
func legend(rows []*Row) (text string) {
	add := func(words string) {
		text += strings.Join(markdown.Wrap(strings.Fields(words), " ", markdown.Width), "\n") + "\n"
	}
	in := func(has func(*Row) bool) bool { return slices.ContainsFunc(rows, has) }
	for _, f := range Baselines {
		if in(func(r *Row) bool { return r.Baseline == f.Baseline }) {
			add(fmt.Sprintf("%s: %s.", f.Baseline, f.About))
		}
	}
	for v := 1; v <= problem.Variants; v++ {
		if in(func(r *Row) bool { return r.Variant == variantLabel(v) }) {
			add(fmt.Sprintf("%s: %s.", variantLabel(v), problem.VariantName(v)))
		}
	}
	if in(func(r *Row) bool { return r.Ablation != "" }) {
		add("An ABLATION leaves out a part of the work to show what the part costs. Its output is wrong by design " +
			"and not verified, and its TFLOP/s count the whole problem: it is not a result.")
	}
	return paragraph(text)
}

// NoiseText is the distance of the 95 % interval's ends from the median, such as "0.4%".
func NoiseText(s Summary) string {
	if n := s.Noise(); n < 10 {
		return fmt.Sprintf("%.1f%%", 100*n)
	}
	return markdown.None
}

// ratio prints a ratio of Row.Versus, none if one side was not timed.
func ratio(r *Row, other string) string {
	x, ok := r.Versus[other]
	switch {
	case !ok || r.Status != OK:
		return markdown.None
	case x >= 10:
		return Digits(x)
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

// SpeedText is Digits with two digits of small numbers.
func SpeedText(v float64) string {
	if v < 0.001 {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return Digits(v)
}
