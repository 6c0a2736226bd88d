package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"vkattn/internal/accuracy"
)

// entry is the result of one case: a line of the journal, the file that VKATTN_TEST_LOG
// names. A line is written when its case finishes, in one write, so that the journal of a
// stopped run is complete up to then and several processes can share a file.
type entry struct {
	Test  string `json:"test"` // as -run takes it, without the case
	Case  string `json:"case"`
	Seed  uint64 `json:"seed"`
	Error string `json:"error,omitempty"`

	// The largest errors of O, and of LSE if there is one, and their share of what the rules
	// allow.
	Rows  int     `json:"rows"` // judged
	Max   float64 `json:"max"`
	NMSE  float64 `json:"nmse"`
	Share float64 `json:"share"`

	MS spent `json:"ms"`
}

// spent holds the times of a case.
type spent struct {
	Make      milliseconds `json:"make"`
	Compile   milliseconds `json:"compile"` // recording, which is long only for the first case of a pipeline
	Run       milliseconds `json:"run"`     // its share of a submission, with copies
	Reference milliseconds `json:"reference"`
	Check     milliseconds `json:"check"`
}

type milliseconds float64

// MarshalJSON writes milliseconds without the digits that nobody reads.
func (m milliseconds) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%.1f", float64(m)), nil }

func inMilliseconds(d time.Duration) milliseconds { return milliseconds(d.Seconds() * 1e3) }

// timed calls a function and stores how long it took.
func timed(took *milliseconds, do func() error) error {
	start := time.Now()
	err := do()
	*took = inMilliseconds(time.Since(start))
	return err
}

// measured stores the errors of a case.
func (x *entry) measured(v *accuracy.Verdict) {
	if v == nil {
		return
	}
	o := &v.Tensors[0].Whole
	x.Rows, x.Max = v.Rows, finite(o.Max)
	if !math.IsInf(o.NMSE, 1) { // infinite if the reference is all zeros
		x.NMSE = finite(o.NMSE)
	}
	for i := range v.Tensors {
		x.Share = max(x.Share, finite(v.Tensors[i].Whole.Share()))
	}
}

// finite returns a number that JSON can hold.
func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.MaxFloat64
	}
	return x
}

var journal = sync.OnceValues(func() (*os.File, error) {
	name := os.Getenv("VKATTN_TEST_LOG")
	if name == "" {
		return nil, nil
	}
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
})

// write appends the entry to the journal, if there is one.
func (x *entry) write(failed error) error {
	f, err := journal()
	if f == nil || err != nil {
		return err
	}
	if failed != nil {
		x.Error = failed.Error()
	}
	line, err := json.Marshal(x)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	return err
}
