// Package bench verifies and times attention over a sweep of problems, and
// prints what it found.
//
// A row is judged against the float64 reference before it is timed. One that
// is wrong is printed as FAIL and never has a speed; one that its tier refuses
// is printed with the reason.
package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/peer"
)

// Status says how far a row came.
type Status string

// How a row ends. Only OK has a speed.
const (
	OK          Status = "ok"
	Fail        Status = "FAIL"        // wrong numbers
	Unsupported Status = "unsupported" // refused, with a reason
	OOM         Status = "OOM"         // too large for the memory of the device or of this machine
	Broken      Status = "error"       // the device, the machine or the peer failed
	Interrupted Status = "interrupted" // the run ended before the row did
	Ablated     Status = "ablation"    // timed with a part of the work left out: no result, and no speed of one
)

// Row is one line of a benchmark: one problem on one tier, or by one peer.
type Row struct {
	Device   string   `json:"device"`
	Tier     string   `json:"tier"`               // that ran, the one asked for if none did; or the peer's name
	Kernel   string   `json:"kernel,omitempty"`   // family of tier cuda that was asked for
	Peer     bool     `json:"peer,omitzero"`      // somebody else's attention
	Variant  string   `json:"variant,omitempty"`  // step of the ladder, "v1" to "v8"
	Ablation string   `json:"ablation,omitempty"` // what was left out
	Baseline Baseline `json:"baseline,omitempty"` // what rows are compared with, and no row of its own
	Line     string   `json:"line,omitempty"`     // of the suite

	Tile   string           `json:"tile,omitempty"`
	B      int              `json:"batch"`
	Hq     int              `json:"heads"`
	Hkv    int              `json:"heads_kv"`
	Sq     int              `json:"seqlen_q"`
	Sk     int              `json:"seqlen_k"`
	D      int              `json:"headdim"`
	Dv     int              `json:"headdim_v"`
	Causal attention.Causal `json:"causal"`
	DType  attention.DType  `json:"dtype"`

	KV         attention.KVType `json:"kv_dtype,omitzero"`
	OptionText string           `json:"options_text,omitempty"` // what the problem has beside its tensors, for people
	Options    *Options         `json:"options,omitempty"`

	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`

	Ms     Summary `json:"ms,omitzero"`
	TFLOPs float64 `json:"tflops,omitzero"` // at the median
	// AblationTFLOPs is the flops of the whole problem over the time of what was
	// left of it.
	AblationTFLOPs float64 `json:"ablation_tflops,omitzero"`
	Splits         int     `json:"splits,omitzero"`       // parts that the keys of a sequence were cut into
	KVBytes        uint64  `json:"kv_bytes,omitzero"`     // of K, V and their scales that have to be read
	TBs            float64 `json:"tb_per_s,omitzero"`     // of those bytes, at the median
	SparseRatio    float64 `json:"sparse_ratio,omitzero"` // of tokens listed to tokens; 1 without lists
	Result         *Result `json:"result,omitempty"`      // where it is compared with a reference's
	// Versus is each peer's median time over this row's: above 1 this row is faster.
	Versus  map[string]float64 `json:"versus,omitempty"`
	Samples []float64          `json:"samples,omitempty"` // every timed run, milliseconds, in order
	Timer   string             `json:"timer,omitempty"`   // clock the samples are by: "device" or "wall"
	Sets    int                `json:"sets,omitzero"`     // input sets rotated through
	Checked Checked            `json:"checked,omitzero"`
	Memory  uint64             `json:"memory_bytes"`    // of one input set: Q, K, V, O and scratch
	Clock   *Clock             `json:"clock,omitempty"` // right after the last run, where the driver tells

	problem Problem
}

// Result is what is in O.
type Result struct {
	Elements int               `json:"elements"`
	NaN      int               `json:"nan"`
	MaxAbs   Number            `json:"max_abs"`
	From     map[string]Number `json:"max_difference,omitempty"` // from each reference
}

// plan fills in how the row is computed.
func (r *Row) plan(p attention.Plan, s Spec) {
	r.Tier, r.Tile, r.Memory, r.Splits = p.Tier.String(), p.Tiles(), p.Bytes, p.Splits
	if p.Tier == attention.TierCUDA && s.Kernel == "" {
		r.Tile = p.Kernel + " " + p.Tile
	}
}

// Checked is what verification compared and found.
type Checked struct {
	Rows     int    `json:"rows"`      // softmax rows compared with the reference
	Of       int64  `json:"of"`        // softmax rows of the problem
	MaxError Number `json:"max_error"` // largest |O - reference|
	NMSE     Number `json:"nmse"`      // squared error over squared reference
}

// Number is a float64 that JSON can always hold: NaN and Inf, which wrong
// results have, are written as null.
type Number float64

// MarshalJSON writes null for what JSON has no number for.
func (n Number) MarshalJSON() ([]byte, error) {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// RunInfo is what one invocation's rows share.
type RunInfo struct {
	Program   string      `json:"program"`
	Version   string      `json:"version"`
	Started   time.Time   `json:"started"`
	Seed      uint64      `json:"seed"` // of inputs and of sampled rows
	Device    Device      `json:"device"`
	CPU       string      `json:"cpu"`
	Suite     string      `json:"suite,omitempty"` // or suites
	Peers     []peer.Info `json:"peers,omitempty"`
	Baselines []string    `json:"baselines,omitempty"` // rows of this program that the others are compared with too
	// Stopped is why the run ended before its last row; empty: it did not.
	Stopped string `json:"stopped,omitempty"`
}

// Device describes where the rows ran.
type Device struct {
	Name    string `json:"name"`
	Type    string `json:"type,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Driver  string `json:"driver,omitempty"`
	Version string `json:"driver_version,omitempty"`
	API     string `json:"api,omitempty"`
}

// Clock is the state of the GPU under load.
type Clock struct {
	SMMHz      uint32  `json:"sm_mhz"`
	MemoryMHz  uint32  `json:"memory_mhz"`
	PowerWatts float64 `json:"power_watts"`
	Celsius    uint32  `json:"celsius"`
}

// Note is the row's outcome for people: empty when all is well.
func (r *Row) Note() string {
	if r.Status == OK || r.Status == Ablated {
		return ""
	}
	if r.Reason == "" {
		return string(r.Status)
	}
	return fmt.Sprintf("%s: %s", r.Status, strings.TrimPrefix(r.Reason, string(r.Status)+": "))
}

// Name is the tier, with the family of kernels that was asked for, the peer, or
// the form that others are compared with.
func (r *Row) Name() string {
	if r.Baseline != "" {
		return string(r.Baseline)
	}
	return kernelName(r.Tier, r.Kernel)
}

// isBaseline reports whether other rows are compared with this one.
func (r *Row) isBaseline() bool {
	return r.Peer || r.Baseline != "" || r.Tier == attention.TierCUDA.String() && r.Variant == "" && r.Ablation == ""
}

// others names what rows are compared with: the peers, then tier cuda.
func (i *RunInfo) others() (names []string) {
	for _, p := range i.Peers {
		names = append(names, p.Name)
	}
	return append(names, i.Baselines...)
}

// Who names what computed the row: the tier with its variant and what was left
// out of it, or the peer.
func (r *Row) Who() string {
	who := r.Name()
	if r.Variant != "" {
		who += " " + r.Variant
	}
	if r.Ablation != "" {
		who += " without " + r.Ablation
	}
	return who
}
