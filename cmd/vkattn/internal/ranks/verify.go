package ranks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
)

// sampled is about how many rows of a problem each rank gives to the float64 reference. The others
// are compared with one device.
const sampled = 1024

// finding is what a rank found about its rows.
type finding struct {
	Diffs
	Reasons []string
	Rows    int    // judged by the float64 reference
	Sent    uint64 // in one run
}

// Verify computes a problem in a mode over all ranks, and whole on each rank's device. Each rank
// compares its rows. The limit is twice that of an error, as either result may have one; the
// float64 reference judges sampled rows. err ends the run of all ranks.
func Verify(ctx context.Context, s *Session, p bench.Problem, tier attention.Tier, mode Mode, runs int,
	seed uint64) (*Row, error) {
	v := &verification{Session: s, ctx: ctx, runs: runs, seed: seed}
	v.cfg, v.mode, v.pass = s.config(p.Config, tier, mode), mode, p.Pass
	v.problem = parallel.Problem{Shape: p.Shape}
	row := newRow(s, p, tier, mode, seed)
	found, refusal, err := v.run()
	row.of(v.work)
	if err != nil || refusal != nil {
		row.refuse(refusal)
		return row, err
	}
	all, err := Gather(ctx, s, found)
	if err != nil {
		return row, err
	}
	row.Verified = &Verified{Runs: runs, Rows: int64(p.Shape.B) * int64(p.Shape.Hq) * int64(p.Shape.Sq)}
	for r, f := range all {
		for i, d := range row.Verified.of(p.Pass) {
			*d = worse(*d, *f.of(p.Pass)[i])
		}
		row.Verified.Float64Rows = max(row.Verified.Float64Rows, f.Rows)
		row.Verified.SentBytes = max(row.Verified.SentBytes, f.Sent)
		for _, reason := range f.Reasons {
			row.Status = bench.Fail
			row.Reasons = append(row.Reasons, fmt.Sprintf("rank %d: %s", r, reason))
		}
	}
	return row, nil
}

// Planned are the rows of a run without results.
func Planned(s *Session, problems []bench.Problem, tiers []attention.Tier, modes []Mode, seed uint64) (rows []*Row) {
	for _, p := range problems {
		for _, tier := range tiers {
			for _, mode := range modes {
				rows = append(rows, newRow(s, p, tier, mode, seed))
			}
		}
	}
	return rows
}

// newRow describes a problem.
func newRow(s *Session, p bench.Problem, tier attention.Tier, mode Mode, seed uint64) *Row {
	row := &Row{Device: "cpu", Ranks: s.Ranks(), Mode: mode, Split: mode.Split, Pass: p.Pass, Tier: tier.String(),
		Call: fields.Of(p.Shape, p.Config), OptionText: p.OptionText(), Seed: seed, Status: bench.OK}
	if s.Device != nil {
		row.Device = s.Device.Info().Name
	}
	return row
}

// of tells what the plan of a problem chose; w is nil if there is none.
func (r *Row) of(w *work) {
	if w == nil || r.Mode.Decode {
		return
	}
	r.Schedule = w.plan.Schedule
	if w.plan.Inner > 1 && w.plan.Outer > 1 {
		r.Inner = w.plan.Inner
	}
	switch {
	case r.Split != parallel.OrderAuto:
	case w.plan.Zigzag:
		r.Split = parallel.OrderZigzag
	default:
		r.Split = parallel.OrderContiguous
	}
}

// refuse gives a row the status of a refusal.
func (r *Row) refuse(x *Refusal) {
	if x == nil {
		r.Status = bench.Broken
		return
	}
	r.Status = x.Status
	r.Reasons = append(r.Reasons, fmt.Sprintf("rank %d: %s", x.Rank, x.Reason))
}

// worse is the difference that is closer to its limit.
func worse(a, b Diff) Diff {
	if math.IsNaN(float64(a.Max)) || float64(a.Max)*float64(b.Limit) > float64(b.Max)*float64(a.Limit) {
		return a
	}
	return b
}

// verification is Verify on one rank.
type verification struct {
	*Session
	ctx     context.Context
	cfg     parallel.Config
	problem parallel.Problem
	runs    int
	seed    uint64
	mode    Mode
	pass    bench.Pass
	*work
	in [4][]byte // Q, K, V and dO, whole
}

func (v *verification) run() (found finding, refusal *Refusal, err error) {
	op, err := parallel.New(v.Group, attention.On(v.Device), v.cfg)
	if err == nil {
		defer op.Close()
		v.work, err = v.prepare(op, v.problem, v.mode, v.pass)
	}
	if refusal, err = v.agree(v.ctx, err); refusal != nil || err != nil {
		return found, refusal, err
	}
	cfg, p := &v.cfg.Config, &v.problem
	whole := sizes(cfg, p, v.pass, p.Sq, p.Sk)
	for i, n := range [...]int64{whole[tensorQ], whole[tensorK], whole[tensorV], whole[tensorDO]} {
		v.in[i] = inputs.New(n/int64(cfg.DType.Size()), cfg.DType, inputs.Normal, v.seed+uint64(i))
	}
	// One device first: each rank has its own.
	one, err := v.one()
	if refusal, err = v.agree(v.ctx, err); refusal != nil || err != nil {
		return found, refusal, err
	}
	t, err := v.allocate(sizes(cfg, p, v.pass, count(v.rows), v.room), v.buffers(v.mode))
	if err == nil {
		defer t.memory.Free()
		size := cfg.DType.Size()
		err = errors.Join(
			t.write(tensorQ, cut(v.in[0], v.rows, p.B*p.Hq, p.Sq, cfg.HeadDim*size)),
			t.write(tensorK, cut(v.in[1], v.keys, p.B*p.KVHeads(), p.Sk, cfg.HeadDim*size)),
			t.write(tensorV, cut(v.in[2], v.keys, p.B*p.KVHeads(), p.Sk, cfg.ValueDim()*size)))
		if v.pass != bench.PassForward {
			err = errors.Join(err, t.write(tensorDO, cut(v.in[3], v.rows, p.B*p.Hq, p.Sq, cfg.ValueDim()*size)))
		}
	}
	if refusal, err = v.agree(v.ctx, err); refusal != nil || err != nil {
		return found, refusal, err
	}
	if v.setup != nil {
		if err := v.setup(v.ctx, t); err != nil {
			refusal, ended := v.agree(v.ctx, err) // all ranks have an error
			return found, refusal, ended
		}
	}
	var results [][]byte
	for n := range v.runs {
		before := v.Meter.Bytes
		if err := v.call(v.ctx, t); err != nil {
			refusal, ended := v.agree(v.ctx, err)
			return found, refusal, ended
		}
		found.Sent = v.Meter.Bytes - before
		again, err := t.results(v.ctx, v.pass)
		if err != nil {
			return found, nil, err
		}
		if n == 0 {
			results = again // the first run is judged: nothing is warm yet
		} else if !slices.EqualFunc(results, again, bytes.Equal) {
			found.Reasons = append(found.Reasons, fmt.Sprintf("run %d has other bits", n+1))
		}
	}
	return found, nil, v.judge(&found, results, one)
}

// results are the bytes of what a pass computes: O and LSE, or dQ, dK and dV.
func (t *tensors) results(ctx context.Context, pass bench.Pass) (list [][]byte, err error) {
	tensors := []int{tensorO, tensorLSE}
	if pass != bench.PassForward {
		tensors = []int{tensorDQ, tensorDK, tensorDV}
	}
	for _, tensor := range tensors {
		b, err := t.blocks[tensor].Read(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// one computes the whole problem on this rank's device.
func (v *verification) one() (results [][]byte, err error) {
	cfg, p := v.cfg.Config, &v.problem
	t, err := v.allocate(sizes(&cfg, p, v.pass, p.Sq, p.Sk), ownBuffers(cfg.Tier))
	if err != nil {
		return nil, err
	}
	defer t.memory.Free()
	if err := errors.Join(t.write(tensorQ, v.in[0]), t.write(tensorK, v.in[1]), t.write(tensorV, v.in[2]),
		t.write(tensorDO, v.in[3])); err != nil {
		return nil, err
	}
	op, err := attention.New(attention.On(v.Device), cfg)
	if err != nil {
		return nil, err
	}
	defer op.Close()
	x := &alone{v.Session, op, t, attention.Args{Shape: p.Shape, Q: t.Q, K: t.K, V: t.V, O: t.O, LSE: t.LSE}}
	if err := x.forward(v.ctx); err != nil {
		return nil, err
	}
	if v.pass != bench.PassForward {
		if err := x.backward(v.ctx); err != nil {
			return nil, err
		}
	}
	return t.results(v.ctx, v.pass)
}

// compared is a tensor of a pass, of which this rank has spans of rows.
type compared struct {
	name  string
	dtype attention.DType
	spans []parallel.Span
	heads int // of the batch
	rows  int
	bytes int // of a row
}

func (v *verification) compared() []compared {
	cfg, p := &v.cfg.Config, &v.problem
	size, queries, keys := cfg.DType.Size(), p.B*p.Hq, p.B*p.KVHeads()
	if v.pass != bench.PassForward {
		return []compared{
			{"dQ", cfg.DType, v.rows, queries, p.Sq, cfg.HeadDim * size},
			{"dK", cfg.DType, v.keys, keys, p.Sk, cfg.HeadDim * size},
			{"dV", cfg.DType, v.keys, keys, p.Sk, cfg.ValueDim() * size},
		}
	}
	return []compared{
		{"O", cfg.DType, v.rows, queries, p.Sq, cfg.ValueDim() * size},
		{"LSE", attention.F32, v.rows, queries, p.Sq, 4},
	}
}

// judge compares this rank's part of each tensor with that of one device, and with the float64 reference in
// place of that of one device. The limit of a difference is twice that of an error.
func (v *verification) judge(found *finding, mine, one [][]byte) error {
	list, diffs := v.compared(), found.of(v.pass)
	for i, x := range list {
		diffs[i].Max = bench.Number(difference(x.dtype, mine[i], cut(one[i], x.spans, x.heads, x.rows, x.bytes)))
		paste(one[i], mine[i], x.spans, x.heads, x.rows, x.bytes)
	}
	verdict, err := v.reference(one)
	if err != nil {
		return err
	}
	found.Rows = verdict.Rows
	if !verdict.Pass() {
		found.Reasons = append(found.Reasons, verdict.String())
	}
	for i, d := range diffs {
		d.Limit = bench.Number(2 * verdict.Tensors[i].Whole.LimMax)
		if !(d.Max <= d.Limit) {
			found.Reasons = append(found.Reasons,
				fmt.Sprintf("%s differs from one device by %.3g, limit %.3g", list[i].name, float64(d.Max), float64(d.Limit)))
		}
	}
	return nil
}

// reference judges the results of a pass on sampled rows by the float64 reference.
func (v *verification) reference(of [][]byte) (*accuracy.Verdict, error) {
	host := func(b []byte) attention.Tensor { return attention.Tensor{Host: b} }
	cfg, p := v.cfg.Config, &v.problem
	args := attention.Args{Shape: p.Shape, Q: host(v.in[0]), K: host(v.in[1]), V: host(v.in[2])}
	o := accuracy.Options{Rows: sampled, Seed: v.seed + uint64(v.Rank())}
	if v.pass == bench.PassForward {
		args.O, args.LSE = host(of[0]), host(of[1])
		return accuracy.Verify(problem.Config(cfg), args, o)
	}
	n := sizes(&cfg, p, v.pass, p.Sq, p.Sk)
	args.O, args.LSE = host(make([]byte, n[tensorO])), host(make([]byte, n[tensorLSE])) // not read
	return accuracy.VerifyBackward(problem.Config(cfg), attention.BackwardArgs{Args: args, DO: host(v.in[3]),
		DQ: host(of[0]), DK: host(of[1]), DV: host(of[2])}, o)
}

// difference is the largest difference of two tensors; NaN if one of them has a NaN or an infinity
// that the other does not have.
func difference(t attention.DType, x, y []byte) (most float64) {
	const block = 4096
	size := t.Size()
	a, b := make([]float32, block), make([]float32, block)
	for at := 0; at < len(x); at += block * size {
		n := min(block, (len(x)-at)/size)
		t.Decode(a[:n], x[at:])
		t.Decode(b[:n], y[at:])
		for i := range n {
			if a[i] == b[i] {
				continue
			}
			d := math.Abs(float64(a[i]) - float64(b[i]))
			if math.IsNaN(d) || math.IsInf(d, 0) {
				return math.NaN()
			}
			most = max(most, d)
		}
	}
	return most
}
