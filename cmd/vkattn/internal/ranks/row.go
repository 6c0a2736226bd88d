package ranks

import (
	"fmt"
	"io"
	"math"
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
	O           Diff   `json:"o"`
	LSE         Diff   `json:"lse"`
	DQ          Diff   `json:"dq,omitzero"` // of a backward pass, in place of O and LSE
	DK          Diff   `json:"dk,omitzero"`
	DV          Diff   `json:"dv,omitzero"`
	Float64Rows int    `json:"float64_rows"` // judged by the float64 reference
	Rows        int64  `json:"rows"`         // softmax rows, all compared
	Runs        int    `json:"runs"`         // with the same bits, unless Reasons says otherwise
	SentBytes   uint64 `json:"sent_bytes"`   // by the rank that sends most, in one run
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
	ExposedMs float64 `json:"exposed_ms"`
	ComputeMs float64 `json:"compute_ms"`      // median without transfers
	Steps     []Step  `json:"steps,omitempty"` // of a decode call
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
	name := fmt.Sprintf("%s of %d ranks, %v, tier %s, %v B %d Hq %d Hkv %d Sq %d Sk %d D %d %v", r.modeText(), r.Ranks, r.Pass, r.Tier, r.DType, r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Causal)
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

// NewPrinter prints to w. timed selects the columns.
func NewPrinter(f bench.Format, w io.Writer, info *bench.RunInfo, timed bool) bench.Printer[*Row] {
	if f != "md" {
		return bench.NewJSONPrinter[*Row](f, w, info)
	}
	return bench.Collect(func(rows []*Row, _ *bench.RunInfo) error { return table(w, rows, timed) })
}

// table prints a line for each row.
func table(w io.Writer, rows []*Row, timed bool) error {
	t := markdown.New("mode<", "split<", "ranks", "pass<", "tier<")
	t.Columns(fields.Columns...)
	options := slices.ContainsFunc(rows, func(r *Row) bool { return r.OptionText != "" })
	if options {
		t.Column("options<")
	}
	if timed {
		t.Columns("ms", "noise", "TFLOP/s a GPU", "one GPU ms", "share of N GPUs", "sent MB", "compute ms", "exposed ms", "scratch MB", "planned MB")
	} else {
		t.Columns("max diff", "limit", "LSE diff", "LSE limit", "float64 rows", "sent bytes", "runs")
	}
	t.Columns("verdict<", "note<")
	for _, r := range rows {
		split := "-"
		if r.Split != parallel.OrderAuto {
			split = r.Split.String()
		}
		row := append([]any{r.modeText(), split, r.Ranks, r.Pass, r.Tier}, r.Cells()...)
		if options {
			row = append(row, r.OptionText)
		}
		switch v, x := r.Verified, r.Timed; {
		case timed && x != nil:
			one, share := "-", "-"
			if x.OneMs > 0 {
				one, share = fmt.Sprintf("%.3f", x.OneMs), fmt.Sprintf("%.1f %%", 100*x.Share)
			}
			row = append(row, fmt.Sprintf("%.3f", x.Ms.Median), noise(x.Ms), fmt.Sprintf("%.4g", x.TFLOPs), one, share,
				megabytes(x.SentBytes), fmt.Sprintf("%.3f", x.ComputeMs), fmt.Sprintf("%.3f", x.ExposedMs))
			if x.PlannedScratch > 0 {
				row = append(row, megabytes(x.ScratchBytes), megabytes(x.PlannedScratch))
			} else {
				row = append(row, "-", "-")
			}
		case timed:
			row = append(row, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-")
		case v != nil && r.Pass != bench.PassForward:
			g := worse(worse(v.DQ, v.DK), v.DV)
			row = append(row, small(g.Max), small(g.Limit), "-", "-", v.Float64Rows, v.SentBytes, v.Runs)
		case v != nil:
			row = append(row, small(v.O.Max), small(v.O.Limit), small(v.LSE.Max), small(v.LSE.Limit), v.Float64Rows, v.SentBytes, v.Runs)
		default:
			row = append(row, "-", "-", "-", "-", "-", "-", "-")
		}
		t.Row(append(row, string(r.Status), r.Note())...)
	}
	_, err := fmt.Fprintln(w, t)
	return err
}

func megabytes(n uint64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

func small(x bench.Number) string { return fmt.Sprintf("%.2g", float64(x)) }

// noise is half the interval of the median; "-" if the samples are too few for one.
func noise(s bench.Summary) string {
	if x := s.Noise(); !math.IsInf(x, 0) {
		return fmt.Sprintf("%.1f %%", 100*x)
	}
	return "-"
}
