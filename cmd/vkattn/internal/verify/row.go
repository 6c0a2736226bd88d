package verify

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"vkattn/attention"
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
	Seed uint64     `json:"seed"`

	Status  bench.Status `json:"status"`
	Reasons []string     `json:"reasons,omitempty"`

	Reference string `json:"reference,omitempty"` // what O and LSE were compared with
	Rows      int64  `json:"rows"`                // softmax rows compared with it
	Of        int64  `json:"of"`                  // softmax rows of the problem
	O         Diff   `json:"o,omitzero"`
	LSE       *Diff  `json:"lse,omitempty"`
	// Gradients are the differences of dQ, dK, dV, dBias and dSinks, by name.
	Gradients map[string]Diff `json:"gradients,omitempty"`

	// Float64 is the comparison with the float64 reference.
	Float64 bench.Checked `json:"float64,omitzero"`
	// Partner is the implementation that O differs most from.
	Partner string       `json:"partner,omitempty"`
	PairMax bench.Number `json:"pair_max,omitzero"`
	Runs    int          `json:"runs"` // with the same bits, unless Reasons says otherwise

	// Wall time in seconds: writing tensors, running (the first run compiles) and
	// reading results.
	Write float64 `json:"write_seconds"`
	Run   float64 `json:"run_seconds"`
	Read  float64 `json:"read_seconds"`
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
	return bench.Problem{Pass: r.Pass, Shape: r.Shape(), Config: r.Config()}.String()
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
func NewPrinter(f bench.Format, w io.Writer, info *bench.RunInfo, conformance bool, planned []*Row) bench.Printer[*Row] {
	if f != "md" {
		return bench.NewJSONPrinter[*Row](f, w, info)
	}
	if !conformance {
		return bench.NewTablePrinter(w, markdown.New(w, planned, info.Wide, columns(planned, info.Wide)), notes)
	}
	return bench.Collect(func(rows []*Row, _ *bench.RunInfo) error {
		text := fmt.Sprintln(totals(rows, info.Wide))
		rows = slices.DeleteFunc(rows, func(r *Row) bool { return r.Status == bench.OK || r.Status == bench.Unsupported })
		if len(rows) > 0 {
			text += "\n" + fmt.Sprintln(markdown.Of(rows, info.Wide, columns(rows, info.Wide))) + notes(rows)
		}
		_, err := io.WriteString(w, text)
		return err
	})
}

// notes has the reasons of the rows that are not ok.
func notes(rows []*Row) (text string) {
	for _, r := range rows {
		if note := r.Note(); note != "" {
			text += fmt.Sprintf("\n%s, %s: %s", r.Who, r.Problem(), note)
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
		of = backwardColumns(compared)
	}
	return slices.Concat([]column{{Title: "case<", Cell: func(r *Row) any { return r.Case }}},
		fields.Columns(planned, wide, func(r *Row) *fields.Call { return &r.Call }), []column{
			{Title: "pass<", Cell: func(r *Row) any { return r.Pass }},
			{Title: "implementation<", Short: "who", Always: true, Cell: func(r *Row) any { return r.Who }},
			{Title: "tile<", Room: 1, Wide: true, Cell: func(r *Row) any { return r.Tile }},
			{Title: "rows", Room: 5, Wide: true, Cell: compared(func(r *Row) any { return count(r.Rows, r.Of) })},
		}, of, []column{
			{Title: "runs", Room: 1, Wide: true, Cell: func(r *Row) any { return r.Runs }},
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
		{Title: "reference<", Room: 8, Wide: true, Cell: compared(func(r *Row) any { return r.Reference })},
		{Title: "max diff", Room: roomError, Cell: compared(func(r *Row) any { return small(r.O.Max) })},
		{Title: "NMSE", Room: roomError, Cell: compared(func(r *Row) any { return small(r.O.NMSE) })},
		{Title: "LSE diff", Room: roomError, Cell: compared(markdown.If(func(r *Row) bool { return r.LSE != nil },
			func(r *Row) any { return small(r.LSE.Max) }))},
		{Title: "NaN", Room: 1, Wide: true, Cell: compared(func(r *Row) any { return r.wrong() })},
		{Title: "max pair", Room: roomError, Wide: true, Cell: hasPartner(func(r *Row) any { return small(r.PairMax) })},
		{Title: "worst partner<", Room: 1, Wide: true, Cell: hasPartner(func(r *Row) any { return r.Partner })},
		{Title: "float64 rows", Room: 1, Wide: true, Cell: compared(func(r *Row) any { return count(int64(r.Float64.Rows), r.Float64.Of) })},
		{Title: "max error", Room: roomError, Cell: compared(func(r *Row) any { return small(r.Float64.MaxError) })},
	}
}

// gradientNames are the gradients in the order of their columns.
var gradientNames = []string{"dQ", "dK", "dV", "dBias", "dSinks"}

// backwardColumns compare gradients.
func backwardColumns(compared func(func(*Row) any) func(*Row) any) []column {
	list := []column{{Title: "keys", Room: 5, Wide: true, Cell: compared(func(r *Row) any { return r.Float64.Keys })}}
	for i, name := range gradientNames {
		list = append(list, column{Title: name + " error", Room: roomError, Wide: i > 2,
			Cell: markdown.If(func(r *Row) bool { _, ok := r.Gradients[name]; return ok },
				func(r *Row) any { return small(r.Gradients[name].Max) })})
	}
	return append(list,
		column{Title: "error/limit", Room: 4, Cell: compared(func(r *Row) any { return fmt.Sprintf("%.2f", r.limitUsed()) })},
		column{Title: "NMSE", Room: roomError, Wide: true, Cell: compared(func(r *Row) any { return small(r.Float64.NMSE) })})
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
	for _, name := range gradientNames {
		if d, ok := r.Gradients[name]; ok {
			list = append(list, d)
		}
	}
	return list
}

// count prints a number of rows, "all" if it is all of them.
func count(n, of int64) string {
	if n == of {
		return "all"
	}
	return strconv.FormatInt(n, 10)
}

func small(v bench.Number) string { return fmt.Sprintf("%.1e", float64(v)) }

// total counts the outcomes of one implementation in one storage type.
type total struct {
	bench.Tally
	who                  string
	dtype                attention.DType
	rows, wrong          int64
	limitUsed, nmse, lse float64 // the largest of all cases
}

// totals is a table with a line for each implementation and storage type, and the reasons of those that ran nothing.
func totals(rows []*Row, wide bool) string {
	var list []*total
	of := map[string]*total{}
	for _, r := range rows {
		key := r.Who + "/" + r.DType.String()
		t := of[key]
		if t == nil {
			t = &total{who: r.Who, dtype: r.DType}
			of[key] = t
			list = append(list, t)
		}
		if r.Status != bench.Interrupted {
			t.add(r)
		}
	}
	status := func(title, short string, s bench.Status) markdown.Column[*total] {
		return markdown.Column[*total]{Title: title, Short: short, Room: 1, Cell: func(t *total) any { return t.Count[s] }}
	}
	text := markdown.Of(list, wide, []markdown.Column[*total]{
		{Title: "implementation<", Short: "who", Always: true, Cell: func(t *total) any { return t.who }},
		{Title: "dtype<", Always: true, Cell: func(t *total) any { return t.dtype }},
		{Title: "cases", Room: 1, Cell: func(t *total) any { return t.Tally.Rows }},
		status("ok", "", bench.OK), status("FAIL", "", bench.Fail), status("error", "", bench.Broken),
		status("unsupported", "refused", bench.Unsupported), status("OOM", "", bench.OOM),
		{Title: "rows compared", Room: 1, Wide: true, Cell: func(t *total) any { return t.rows }},
		{Title: "diff/limit", Room: 1, Cell: func(t *total) any { return fmt.Sprintf("%.2f", t.limitUsed) }},
		{Title: "worst NMSE", Room: 1, Cell: func(t *total) any { return fmt.Sprintf("%.1e", t.nmse) }},
		{Title: "LSE diff", Room: 1, Wide: true, Cell: func(t *total) any { return fmt.Sprintf("%.1e", t.lse) }},
		{Title: "NaN", Room: 1, Cell: func(t *total) any { return t.wrong }},
	})
	refused := ""
	for _, t := range list {
		if why := cmp.Or(t.First[bench.Unsupported], t.First[bench.OOM]); why != "" {
			refused += fmt.Sprintf("\n%s, %v: %s", t.who, t.dtype, why)
		}
	}
	if refused != "" {
		text += "\n" + refused
	}
	return text
}

func (t *total) add(r *Row) {
	t.Add(r.Status, r.Note())
	t.rows += r.Rows
	t.wrong += r.wrong()
	t.limitUsed = math.Max(t.limitUsed, r.limitUsed())
	for _, d := range r.diffs() {
		t.nmse = math.Max(t.nmse, float64(d.NMSE))
	}
	if r.LSE != nil {
		t.lse = math.Max(t.lse, float64(r.LSE.Max))
	}
}
