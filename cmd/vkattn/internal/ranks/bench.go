package ranks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/inputs"
	"vkattn/vk"
)

// Timing says how often calls are timed.
type Timing struct {
	Repeats int           // 0: 12
	Warmup  time.Duration // of unrecorded calls; 0: 0.5 s, negative: none
}

func (t Timing) resolved() Timing {
	if t.Repeats == 0 {
		t.Repeats = 12
	}
	if t.Warmup == 0 {
		t.Warmup = 500 * time.Millisecond
	}
	return t
}

// One is the time of a problem on one device.
type One struct {
	Ms     float64 // median; 0: not measured
	Reason string  // why not
}

// TimeOne times a problem on the device of rank 0, while the other ranks wait.
func TimeOne(ctx context.Context, s *Session, p bench.Problem, tier attention.Tier, timing Timing, seed uint64) (One, error) {
	var one One
	if s.Rank() == 0 {
		ms, err := s.timeOne(ctx, p, tier, timing.resolved(), seed)
		one.Ms = ms
		if err != nil {
			if errors.Is(err, vk.ErrDeviceLost) || ctx.Err() != nil {
				return one, err
			}
			one = One{Reason: err.Error()}
		}
	}
	all, err := Gather(ctx, s, one)
	if err != nil {
		return one, err
	}
	return all[0], nil
}

func (s *Session) timeOne(ctx context.Context, p bench.Problem, tier attention.Tier, timing Timing, seed uint64) (float64, error) {
	cfg := p.Config
	cfg.Tier = tier
	op, err := attention.New(attention.On(s.Device), cfg)
	if err != nil {
		return 0, err
	}
	defer op.Close()
	// In memory that a program on one GPU has: calls in exportable memory take up to 1.7 times as long.
	t, err := s.operands(&cfg, &parallel.Problem{Shape: p.Shape}, p.Pass, p.Shape.Sq, p.Shape.Sk, seed, ownBuffers(cfg.Tier))
	if err != nil {
		return 0, err
	}
	defer t.memory.Free()
	x := &alone{s, op, t, attention.Args{Shape: p.Shape, Q: t.Q, K: t.K, V: t.V, O: t.O, LSE: t.LSE}}
	// Without warm-up a time would have the compilation, which Time leaves to a call of its own.
	if err := x.prepare(p.Pass); err != nil {
		return 0, err
	}
	if p.Pass == bench.PassBackward {
		if err := x.forward(ctx); err != nil {
			return 0, err
		}
	}
	call := func() (float64, error) {
		elapsed := bench.Stopwatch()
		if err := x.pass(ctx, p.Pass); err != nil {
			return 0, err
		}
		return elapsed().Seconds() * 1e3, ctx.Err()
	}
	var list []float64
	for begin := time.Now(); time.Since(begin) < timing.Warmup; {
		if _, err := call(); err != nil {
			return 0, err
		}
	}
	for range timing.Repeats {
		ms, err := call()
		if err != nil {
			return 0, err
		}
		list = append(list, ms)
	}
	return bench.Summarize(list).Median, nil
}

// operands allocates tensors and fills Q, K, V and dO with random numbers, which repeat: the time of
// attention does not depend on them.
func (s *Session) operands(cfg *attention.Config, p *parallel.Problem, pass bench.Pass, rows, keys int, seed uint64,
	o vk.BufferOptions) (*tensors, error) {
	const period = 32 << 20 // bytes
	n := sizes(cfg, p, pass, rows, keys)
	if pass == bench.PassForward {
		n[tensorLSE] = 0 // as bench on one device: --ranks refuses --lse
	}
	t, err := s.allocate(n, o)
	if err != nil {
		return nil, err
	}
	data := inputs.New(min(period, max(n[tensorQ], n[tensorK], n[tensorV], n[tensorDO]))/int64(cfg.DType.Size()),
		cfg.DType, inputs.Normal, seed)
	for _, tensor := range []int{tensorQ, tensorK, tensorV, tensorDO} {
		err = errors.Join(err, t.fill(tensor, data))
	}
	if err == nil {
		err = t.memory.Barrier()
	}
	if err != nil {
		return nil, errors.Join(err, t.memory.Free())
	}
	return t, nil
}

// Time times a problem in a mode over all ranks, with transfers and without them. It does not judge
// the result.
func Time(ctx context.Context, s *Session, p bench.Problem, tier attention.Tier, mode Mode, one One, timing Timing,
	seed uint64) (*Row, error) {
	timing = timing.resolved()
	row := newRow(s, p, tier, mode, seed)
	cfg := s.config(p.Config, tier, mode)
	problem := parallel.Problem{Shape: p.Shape}
	op, err := parallel.New(s.Group, attention.On(s.Device), cfg)
	var w *work
	if err == nil {
		defer op.Close()
		w, err = s.prepare(op, problem, mode, p.Pass)
	}
	refused := func(err error) (bool, error) {
		refusal, err := s.agree(ctx, err)
		if refusal != nil || err != nil {
			row.refuse(refusal)
			return true, err
		}
		return false, nil
	}
	if no, err := refused(err); no {
		return row, err
	}
	row.of(w)
	t, err := s.operands(&cfg.Config, &problem, p.Pass, count(w.rows), w.room, seed+uint64(s.Rank()), s.buffers(mode))
	if err == nil {
		defer t.memory.Free()
	}
	if no, err := refused(err); no {
		return row, err
	}
	call := func() (float64, error) {
		elapsed := bench.Stopwatch()
		err := w.call(ctx, t)
		return elapsed().Seconds() * 1e3, err
	}
	if w.setup != nil {
		if err := w.setup(ctx, t); err != nil {
			_, err = refused(err) // all ranks have an error
			return row, err
		}
	}
	before := s.Meter.Bytes
	if _, err := call(); err != nil { // compiles, and connects the ranks
		_, err = refused(err) // all ranks have an error
		return row, err
	}
	took, err := Gather(ctx, s, [2]uint64{s.Meter.Bytes - before, op.ScratchBytes()})
	if err != nil {
		return row, err
	}
	var steps stepTimes
	observe := func() {
		if mode.Decode {
			op.ObserveDecode(steps.add)
		}
	}
	with, err := s.series(ctx, timing, observe, call)
	op.ObserveDecode(nil)
	if err != nil {
		return row, err
	}
	allSteps, err := Gather(ctx, s, steps.medians())
	if err != nil {
		return row, err
	}
	s.Meter.Off = true
	defer func() { s.Meter.Off = false }()
	timing.Warmup = min(timing.Warmup, 100*time.Millisecond)
	without, err := s.series(ctx, timing, func() {}, call)
	if err != nil {
		return row, err
	}
	x := &Timed{Ms: bench.Summarize(with), OneMs: one.Ms, OneWhy: one.Reason, Planned: w.sent}
	x.TFLOPs = bench.TFLOPs(p, x.Ms.Median) / float64(s.Ranks())
	if why := x.setCompute(bench.Summarize(without).Median); why != "" {
		row.Reasons = append(row.Reasons, why)
	}
	if one.Ms > 0 {
		x.Share = one.Ms / (float64(s.Ranks()) * x.Ms.Median)
	}
	x.Steps = stepsOf(allSteps)
	for _, n := range took {
		x.SentBytes, x.ScratchBytes = max(x.SentBytes, n[0]), max(x.ScratchBytes, n[1])
	}
	row.Timed = x
	x.PlannedScratch = w.scratch
	if x.ScratchBytes > x.PlannedScratch {
		row.Status = bench.Fail
		row.Reasons = append(row.Reasons, fmt.Sprintf("a rank takes %d bytes in addition to its tensors, the plan says %d", x.ScratchBytes, x.PlannedScratch))
	}
	if one.Reason != "" {
		row.Reasons = append(row.Reasons, "one device: "+one.Reason)
	}
	return row, nil
}

// setCompute sets the time without transfers, or says why it is none: such calls compute with what earlier ones left in the
// buffers of messages, which may be numbers that kernels take long for, such as an infinite LSE.
func (x *Timed) setCompute(ms float64) (why string) {
	if most := 4 * x.Ms.Median; ms > most { // short calls vary
		return fmt.Sprintf("without transfers a call took %.3g ms, with them %.3g: what messages left in the buffers is no such problem", ms, x.Ms.Median)
	}
	x.ComputeMs, x.ExposedMs = ms, x.Ms.Median-ms
	return ""
}

// together returns on all ranks within microseconds where they are on one host. After a Gather some
// ranks are 50 us ahead of others.
func (s *Session) together(ctx context.Context) error {
	n, ok := s.Meter.Transport.(parallel.Near)
	if !ok || n.NearBytes() == 0 {
		_, err := Gather(ctx, s, 0)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	parts := make([][][]byte, s.Ranks())
	for r := range parts {
		parts[r] = [][]byte{make([]byte, 1)}
	}
	return n.GatherNear(ctx, parts)
}

// series times calls that start together. The time of a call is that of the slowest rank. Between timed
// calls the devices are idle for microseconds where ranks are on one host, as they are between the calls
// of timeOne. warm is called when the warm-up is over.
func (s *Session) series(ctx context.Context, timing Timing, warm func(), call func() (float64, error)) ([]float64, error) {
	for begin := time.Now(); ; {
		over, err := Gather(ctx, s, time.Since(begin) >= timing.Warmup)
		if err != nil {
			return nil, err
		}
		if over[0] { // rank 0's answer counts
			break
		}
		if _, err := call(); err != nil {
			return nil, err
		}
	}
	warm()
	var mine []float64
	for range timing.Repeats {
		if err := s.together(ctx); err != nil {
			return nil, err
		}
		ms, err := call()
		if err != nil {
			return nil, err
		}
		mine = append(mine, ms)
	}
	all, err := Gather(ctx, s, mine)
	if err != nil {
		return nil, err
	}
	slowest := make([]float64, len(mine))
	for _, list := range all {
		for i := range slowest {
			slowest[i] = max(slowest[i], list[i])
		}
	}
	return slowest, nil
}
