// Package bench verifies and times attention over a sweep of problems and prints the
// results.
//
// A row is compared with the float64 reference before it is timed. A wrong row is printed
// as FAIL and has no speed. A row that its tier refuses is printed with the reason.
package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/internal/hostmem"
)

// Status is the outcome of a row.
type Status string

// The outcomes. Only OK has a speed.
const (
	OK          Status = "ok"
	Fail        Status = "FAIL"        // the result is wrong
	Unsupported Status = "unsupported" // refused, with a reason
	OOM         Status = "OOM"         // does not fit the memory of the device or the machine
	Broken      Status = "error"       // the device, the machine or the peer failed
	Interrupted Status = "interrupted" // the run ended before the row did
	Ablated     Status = "ablation"    // timed with part of the work left out; neither a result nor a speed
)

// Row is the result of one problem on one tier, by one peer or by one baseline.
type Row struct {
	Device   string   `json:"device"`
	Tier     string   `json:"tier"`               // the tier that ran, or the one asked for if none ran; of a peer its name
	Kernel   string   `json:"kernel,omitempty"`   // kernel family of tier cuda that was asked for
	Peer     bool     `json:"peer,omitzero"`      // a peer computed it
	Variant  string   `json:"variant,omitempty"`  // step of the ladder, "v1" to "v8"
	Ablation string   `json:"ablation,omitempty"` // the part of the work that was left out
	Tiles    string   `json:"tiles,omitempty"`    // tiles that were named, as in attention.Experiment
	Baseline Baseline `json:"baseline,omitempty"` // set if the row is a baseline
	Line     string   `json:"line,omitempty"`     // name of the problem in its suite
	Pass     Pass     `json:"pass,omitzero"`      // what was timed: fwd, bwd or fwdbwd
	LSE      bool     `json:"lse,omitzero"`       // a forward pass that also returned the log-sum-exp of each row; other passes always have it
	Layers   int      `json:"layers,omitzero"`    // calls of a model, of one of which Ms is the time
	// Ceiling is set if the row is a ceiling of the device. Such a row has no shape, and a
	// storage type only if it is products or fma.
	Ceiling Ceiling `json:"ceiling,omitempty"`

	Tile string `json:"tile,omitempty"`
	fields.Call

	SPIRV map[string]string `json:"spirv_sha256,omitempty"` // SHA-256 of each SPIR-V module by its name

	KV         string   `json:"kv_dtype,omitempty"`     // K/V if they differ; "" where they have the storage type
	OptionText string   `json:"options_text,omitempty"` // the options in words, for tables
	Options    *Options `json:"options,omitempty"`

	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`

	Ms     Summary `json:"ms,omitzero"`
	TFLOPs float64 `json:"tflops,omitzero"` // at the median
	// PeakTFLOPs is the speed of the fastest run, MeanTFLOPs that at the mean time.
	PeakTFLOPs float64 `json:"tflops_peak,omitzero"`
	MeanTFLOPs float64 `json:"tflops_mean,omitzero"`
	// AblationTFLOPs counts the flops of the whole problem over the time of the
	// ablation.
	AblationTFLOPs float64 `json:"ablation_tflops,omitzero"`
	Splits         int     `json:"splits,omitzero"`       // splits of the keys of a sequence
	KVBytes        uint64  `json:"kv_bytes,omitzero"`     // bytes of K, V and their scales that must be read
	Bytes          uint64  `json:"bytes,omitzero"`        // that a run of the ceiling copy reads and writes
	Flops          float64 `json:"flops,omitzero"`        // of a run of a ceiling
	TBs            float64 `json:"tb_per_s,omitzero"`     // KVBytes, or Bytes, over the median time
	SparseRatio    float64 `json:"sparse_ratio,omitzero"` // sparse tokens over all tokens; 1 without lists
	Result         *Result `json:"result,omitempty"`      // set if results are compared with a reference
	// Versus is the median time of each peer and baseline divided by this row's median
	// time: above 1 this row is faster.
	Versus  map[string]float64 `json:"versus,omitempty"`
	Samples []float64          `json:"samples,omitempty"` // time of every run in milliseconds, in order
	Timer   string             `json:"timer,omitempty"`   // the clock of the samples: "device" or "wall"
	Sets    int                `json:"sets,omitzero"`     // input sets rotated through
	Checked Checked            `json:"checked,omitzero"`
	Memory  uint64             `json:"memory_bytes"` // of one input set: Q, K, V, O and scratch
	// InputBytes and OutputBytes count the tensors, tables and lists of one input set.
	// WorkspaceBytes count what the kernels need in addition, as far as the plan tells.
	InputBytes     uint64 `json:"input_bytes,omitzero"`
	OutputBytes    uint64 `json:"output_bytes,omitzero"`
	WorkspaceBytes uint64 `json:"workspace_bytes,omitzero"`
	// PlainBytes is what plain attention would need: inputs, outputs, and the scores and
	// their softmax in the storage type; in a backward pass the gradient of the scores too.
	PlainBytes uint64 `json:"plain_bytes,omitzero"`
	Clock      *Clock `json:"clock,omitempty"` // right after the last run, where the driver tells
	// GPU has the clocks before, during and after the runs, where the driver tells.
	GPU *monitor.Record `json:"gpu,omitempty"`

	// Unsteady says why the time of the row may be off: a clock that was throttled or not
	// steady, or the wall clock in place of timestamps that are unusable. It is empty if nothing is known.
	Unsteady string `json:"unsteady,omitempty"`

	problem Problem
}

// Result describes O of a row that is compared with a reference.
type Result struct {
	Elements int               `json:"elements"`
	NaN      int               `json:"nan"`
	MaxAbs   Number            `json:"max_abs"`
	From     map[string]Number `json:"max_difference,omitempty"` // from each reference
}

// plan fills in the fields that the plan of the call knows.
func (r *Row) plan(p attention.Plan, s Spec) {
	r.Tier, r.Tile, r.Memory, r.Splits = p.Tier.String(), p.Tiles(), hostmem.Sum(p.Bytes, p.WorkspaceBytes), p.Splits
	r.WorkspaceBytes = p.WorkspaceBytes
	if p.Tier == attention.TierCUDA && s.Kernel == "" {
		r.Tile = p.Kernel + " " + p.Tile
	}
}

// Checked is the outcome of verification.
type Checked struct {
	Rows     int    `json:"rows"`               // softmax rows compared with the reference
	Of       int64  `json:"of"`                 // softmax rows of the problem
	Keys     int    `json:"keys,omitzero"`      // keys of KV heads compared, of a backward pass
	MaxError Number `json:"max_error"`          // largest error of O, or of any gradient; null: not finite
	NMSE     Number `json:"nmse"`               // squared error over squared reference; null: not finite
	LSEError Number `json:"lse_error,omitzero"` // largest error of LSE, if the forward pass returned it; null: not finite
}

// Number is a float64 whose NaN and Inf, which wrong results have, are null in JSON. Null is read as NaN.
type Number float64

// MarshalJSON writes null for NaN and Inf.
func (n Number) MarshalJSON() ([]byte, error) {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads null as NaN.
func (n *Number) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}

// SchemaVersion is the version of the JSON of a benchmark, which docs/bench.schema.json
// describes. It changes when a field is renamed, removed or means something else, not when
// one is added.
const SchemaVersion = 1

// RunInfo describes the run that all rows of one invocation belong to.
type RunInfo struct {
	Schema  int       `json:"schema,omitzero"` // SchemaVersion of a benchmark
	Program string    `json:"program"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seed    uint64    `json:"seed"` // of inputs and of sampled rows
	Device  Device    `json:"device"`
	CPU     string    `json:"cpu"`
	Environment
	Suite     string      `json:"suite,omitempty"` // or suites
	Shrunk    bool        `json:"shrunk,omitzero"` // the problems of the suite were cut down for a CPU
	Wide      bool        `json:"-"`               // the Markdown table has every column
	Planned   []*Row      `json:"-"`               // rows without results, for the Markdown table
	OfPeak    bool        `json:"-"`               // the Markdown table has percentages of the ceilings
	Peak      Peak        `json:"-"`               // ceilings that are not measured
	Peers     []peer.Info `json:"peers,omitempty"`
	Baselines []string    `json:"baselines,omitempty"` // rows of this program that the others are compared with too
	Timing    *Timing     `json:"timing,omitempty"`    // as far as it is not the default
	// Stopped says why the run ended before its last row. It is empty if it did not.
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

// Clock is the state of the GPU right after a timed run.
type Clock struct {
	SMMHz      uint32  `json:"sm_mhz"`
	MemoryMHz  uint32  `json:"memory_mhz"`
	PowerWatts float64 `json:"power_watts"`
	Celsius    uint32  `json:"celsius"`
}

// Note is the status and reason of a row that has no result, for tables, or why the time
// of the row may be off.
func (r *Row) Note() string {
	if r.Status == OK || r.Status == Ablated {
		return r.Unsteady
	}
	if r.Reason == "" {
		return string(r.Status)
	}
	return fmt.Sprintf("%s: %s", r.Status, strings.TrimPrefix(r.Reason, string(r.Status)+": "))
}

// Name is the name of the tier with the kernel family that was asked for, of the peer, of
// the baseline or of the ceiling.
func (r *Row) Name() string {
	if r.Ceiling != "" {
		return string(r.Ceiling)
	}
	if r.Baseline != "" {
		return string(r.Baseline)
	}
	return kernelName(r.Tier, r.Kernel)
}

// isBaseline reports whether other rows are compared with this one.
func (r *Row) isBaseline() bool {
	return r.Peer || r.Baseline != "" || r.Tier == attention.TierCUDA.String() && r.Variant == "" && r.Ablation == ""
}

// others lists the names that rows are compared with: peers, then baselines.
func (i *RunInfo) others() (names []string) {
	for _, p := range i.Peers {
		names = append(names, p.Name)
	}
	return append(names, i.Baselines...)
}

const withLSE = " with LSE"

// Who is Name with the variant, the named tiles, LSE and the ablation.
func (r *Row) Who() string {
	who := r.Name()
	if r.Variant != "" {
		who += " " + r.Variant
	}
	if r.Tiles != "" {
		who += " " + r.Tiles
	}
	if r.LSE {
		who += withLSE
	}
	if r.Ablation != "" {
		who += " without " + r.Ablation
	}
	return who
}

// Field is a name and a value of a Key.
type Field struct{ Name, Value string }

// Key says which row of a benchmark a row is: who computed what. Rows of two runs with
// the same Key are compared with one another. Device and suite are not in it.
type Key []Field

// Key is the Key of a row.
func (r *Row) Key() Key {
	if r.Ceiling != "" {
		k := Key{{"ceiling", string(r.Ceiling)}}
		if r.Ceiling.typed() {
			k = append(k, Field{"dtype", r.DType.String()})
		}
		return k
	}
	k := Key{{"tier", r.Name()}}
	add := func(name, value string) {
		if value != "" {
			k = append(k, Field{name, value})
		}
	}
	add("variant", r.Variant)
	add("ablation", r.Ablation)
	add("tiles", r.Tiles)
	add("pass", r.Pass.String())
	for _, n := range []struct {
		name  string
		value int
	}{{"b", r.B}, {"hq", r.Hq}, {"hkv", r.Hkv}, {"sq", r.Sq}, {"sk", r.Sk}, {"d", r.D}, {"dv", r.Dv}} {
		add(n.name, strconv.Itoa(n.value))
	}
	add("causal", r.Causal.String())
	add("options", r.OptionText)
	add("dtype", r.DType.String())
	return k
}

// String is the Key as the name of a Go benchmark: "/tier=coopmat2/pass=fwd/...".
func (k Key) String() string {
	var s strings.Builder
	for _, f := range k {
		s.WriteString("/" + f.Name + "=" + word(f.Value))
	}
	return s.String()
}

// word is a text as part of the name of a Go benchmark, which has no spaces and no
// slashes.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '_'
		case r == '/':
			return ':'
		case r < ' ' || r == 0x7f:
			return -1
		}
		return r
	}, s)
}

// Tally counts rows by status, for the exit code.
type Tally struct {
	Rows  int
	Count map[Status]int
	First map[Status]string // what was said of the first row of each status
}

// Add counts a row.
func (t *Tally) Add(s Status, text string) {
	if t.Count == nil {
		t.Count, t.First = map[Status]int{}, map[Status]string{}
	}
	t.Rows++
	t.Count[s]++
	if t.First[s] == "" {
		t.First[s] = text
	}
}
