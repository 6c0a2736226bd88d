package ranks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/pause"
)

// Mode is how ranks share a problem: a mode of package parallel, or decode over a cache that is
// sharded by tokens. Its text is the name alone.
type Mode struct {
	parallel.Mode
	Decode bool
	Split  parallel.Order // of rows and keys over the ranks
	Inner  int            // consecutive ranks that share heads in mode 2d; 0: those of a host
}

// decode is the name of that mode.
const decode = "decode"

// ParseMode reads what String writes.
func ParseMode(s string) (Mode, error) {
	if strings.EqualFold(s, decode) {
		return Mode{Decode: true}, nil
	}
	m, err := parallel.ParseMode(s)
	if err != nil {
		return Mode{}, fmt.Errorf("%w, or %s", err, decode)
	}
	return Mode{Mode: m}, nil
}

// String is "decode" or the name of the mode.
func (m Mode) String() string {
	if m.Decode {
		return decode
	}
	return m.Mode.String()
}

// MarshalText writes String.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads it.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMode(string(text))
	return err
}

// work is this rank's part of a problem.
type work struct {
	rows, keys []parallel.Span                             // of the problem; every rank has all rows of decode
	room       int                                         // keys that the tensors of this rank have room for
	plan       parallel.Plan                               // zero for decode
	sent       uint64                                      // bytes, of the plan and this pass
	scratch    uint64                                      // bytes of memory, of the plan and the last call of this pass
	setup      func(ctx context.Context, t *tensors) error // makes O and LSE for call; nil: call needs none
	call       func(ctx context.Context, t *tensors) error
}

// prepare divides a problem.
func (s *Session) prepare(op *parallel.Op, p parallel.Problem, m Mode, pass bench.Pass) (*work, error) {
	switch {
	case m.Decode && pass != bench.PassForward:
		return nil, fmt.Errorf("%w: decode has no gradients", attention.ErrUnsupported)
	case m.Decode && m.Split != parallel.OrderAuto:
		return nil, fmt.Errorf("%w: mode decode takes no split: blocks of tokens go to the ranks in turn", attention.ErrUnsupported)
	case m.Decode:
		return s.prepareDecode(op, p)
	}
	plan, err := op.Plan(p)
	if err != nil {
		return nil, err
	}
	forward := func(ctx context.Context, t *tensors) error {
		return op.Forward(ctx, attention.OnStream(s.stream), t.args(p))
	}
	backward := func(ctx context.Context, t *tensors) error {
		return op.Backward(ctx, attention.OnStream(s.stream),
			parallel.BackwardArgs{Args: t.args(p), DO: t.DO, DQ: t.DQ, DK: t.DK, DV: t.DV})
	}
	keys := plan.Keys[s.Rank()]
	w := &work{rows: plan.Rows[s.Rank()], keys: keys, room: count(keys), plan: plan, sent: plan.Forward.SentBytes,
		scratch: plan.Forward.ScratchBytes, call: forward}
	switch pass {
	case bench.PassBackward:
		w.setup, w.call, w.sent, w.scratch = forward, backward, plan.Backward.SentBytes, plan.Backward.ScratchBytes
	case bench.PassBoth:
		w.sent, w.scratch = w.sent+plan.Forward.LSEBytes+plan.Backward.SentBytes, plan.Backward.ScratchBytes
		w.call = func(ctx context.Context, t *tensors) error {
			if err := forward(ctx, t); err != nil {
				return err
			}
			return backward(ctx, t)
		}
	}
	return w, nil
}

// args are the arguments of a forward call.
func (t *tensors) args(p parallel.Problem) parallel.Args {
	return parallel.Args{Problem: p, Q: t.Q, K: t.K, V: t.V, O: t.O, LSE: t.LSE}
}

func (s *Session) prepareDecode(op *parallel.Op, p parallel.Problem) (*work, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	shard, cfg := op.Shard(), op.Config()
	w := &work{rows: []parallel.Span{{First: 0, N: p.Sq}}}
	for at := 0; at < p.Sk; at += shard.Block {
		if shard.Owner(at) == s.Rank() {
			w.keys = append(w.keys, parallel.Span{First: at, N: min(shard.Block, p.Sk-at)})
		}
	}
	w.room = max(1, count(w.keys)) // a cache has room for a token
	tokens := make([]int, p.B)
	for b := range tokens {
		tokens[b] = p.Sk
	}
	w.sent = uint64(s.Ranks()-1) * uint64(p.B) * uint64(p.Hq) * uint64(p.Sq) * uint64(cfg.ValueDim()+1) * 4
	w.call = func(ctx context.Context, t *tensors) error {
		return op.Decode(ctx, attention.OnStream(s.stream),
			parallel.DecodeArgs{B: p.B, Hq: p.Hq, Hkv: p.KVHeads(), Sq: p.Sq, Tokens: tokens, Q: t.Q,
				Cache: parallel.Cache{K: t.K, V: t.V, Capacity: w.room}, O: t.O, LSE: t.LSE})
	}
	return w, nil
}

// count is the number of rows of spans.
func count(spans []parallel.Span) (n int) {
	for _, x := range spans {
		n += x.N
	}
	return n
}

// stepTimes are the times of the steps of many calls on this rank.
type stepTimes struct {
	names []string // in the order of the steps
	us    map[string][]float64
	polls map[string][]float64
}

func (x *stepTimes) add(s parallel.DecodeStep) {
	if x.us == nil {
		x.us, x.polls = map[string][]float64{}, map[string][]float64{}
	}
	if _, ok := x.us[s.Name]; !ok {
		x.names = append(x.names, s.Name)
	}
	x.us[s.Name] = append(x.us[s.Name], s.Took.Seconds()*1e6)
	if s.Polls > 0 {
		x.polls[s.Name] = append(x.polls[s.Name], float64(s.Polls))
	}
}

// medians are steps with one rank each.
func (x *stepTimes) medians() []Step {
	var list []Step
	for _, name := range x.names {
		step := Step{Name: name, Us: []float64{median(x.us[name])}}
		if polls := x.polls[name]; polls != nil {
			step.Polls = []float64{median(polls)}
		}
		list = append(list, step)
	}
	return list
}

// stepsOf joins the medians of all ranks; a step that some rank does not have is left out.
func stepsOf(all [][]Step) []Step {
	var list []Step
	for _, first := range all[0] {
		step := Step{Name: first.Name}
		for _, of := range all {
			if i := slices.IndexFunc(of, func(s Step) bool { return s.Name == first.Name }); i >= 0 {
				step.Us = append(step.Us, of[i].Us...)
				step.Polls = append(step.Polls, of[i].Polls...)
			}
		}
		if len(step.Us) == len(all) {
			list = append(list, step)
		}
	}
	return list
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// alone is a problem on this rank's device.
type alone struct {
	*Session
	op   *attention.Op
	t    *tensors
	args attention.Args
}

// prepare compiles the kernels of a pass.
func (x *alone) prepare(pass bench.Pass) error {
	if pass != bench.PassBackward {
		if err := x.op.PrepareFor(x.args); err != nil || pass == bench.PassForward {
			return err
		}
	}
	return x.op.PrepareBackwardFor(x.t.backward(x.args))
}

// forward computes O and LSE.
func (x *alone) forward(ctx context.Context) error {
	return x.ordered(ctx, func() error { return x.op.Forward(attention.OnStream(x.stream), x.args) })
}

// backward computes the gradients from O and LSE.
func (x *alone) backward(ctx context.Context) error {
	return x.ordered(ctx, func() error { return x.op.Backward(attention.OnStream(x.stream), x.t.backward(x.args)) })
}

// pass computes a pass.
func (x *alone) pass(ctx context.Context, pass bench.Pass) error {
	if pass != bench.PassBackward {
		if err := x.forward(ctx); err != nil || pass == bench.PassForward {
			return err
		}
	}
	return x.backward(ctx)
}

// ordered runs a call behind a barrier and waits for it.
func (x *alone) ordered(ctx context.Context, call func() error) error {
	if x.stream == nil {
		return call()
	}
	if err := x.t.memory.Barrier(); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	value, err := x.stream.Submit()
	if err != nil {
		return err
	}
	// Polls for a short time as decoding over ranks does, so that the times compare.
	var spin pause.Spin
	for begin := time.Now(); time.Since(begin) < pollTime; spin.Wait() {
		if now, err := x.stream.Timeline().Value(); now >= value || err != nil {
			break
		}
	}
	return x.stream.Wait(ctx)
}

const pollTime = 4 * time.Millisecond
