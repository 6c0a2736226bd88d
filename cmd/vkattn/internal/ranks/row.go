package ranks

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Formats of NewPrinter.
var Formats = []bench.Format{"md", "json", "jsonl"}

// Row is a problem in one mode on one tier, over all ranks.
type Row struct {
	Device string `json:"device"` // of rank 0
	Ranks  int    `json:"ranks"`
	Mode   Mode   `json:"mode"`
	Tier   string `json:"tier"`

	Split    parallel.Order    `json:"split,omitzero"`    // of rows and keys; auto: decode, or a row that was refused before the plan chose
	Inner    int               `json:"inner,omitempty"`   // ranks that share heads, of a mode that has a ring across such groups
	Schedule parallel.Schedule `json:"schedule,omitzero"` // of a ring's forward pass

	Pass bench.Pass `json:"pass"`

	fields.Call
	OptionText string `json:"options_text,omitempty"` // window and softcap in words
	Seed       uint64 `json:"seed"`

	Status  bench.Status `json:"status"`
	Reasons []string     `json:"reasons,omitempty"`

	Verified *Verified `json:"verified,omitempty"` // of vkattn verify
	Timed    *Timed    `json:"timed,omitempty"`    // of vkattn bench
}

// Verified compares the rows of all ranks with those of one device.
type Verified struct {
	Diffs
	Float64Rows int    `json:"float64_rows"` // judged by the float64 reference
	Rows        int64  `json:"rows"`         // softmax rows, all compared
	Runs        int    `json:"runs"`         // with the same bits, unless Reasons says otherwise
	SentBytes   uint64 `json:"sent_bytes"`   // by the rank that sends most, in one run
}

// Diffs are the differences of what a pass computes.
type Diffs struct {
	O   Diff `json:"o"`
	LSE Diff `json:"lse"`
	DQ  Diff `json:"dq,omitzero"` // of a backward pass, in place of O and LSE
	DK  Diff `json:"dk,omitzero"`
	DV  Diff `json:"dv,omitzero"`
}

// of are those of a pass.
func (d *Diffs) of(pass bench.Pass) []*Diff {
	if pass == bench.PassForward {
		return []*Diff{&d.O, &d.LSE}
	}
	return []*Diff{&d.DQ, &d.DK, &d.DV}
}

// Diff is the largest difference of a tensor from that of one device, and its limit.
type Diff struct {
	Max   bench.Number `json:"max"`
	Limit bench.Number `json:"limit"`
}

// Timed is the time of a call: from a barrier to the end of the last rank.
type Timed struct {
	Ms        bench.Summary `json:"ms"`
	TFLOPs    float64       `json:"tflops_per_rank"` // at the median
	OneMs     float64       `json:"one_ms"`          // median on one device; 0: not measured
	OneWhy    string        `json:"one_reason,omitempty"`
	Share     float64       `json:"share,omitzero"` // of the speed of that many devices, 1 is ideal
	SentBytes uint64        `json:"sent_bytes"`     // by the rank that sends most
	Planned   uint64        `json:"planned_bytes"`  // of the plan
	// ScratchBytes is the memory that a call takes in addition to the tensors, on the rank that takes most.
	// Decode does not tell it.
	ScratchBytes   uint64 `json:"scratch_bytes,omitempty"`
	PlannedScratch uint64 `json:"planned_scratch_bytes,omitempty"` // of the plan
	// ExposedMs is the median less that of the same calls without transfers.
	ExposedMs float64 `json:"exposed_ms,omitempty"`
	ComputeMs float64 `json:"compute_ms,omitempty"` // median without transfers; 0: none
	Steps     []Step  `json:"steps,omitempty"`      // of a decode call
}

// Step is a step of a decode call on every rank. The medians of the steps need not add up to that of the
// calls.
type Step struct {
	Name  string    `json:"name"`
	Us    []float64 `json:"us"`              // median of each rank
	Polls []float64 `json:"polls,omitempty"` // of a wait for the device: median reads of the timeline
}

// Note is the reasons of a row that is not ok, for tables.
func (r *Row) Note() string { return strings.Join(r.Reasons, "; ") }

// Name names the row in messages.
func (r *Row) Name() string {
	name := fmt.Sprintf("%s of %d ranks, %v, tier %s, %v B %d Hq %d Hkv %d Sq %d Sk %d D %d %v", r.modeText(), r.Ranks,
		r.Pass, r.Tier, r.DType, r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Causal)
	if r.Split != parallel.OrderAuto {
		name += " " + r.Split.String()
	}
	if r.OptionText != "" {
		name += " " + r.OptionText
	}
	return name
}

// modeText is the mode, with the groups of ranks and the ranks of each if it divides them.
func (r *Row) modeText() string {
	if r.Inner > 0 {
		return fmt.Sprintf("%v %d x %d", r.Mode, r.Ranks/r.Inner, r.Inner)
	}
	return r.Mode.String()
}

// NewPrinter prints to w, in Markdown a table for the planned rows. timed selects the columns.
func NewPrinter(f bench.Format, w io.Writer, info *bench.RunInfo, timed bool, planned []*Row) bench.Printer[*Row] {
	if f != "md" {
		return bench.NewJSONPrinter[*Row](f, w, info)
	}
	return bench.NewTablePrinter(w, markdown.New(w, planned, info.Wide, columns(planned, info.Wide, timed)),
		func(rows []*Row) (text string) {
			for _, r := range rows {
				if note := r.Note(); note != "" {
					text += fmt.Sprintf("\n%s: %s\n", r.Name(), note)
				}
			}
			return text
		})
}

type column = markdown.Column[*Row]

// columns are those of a table for planned rows.
func columns(planned []*Row, wide, timed bool) []column {
	of := verifiedColumns()
	if timed {
		of = timedColumns()
	}
	return slices.Concat([]column{
		{Title: "ranks", Cell: func(r *Row) any { return r.Ranks }},
		{Title: "pass<", Cell: func(r *Row) any { return r.Pass }},
	}, fields.Columns(planned, wide, func(r *Row) *fields.Call { return &r.Call }), []column{
		{Title: "options<", Cell: func(r *Row) any { return r.OptionText }},
		{Title: "mode<", Room: len("2d 2 x 4"), Always: true, Cell: func(r *Row) any { return r.modeText() }},
		{Title: "split<", Room: 10, Cell: markdown.If(func(r *Row) bool { return r.Split != parallel.OrderAuto },
			func(r *Row) any { return r.Split })},
		{Title: "tier<", Room: len("coopmat2"), Always: true, Cell: func(r *Row) any { return r.Tier }},
	}, of, []column{bench.VerdictColumn(func(r *Row) string { return string(r.Status) })})
}

const roomError = 7 // "1.2e-04"

func timedColumns() []column {
	number := func(title, format string, has func(*Timed) bool, of func(*Timed) float64) column {
		return markdown.Result(title, 6, markdown.If(func(r *Row) bool { return r.Timed != nil && has(r.Timed) },
			func(r *Row) any { return fmt.Sprintf(format, of(r.Timed)) }))
	}
	all := func(*Timed) bool { return true }
	one := func(x *Timed) bool { return x.OneMs > 0 }
	computed := func(x *Timed) bool { return x.ComputeMs > 0 }
	planned := func(x *Timed) bool { return x.PlannedScratch > 0 }
	list := []column{
		number("ms", "%.3f", all, func(x *Timed) float64 { return x.Ms.Median }),
		markdown.Result("+-", 6, markdown.If(func(r *Row) bool { return r.Timed != nil },
			func(r *Row) any { return bench.NoiseText(r.Timed.Ms) })),
		markdown.Result("TFLOP/s a GPU", 7, markdown.If(func(r *Row) bool { return r.Timed != nil },
			func(r *Row) any { return bench.SpeedText(r.Timed.TFLOPs) })),
		number("share of N GPUs", "%.1f %%", one, func(x *Timed) float64 { return 100 * x.Share }),
		number("exposed ms", "%.3f", computed, func(x *Timed) float64 { return x.ExposedMs }),
		number("one GPU ms", "%.3f", one, func(x *Timed) float64 { return x.OneMs }).InWide(),
		number("sent MB", "%.1f", all, func(x *Timed) float64 { return float64(x.SentBytes) / 1e6 }).InWide(),
		number("compute ms", "%.3f", computed, func(x *Timed) float64 { return x.ComputeMs }).InWide(),
		number("scratch MB", "%.1f", planned, func(x *Timed) float64 { return float64(x.ScratchBytes) / 1e6 }).InWide(),
		number("planned MB", "%.1f", planned, func(x *Timed) float64 { return float64(x.PlannedScratch) / 1e6 }).InWide(),
	}
	list[2].Short, list[3].Short, list[4].Short = "TFLOP/s", "share", "exposed"
	list[3].Spare = true // before modes and tiers become numbers
	return list
}

func verifiedColumns() []column {
	verified := func(r *Row) bool { return r.Verified != nil }
	is := func(cell func(*Verified) any) func(*Row) any {
		return markdown.If(verified, func(r *Row) any { return cell(r.Verified) })
	}
	lse := func(cell func(*Verified) any) func(*Row) any {
		return markdown.If(func(r *Row) bool { return r.Pass == bench.PassForward }, is(cell))
	}
	return []column{
		markdown.Result("max diff", roomError, markdown.If(verified, func(r *Row) any { return small(r.worst().Max) })),
		markdown.Result("limit", roomError, markdown.If(verified, func(r *Row) any { return small(r.worst().Limit) })),
		markdown.Result("LSE diff", roomError, lse(func(v *Verified) any { return small(v.LSE.Max) })),
		markdown.Result("LSE limit", roomError, lse(func(v *Verified) any { return small(v.LSE.Limit) })).InWide(),
		markdown.Result("float64 rows", 5, is(func(v *Verified) any { return v.Float64Rows })).InWide(),
		markdown.Result("sent bytes", 9, is(func(v *Verified) any { return v.SentBytes })).InWide(),
		markdown.Result("runs", 1, is(func(v *Verified) any { return v.Runs })).InWide(),
	}
}

// worst is the difference of O, or of the gradient that is closest to its limit.
func (r *Row) worst() Diff {
	if r.Pass == bench.PassForward {
		return r.Verified.O
	}
	var worst Diff
	for _, d := range r.Verified.of(r.Pass) {
		worst = worse(worst, *d)
	}
	return worst
}

func small(x bench.Number) string { return fmt.Sprintf("%.2g", float64(x)) }
