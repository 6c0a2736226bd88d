// Package peer times somebody else's attention beside ours. A peer is a child
// process that speaks lines of JSON: a request on its standard input, one
// answer to each on its standard output. What it writes to standard error is
// kept for the message when it fails. scripts/peer_torch.py is one.
//
// Every request has "op" and "id"; every answer repeats the "id". Requests come
// one at a time, in this order: hello, then for each problem one problem, any
// number of time, one release; end at last. A peer also ends when its standard
// input does.
//
//	{"op":"hello","id":1,"protocol":1,"uuid":"8f0e..."}
//
// uuid is that of the GPU under test, empty where there is none. Answer:
//
//	{"id":1,"name":"flash","program":"torch 2.11.0","device":"NVIDIA H200","uuid":"8f0e...","timer":"device"}
//
// name heads the peer's column; timer says whose clock its times are by. A peer
// that cannot work here at all answers its name with a status and a reason, as
// to a problem.
//
//	{"op":"problem","id":2,"batch":16,"heads":8,"heads_kv":8,"seqlen_q":4096,"seqlen_k":4096,
//	 "headdim":128,"headdim_v":128,"causal":"top-left","dtype":"f16","scale":0.088,"sets":3,"seed":7}
//
// The peer makes its own Q, K and V: normal numbers of variance 1, each tensor
// packed as [batch, heads, seqlen, headdim], in as many sets as asked, which
// together exceed the last-level cache. causal is none, top-left (col <= row) or
// bottom-right (col <= row + seqlen_k - seqlen_q); dtype is f16, bf16 or f32;
// scale multiplies Q K^T. It runs once, verifies some rows, and answers:
//
//	{"id":2,"status":"ok","memory_bytes":536870912,"checked":{"rows":256,"max_error":1e-4,"nmse":1e-8}}
//	{"id":2,"status":"unsupported","reason":"no float32"}
//	{"id":2,"status":"wrong","reason":"max error 0.5 is over 0.001"}
//	{"id":2,"status":"error","reason":"out of memory"}
//
// After an answer other than ok the problem is over.
//
//	{"op":"time","id":3,"n":6}
//
// runs n times, each on the next set, and answers what each took on the device:
//
//	{"id":3,"ms":[1.91,1.90,1.91,1.90,1.91,1.92]}
//	{"id":4,"status":"error","reason":"..."}
//
// release and end are answered by {"id":5}.
package peer

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// protocol is the version of what the package comment describes.
const protocol = 1

// What a peer may say of a problem. Other errors are failures of the peer.
var (
	ErrUnsupported = errors.New("not supported by the peer")
	ErrWrong       = errors.New("wrong result of the peer")
)

// Problem is what a peer computes: sizes in elements, causal and dtype by name.
type Problem struct {
	B      int     `json:"batch"`
	Hq     int     `json:"heads"`
	Hkv    int     `json:"heads_kv"`
	Sq     int     `json:"seqlen_q"`
	Sk     int     `json:"seqlen_k"`
	D      int     `json:"headdim"`
	Dv     int     `json:"headdim_v"`
	Causal string  `json:"causal"`
	DType  string  `json:"dtype"`
	Scale  float32 `json:"scale"`
	Sets   int     `json:"sets"` // copies of the tensors to rotate through
	Seed   uint64  `json:"seed"`
}

// Info is what a peer says of itself.
type Info struct {
	Name    string `json:"name"`
	Command string `json:"command"`
	Program string `json:"program,omitempty"`
	Device  string `json:"device,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Timer   string `json:"timer,omitempty"`
}

// Checked is what the peer compared of its own result.
type Checked struct {
	Rows     int      `json:"rows"`
	MaxError *float64 `json:"max_error"` // nil: not a number
	NMSE     *float64 `json:"nmse"`
}

// Answer is a peer's readiness for a problem.
type Answer struct {
	Memory  uint64  `json:"memory_bytes"`
	Checked Checked `json:"checked"`
}

// refusal is an answer that is not ok: in one line, and matching a sentinel.
type refusal struct {
	reason string
	kind   error
}

func (r *refusal) Error() string { return r.reason }
func (r *refusal) Unwrap() error { return r.kind }

// verdict is the part of an answer that says how it went.
type verdict struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
}

var errFailed = errors.New("failed")

// err is nil for "ok" and for no status at all.
func (v verdict) err() error {
	kind, known := map[string]error{"": nil, "ok": nil, "unsupported": ErrUnsupported, "wrong": ErrWrong, "error": errFailed}[v.Status]
	switch {
	case !known:
		return fmt.Errorf("%w: status %s", errRubbish, quote(v.Status))
	case kind == nil:
		return nil
	}
	return &refusal{firstNonEmpty(oneLine(v.Reason), kind.Error()), kind}
}

// errRubbish is an answer outside the protocol. It ends the peer.
var errRubbish = errors.New("answered nonsense")

// A name is a column's header.
var goodName = regexp.MustCompile(`^[\pL\pN_.+-]{1,32}$`)

func (i *Info) check(uuid string) error {
	switch {
	case !goodName.MatchString(i.Name):
		return fmt.Errorf("%w: name %s, want 1 to 32 letters, digits and _.+-", errRubbish, quote(i.Name))
	case uuid != "" && i.UUID != "" && hexOf(uuid) != hexOf(i.UUID):
		return fmt.Errorf("runs on %s (%s), not on the GPU under test (%s)", firstNonEmpty(oneLine(i.Device), "another device"), quote(i.UUID), uuid)
	}
	i.Program, i.Device, i.Timer = oneLine(i.Program), oneLine(i.Device), oneLine(i.Timer)
	return nil
}

// hexOf leaves what counts of a UUID's many spellings.
func hexOf(uuid string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return r
		}
		return -1
	}, strings.ToLower(uuid))
}

// durations checks the times of n runs.
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

// quote shows a peer's words, however long and strange, within a message.
func quote(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	return fmt.Sprintf("%q", s)
}

// oneLine is the text with every run of blanks and of what does not print a space: a
// terminal obeys control characters beyond ASCII too.
func oneLine(s string) string {
	const most = 300
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

func firstNonEmpty(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
