package verify

import (
	"fmt"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
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
