package verify

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Row is the outcome of one implementation on one problem.
type Row struct {
	Device string `json:"device"`
	Who    string `json:"implementation"`
	Entry  string `json:"kernel,omitempty"` // the kernel that ran
	Tile   string `json:"tile,omitempty"`   // and its tile
	Is     bool   `json:"is_reference,omitzero"`

	fields.Call
	Case string     `json:"case,omitempty"` // of the conformance table
	Pass bench.Pass `json:"pass,omitzero"`  // what was judged: O and LSE, or gradients
	// OptionText names the modifiers of the call.
	OptionText string `json:"options_text,omitempty"`
	hasTables  bool   // among them
	Seed       uint64 `json:"seed"`

	Status  bench.Status `json:"status"`
	Reasons []string     `json:"reasons,omitempty"`

	Reference string `json:"reference,omitempty"` // what O and LSE were compared with
	Rows      int64  `json:"rows"`                // softmax rows compared with it
	Of        int64  `json:"of"`                  // softmax rows of the problem
	O         Diff   `json:"o,omitzero"`
	LSE       *Diff  `json:"lse,omitempty"`
	// Gradients are the differences of dQ, dK, dV, dBias, dSinks and of tables, such as dTables[bias], by name.
	Gradients map[string]Diff `json:"gradients,omitempty"`
	// Unjudged says why gradients were not judged, by name.
	Unjudged map[string]string `json:"unjudged,omitempty"`

	// Float64 is the comparison with the float64 reference.
	Float64 bench.Checked `json:"float64,omitzero"`
	// Partner is the implementation that O differs most from.
	Partner string       `json:"partner,omitempty"`
	PairMax bench.Number `json:"pair_max,omitzero"`
	Runs    int          `json:"runs"` // with the same bits, unless Reasons says otherwise
}

// Diff is the difference of a tensor from the reference.
type Diff struct {
	Max   bench.Number `json:"max"`
	Mean  bench.Number `json:"mean"`
	NMSE  bench.Number `json:"nmse"` // squared difference over squared reference
	Limit bench.Number `json:"limit"`
	Wrong int64        `json:"wrong_kind"` // elements that are NaN or Inf in one of the two and not the same in both
	// Blocks counts the blocks of 64 rows that were judged, FailedBlocks the ones that
	// failed.
	Blocks       int64 `json:"blocks,omitzero"`
	FailedBlocks int64 `json:"failed_blocks,omitzero"`
}

func (r *Row) fail(format string, args ...any) {
	r.Status = bench.Fail
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

// Problem names the problem of the row.
func (r *Row) Problem() string {
	if r.Case != "" {
		name := fmt.Sprintf("%v %s", r.DType, r.Case)
		if r.Pass != bench.PassForward {
			name += " " + r.Pass.String()
		}
		return name
	}
	name := bench.Problem{Pass: r.Pass, Shape: r.Shape(), Config: r.Config()}.String()
	if r.OptionText != "" {
		name += " " + r.OptionText
	}
	return name
}

// Note is the reasons of a row that is not ok, for tables.
func (r *Row) Note() string { return strings.Join(r.Reasons, "; ") }

// Outcome is what the rows come to.
type Outcome struct {
	bench.Tally
	Problems   int
	Uncompared int // problems that no implementation computed
}

// Of counts the rows of one problem.
func (o *Outcome) Of(rows []*Row) {
	o.Problems++
	computed := false
	for _, r := range rows {
		o.Add(r.Status, fmt.Sprintf("%s, %s: %s", r.Who, r.Problem(), r.Note()))
		computed = computed || r.Status == bench.Fail || r.Status == bench.OK && !r.Is
	}
	if !computed {
		o.Uncompared++
	}
}

// Formats of NewPrinter.
var Formats = []bench.Format{"md", "json", "jsonl"}

// NewPrinter prints to w. In Markdown it prints a table for the planned rows. Of the conformance
// table, which has thousands, it prints a summary and the rows that are not ok.
func NewPrinter(f bench.Format, w io.Writer, info *bench.RunInfo, conformance bool,
	planned []*Row) bench.Printer[*Row] {
	if f != "md" {
		return bench.NewJSONPrinter[*Row](f, w, info)
	}
	if !conformance {
		return bench.NewTablePrinter(w, markdown.New(w, planned, info.Wide, columns(planned, info.Wide)), notes)
	}
	return bench.Collect(func(rows []*Row, _ *bench.RunInfo) error {
		text := fmt.Sprintln(totals(rows, info.Wide))
		rows = slices.DeleteFunc(rows, func(r *Row) bool {
			return r.Status == bench.OK || r.Status == bench.Unsupported
		})
		if len(rows) > 0 {
			text += "\n" + fmt.Sprintln(markdown.Of(rows, info.Wide, columns(rows, info.Wide))) + notes(rows)
		}
		_, err := io.WriteString(w, text)
		return err
	})
}

// notes has the reasons of the rows that are not ok, and of gradients that were not judged.
func notes(rows []*Row) (text string) {
	for _, r := range rows {
		list := r.Reasons
		for _, name := range slices.Sorted(maps.Keys(r.Unjudged)) {
			list = append(slices.Clip(list), name+" not judged: "+r.Unjudged[name])
		}
		if len(list) > 0 {
			text += fmt.Sprintf("\n%s, %s: %s", r.Who, r.Problem(), strings.Join(list, "; "))
		}
	}
	if text != "" {
		text += "\n"
	}
	return text
}

type column = markdown.Column[*Row]

// columns are those of a table for planned rows.
func columns(planned []*Row, wide bool) []column {
	compared := func(cell func(*Row) any) func(*Row) any { // else there is nothing to compare
		return markdown.If(func(r *Row) bool { return r.Reference != "" }, cell)
	}
	of := forwardColumns(compared)
	if len(planned) > 0 && planned[0].Pass == bench.PassBackward {
		of = backwardColumns(planned, compared)
	}
	return slices.Concat([]column{{Title: "case<", Cell: func(r *Row) any { return r.Case }}},
		fields.Columns(planned, wide, func(r *Row) *fields.Call { return &r.Call }), []column{
			{Title: "options<", Cell: func(r *Row) any { return r.OptionText }},
			{Title: "pass<", Cell: func(r *Row) any { return r.Pass }},
			{Title: "implementation<", Short: "who", Always: true, Cell: func(r *Row) any { return r.Who }},
			markdown.Result("tile<", 1, func(r *Row) any { return r.Tile }).InWide(),
			markdown.Result("rows", 5, compared(func(r *Row) any { return outOf(r.Rows, r.Of) })).InWide(),
		}, of, []column{
			markdown.Result("runs", 1, func(r *Row) any { return r.Runs }).InWide(),
			bench.VerdictColumn(func(r *Row) string { return string(r.Status) }),
		})
}

const roomError = 7 // "1.2e-04"

// forwardColumns compare O and LSE.
func forwardColumns(compared func(func(*Row) any) func(*Row) any) []column {
	hasPartner := func(cell func(*Row) any) func(*Row) any {
		return compared(markdown.If(func(r *Row) bool { return r.Partner != "" }, cell))
	}
	return []column{
		markdown.Result("reference<", 8, compared(func(r *Row) any { return r.Reference })).InWide(),
		markdown.Result("max diff", roomError, compared(func(r *Row) any { return small(r.O.Max) })),
		markdown.Result("NMSE", roomError, compared(func(r *Row) any { return small(r.O.NMSE) })),
		{Title: "LSE diff", Room: roomError, Cell: compared(markdown.If(func(r *Row) bool { return r.LSE != nil },
			func(r *Row) any { return small(r.LSE.Max) }))},
		markdown.Result("NaN", 1, compared(func(r *Row) any { return r.wrong() })).InWide(),
		markdown.Result("max pair", roomError, hasPartner(func(r *Row) any { return small(r.PairMax) })).InWide(),
		markdown.Result("worst partner<", 1, hasPartner(func(r *Row) any { return r.Partner })).InWide(),
		markdown.Result("float64 rows", 1, compared(func(r *Row) any {
			return outOf(int64(r.Float64.Rows), r.Float64.Of)
		})).InWide(),
		markdown.Result("max error", roomError, compared(func(r *Row) any { return small(r.Float64.MaxError) })),
	}
}

// gradientNames are the gradients in the order of their columns. Those of tables follow.
var gradientNames = []string{"dQ", "dK", "dV", "dBias", "dSinks"}

// backwardColumns compare gradients.
func backwardColumns(planned []*Row, compared func(func(*Row) any) func(*Row) any) []column {
	list := []column{{Title: "keys", Room: 5, Wide: true, Cell: compared(func(r *Row) any { return r.Float64.Keys })}}
	for i, name := range gradientNames {
		list = append(list, column{Title: name + " error", Room: roomError, Wide: i > 2,
			Cell: markdown.If(func(r *Row) bool { _, ok := r.Gradients[name]; return ok },
				func(r *Row) any { return small(r.Gradients[name].Max) })})
	}
	if slices.ContainsFunc(planned, func(r *Row) bool { return r.hasTables }) {
		list = append(list, column{Title: "table error", Room: roomError,
			Cell: markdown.If(func(r *Row) bool { return len(r.tables()) > 0 }, func(r *Row) any {
				most := bench.Number(0)
				for _, name := range r.tables() {
					most = max(most, r.Gradients[name].Max)
				}
				return small(most)
			})})
	}
	return append(list,
		markdown.Result("error/limit", 4, compared(func(r *Row) any { return fmt.Sprintf("%.2f", r.limitUsed()) })),
		markdown.Result("NMSE", roomError, compared(func(r *Row) any { return small(r.Float64.NMSE) })).InWide())
}

// wrong is the number of elements that are NaN or Inf on one side only.
func (r *Row) wrong() (n int64) {
	for _, d := range r.diffs() {
		n += d.Wrong
	}
	if r.LSE != nil {
		n += r.LSE.Wrong
	}
	return n
}

// limitUsed is the largest difference of O, or of any gradient, over its limit.
func (r *Row) limitUsed() (most float64) {
	for _, d := range r.diffs() {
		if limit := float64(d.Limit); limit > 0 {
			most = max(most, float64(d.Max)/limit)
		}
	}
	return most
}

// diffs are the differences of O, or of the gradients.
func (r *Row) diffs() []Diff {
	if r.Pass != bench.PassBackward {
		return []Diff{r.O}
	}
	var list []Diff
	for _, name := range slices.Concat(gradientNames, r.tables()) {
		if d, ok := r.Gradients[name]; ok {
			list = append(list, d)
		}
	}
	return list
}

// tables are the names of gradients of tables.
func (r *Row) tables() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Gradients)) {
		if !slices.Contains(gradientNames, name) {
			list = append(list, name)
		}
	}
	return list
}

// outOf prints a number of rows, "all" if it is all of them.
func outOf(n, of int64) string {
	if n == of {
		return "all"
	}
	return strconv.FormatInt(n, 10)
}

func small(v bench.Number) string { return fmt.Sprintf("%.1e", float64(v)) }

// totals is a table with a line for each implementation and storage type, and the reasons of those that ran nothing.
func totals(rows []*Row, wide bool) string {
	type total struct {
		bench.Tally
		of []*Row
	}
	var list []*total
	at := map[string]*total{}
	for _, r := range rows {
		key := r.Who + "/" + r.DType.String()
		if at[key] == nil {
			at[key] = &total{}
			list = append(list, at[key])
		}
		if at[key].of = append(at[key].of, r); r.Status != bench.Interrupted {
			at[key].Add(r.Status, r.Note())
		}
	}
	status := func(title string, s bench.Status) markdown.Column[*total] {
		return markdown.Column[*total]{Title: title, Room: 1, Cell: func(t *total) any { return t.Count[s] }}
	}
	sum := func(title string, wide bool, of func(*Row) int64) markdown.Column[*total] {
		return markdown.Column[*total]{Title: title, Room: 1, Wide: wide, Cell: func(t *total) any {
			n := int64(0)
			for _, r := range t.of {
				n += of(r)
			}
			return n
		}}
	}
	worst := func(title, format string, wide bool, of func(*Row) float64) markdown.Column[*total] {
		return markdown.Column[*total]{Title: title, Room: 1, Wide: wide, Cell: func(t *total) any {
			most := 0.0
			for _, r := range t.of {
				most = math.Max(most, of(r)) // NaN stays
			}
			return fmt.Sprintf(format, most)
		}}
	}
	text := markdown.Of(list, wide, []markdown.Column[*total]{
		{Title: "implementation<", Short: "who", Always: true, Cell: func(t *total) any { return t.of[0].Who }},
		{Title: "dtype<", Always: true, Cell: func(t *total) any { return t.of[0].DType }},
		markdown.Result("cases", 1, func(t *total) any { return t.Tally.Rows }),
		status("ok", bench.OK), status("FAIL", bench.Fail), status("error", bench.Broken),
		status("unsupported", bench.Unsupported), status("OOM", bench.OOM),
		sum("rows compared", true, func(r *Row) int64 { return r.Rows }),
		worst("diff/limit", "%.2f", false, (*Row).limitUsed),
		worst("worst NMSE", "%.1e", false, func(r *Row) float64 {
			most := 0.0
			for _, d := range r.diffs() {
				most = math.Max(most, float64(d.NMSE))
			}
			return most
		}),
		worst("LSE diff", "%.1e", true, func(r *Row) float64 {
			if r.LSE == nil {
				return 0
			}
			return float64(r.LSE.Max)
		}),
		sum("NaN", false, (*Row).wrong),
	})
	refused := ""
	for _, t := range list {
		if why := cmp.Or(t.First[bench.Unsupported], t.First[bench.OOM]); why != "" {
			refused += fmt.Sprintf("\n%s, %v: %s", t.of[0].Who, t.of[0].DType, why)
		}
	}
	if refused != "" {
		text += "\n" + refused
	}
	return text
}
