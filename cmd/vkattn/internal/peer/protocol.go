// Package peer times another program's attention in turns with ours. A peer is a child
// process that reads requests from standard input and writes one answer to each to
// standard output, as lines of JSON. If it fails, the end of its standard error is in the
// error message. scripts/peer_torch.py is a peer.
//
// Every request has "op" and "id"; every answer repeats the "id". Requests come one at a
// time: hello; then for each problem one problem, any number of time, and one release;
// at last end. A peer also ends when its standard input is closed.
//
//	{"op":"hello","id":1,"protocol":1,"uuid":"8f0e..."}
//
// uuid is the UUID of the GPU under test, empty if it has none. Answer:
//
//	{"id":1,"name":"flash","program":"torch 2.11.0","device":"NVIDIA H200","uuid":"8f0e...","timer":"device"}
//
// name is the header of the peer's column; timer is the clock of its times, "device" or
// "wall". A peer that cannot work on this machine answers with its name, a status and a
// reason, as to a problem.
//
//	{"op":"problem","id":2,"batch":16,"heads":8,"heads_kv":8,"seqlen_q":4096,"seqlen_k":4096,
//	 "headdim":128,"headdim_v":128,"causal":"top-left","dtype":"f16","scale":0.088,"sets":3,"seed":7}
//
// The peer makes its own Q, K and V: normal numbers of variance 1, contiguous as
// [batch, heads, seqlen, headdim], in the given number of sets, which together exceed the
// last-level cache. causal is none, top-left (col <= row) or bottom-right
// (col <= row + seqlen_k - seqlen_q); dtype is f16, bf16 or f32; scale multiplies Q K^T.
// The peer runs once, verifies some rows and answers:
//
//	{"id":2,"status":"ok","memory_bytes":536870912,"checked":{"rows":256,"max_error":1e-4,"nmse":1e-8}}
//	{"id":2,"status":"unsupported","reason":"no float32"}
//	{"id":2,"status":"wrong","reason":"max error 0.5 is over 0.001"}
//	{"id":2,"status":"oom","reason":"the scores take 64 GiB, 12 are free"}
//	{"id":2,"status":"error","reason":"..."}
//
// After an answer other than ok the problem is over.
//
// A problem of a backward pass has "pass":"bwd", a problem of both passes "pass":"fwdbwd".
// The answer repeats it: a peer that does not repeat it times no backward pass. The
// gradient of O holds normal numbers; the peer computes the gradients of Q, K and V. The
// backward pass starts from a forward pass that is not timed. memory_bytes is what one set
// takes before the backward pass, with all that the forward pass keeps.
//
// A peer whose answer to hello has "modifiers":true also gets problems with score and mask
// modifiers, as texts of docs/modifiers.md: "score_mod":"s + bias[h, abs(i - j)]",
// "mask_mod":"j <= i". They apply to scores after the scale, with the causal mask. i is the
// position of the row among the keys. "tables":"bias=16x32,doc=doc.npy" has their tables:
// random float32 of these sizes, or a .npy file.
//
//	{"op":"time","id":3,"n":6}
//
// The peer runs n times, each on the next set, and answers with the device time of each
// run in milliseconds:
//
//	{"id":3,"ms":[1.91,1.90,1.91,1.90,1.91,1.92]}
//	{"id":4,"status":"error","reason":"..."}
//
// The answer to release and end is {"id":5}.
package peer

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"vkattn/cmd/vkattn/internal/fields"
)

// protocol is the version of the protocol in the package comment.
const protocol = 1

// Errors by which a peer refuses a problem. Any other error is a failure of the peer.
var (
	ErrUnsupported = errors.New("not supported by the peer")
	ErrWrong       = errors.New("wrong result of the peer")
	ErrOutOfMemory = errors.New("out of memory in the peer")
)

// ErrNoPeer is a command that does not answer hello: it is no peer, or cannot be run at all.
var ErrNoPeer = errors.New("is no peer")

type noPeer struct{ error }

func (noPeer) Is(target error) bool { return target == ErrNoPeer }

// Problem is the problem of a request.
type Problem struct {
	fields.Call
	Pass  string  `json:"pass,omitempty"` // "bwd" or "fwdbwd"; "": the forward pass
	Scale float32 `json:"scale"`
	Sets  int     `json:"sets"` // copies of the tensors to rotate through
	Seed  uint64  `json:"seed"`

	ScoreMod string `json:"score_mod,omitempty"` // modifiers and their tables
	MaskMod  string `json:"mask_mod,omitempty"`
	Tables   string `json:"tables,omitempty"`
}

// Info is a peer's answer to hello.
type Info struct {
	Name    string `json:"name"`
	Command string `json:"command"`
	Program string `json:"program,omitempty"`
	Device  string `json:"device,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Timer   string `json:"timer,omitempty"`

	Modifiers bool `json:"modifiers,omitempty"` // it takes problems with modifiers
}

// Checked is the outcome of the peer's verification of its result.
type Checked struct {
	Rows     int      `json:"rows"`
	MaxError *float64 `json:"max_error"` // nil: not a number
	NMSE     *float64 `json:"nmse"`
}

// Answer is a peer's answer to a problem.
type Answer struct {
	Memory  uint64  `json:"memory_bytes"`
	Pass    string  `json:"pass"` // as in the problem
	Checked Checked `json:"checked"`
}

// refusal is the error of an answer that is not ok. Its text is one line; it matches
// kind.
type refusal struct {
	reason string
	kind   error
}

func (r *refusal) Error() string { return r.reason }
func (r *refusal) Unwrap() error { return r.kind }

// verdict is the status of an answer.
type verdict struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
}

var errFailed = errors.New("failed")

// err is nil for "ok" and for no status at all.
func (v verdict) err() error {
	kind, known := map[string]error{"": nil, "ok": nil, "unsupported": ErrUnsupported, "wrong": ErrWrong,
		"oom": ErrOutOfMemory, "error": errFailed}[v.Status]
	switch {
	case !known:
		return fmt.Errorf("%w: status %s", errRubbish, quote(v.Status))
	case kind == nil:
		return nil
	}
	return &refusal{cmp.Or(oneLine(v.Reason), kind.Error()), kind}
}

// errRubbish is an answer that breaks the protocol. The process is then stopped.
var errRubbish = errors.New("answered nonsense")

// A name must be usable as the header of a column.
var goodName = regexp.MustCompile(`^[\pL\pN_.+-]{1,32}$`)

func (i *Info) check(uuid string) error {
	switch {
	case !goodName.MatchString(i.Name):
		return fmt.Errorf("%w: name %s, want 1 to 32 letters, digits and _.+-", errRubbish, quote(i.Name))
	case uuid != "" && i.UUID != "" && hexOf(uuid) != hexOf(i.UUID):
		return fmt.Errorf("runs on %s (%s), not on the GPU under test (%s)",
			cmp.Or(oneLine(i.Device), "another device"), quote(i.UUID), uuid)
	}
	i.Program, i.Device, i.Timer = oneLine(i.Program), oneLine(i.Device), oneLine(i.Timer)
	return nil
}

// hexOf returns the hexadecimal digits of a UUID, which has many spellings.
func hexOf(uuid string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return r
		}
		return -1
	}, strings.ToLower(uuid))
}

// durations converts the times of n runs and checks them.
func durations(ms []float64, n int) ([]time.Duration, error) {
	if len(ms) != n {
		return nil, fmt.Errorf("%w: %d times for %d runs", errRubbish, len(ms), n)
	}
	out := make([]time.Duration, n)
	for i, t := range ms {
		if !(t > 0) || t*1e6 >= 1<<63 {
			return nil, fmt.Errorf("%w: a run of %v ms", errRubbish, t)
		}
		out[i] = max(1, time.Duration(t*1e6))
	}
	return out, nil
}

// quote shortens and quotes a peer's text for a message.
func quote(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	return fmt.Sprintf("%q", s)
}

// oneLine replaces every run of blanks and of characters that do not print by a space:
// terminals obey control characters beyond ASCII too.
func oneLine(s string) string {
	const most = 300
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}
