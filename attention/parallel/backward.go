package parallel

import (
	"context"

	"vkattn/attention"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// BackwardArgs are this rank's tensors of one backward call.
type BackwardArgs struct {
	Args // of the forward call, with O and LSE as Forward has written them

	DO         attention.Tensor // gradient of O, as O
	DQ, DK, DV attention.Tensor // the gradients, as Q, K and V
}

// gradients are the tensors of a backward call as views.
type gradients struct{ dO, dQ, dK, dV view }

// Backward computes dQ of this rank's rows and dK and dV of its keys, from the tensors of a
// forward call with its O and LSE. All ranks call it with the same Problem. Each gradient is
// summed in float32, in an order that depends on the mode and the number of ranks alone, and
// rounded once. Tensors and stream are as for Forward, and the gradients are complete when
// Backward returns. ctx ends the call on all ranks.
//
// The kernels of tiers cuda and cubin store no float32 gradients, which every mode but ulysses
// needs: with Config.Tier TierCUDA the error matches [attention.ErrUnsupported] on every rank. Tensors that buffer
// descriptors do not reach are refused as by Forward.
func (op *Op) Backward(ctx context.Context, s *vk.Stream, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	x, err := op.plan(a.Problem, op.reach(a.Q, a.K, a.V, a.O, a.LSE, a.DO, a.DQ, a.DK, a.DV))
	rank := op.group.Rank()
	if err == nil {
		err = op.checkBackward(s, x.layout, rank, &a)
	}
	return op.run(ctx, s, callBackward, x, true, err, func(c *call) error {
		return c.backwardAll(c.layout.view(rank, &a.Args), c.layout.gradients(rank, &a))
	})
}

// gradients resolves this rank's gradients.
func (l *layout) gradients(rank int, a *BackwardArgs) gradients {
	cfg, rows, keys := &l.cfg, l.rows.Count(rank), l.keys.Count(rank)
	return gradients{
		viewOf(a.DO, cfg.DType, l.batch(), l.Hq, rows, cfg.ValueDim()), viewOf(a.DQ, cfg.DType, l.batch(), l.Hq, rows, cfg.HeadDim),
		viewOf(a.DK, cfg.DType, l.batch(), l.KVHeads(), keys, cfg.HeadDim), viewOf(a.DV, cfg.DType, l.batch(), l.KVHeads(), keys, cfg.ValueDim())}
}

// checkBackwardReach reports tensors that kernels do not reach: those that the call allocates, and those of this
// rank that kernels take where they lie.
func (l *layout) checkBackwardReach(rank int, a *BackwardArgs) error {
	if reason := l.backwardRefusal(); reason != "" {
		return &ModeError{l.mode, reason}
	}
	t, d := l.view(rank, &a.Args), l.gradients(rank, a)
	_, kv := l.kvHeads(rank % l.inner)
	if l.outer > 1 {
		kv = l.backwardHeads
	}
	heads := l.queryHeads(kv)
	for _, x := range []struct {
		field string
		view
		heads int
		taken bool // not copied
		all   bool // sequences of a batch at once; a sum takes one at a time
	}{{"Q", t.q, heads, l.inner == 1, true}, {"O", t.o, heads, l.inner == 1, true}, {"DO", d.dO, heads, l.inner == 1, true}, {"DQ", d.dQ, heads, l.inner == 1, false},
		{"DK", d.dK, kv, l.inner == 1 || l.sharers() > 1, false}, {"DV", d.dV, kv, l.inner == 1 || l.sharers() > 1, false}} {
		if !x.taken {
			continue
		}
		if err := l.checkReach(x.field, x.view, x.heads, x.all); err != nil {
			return err
		}
	}
	return nil
}

// checkBackward checks this rank's tensors and memory.
func (op *Op) checkBackward(s *vk.Stream, l *layout, rank int, a *BackwardArgs) error {
	if err := op.checkStream(s); err != nil {
		return err
	}
	m := op.newSide(s)
	defer m.close()
	cfg, b := l.checkable(&m, rank, &a.Args)
	args := attention.BackwardArgs{Args: b, DO: a.DO, DQ: a.DQ, DK: a.DK, DV: a.DV}
	if l.rows.Count(rank) == 0 {
		args.DO, args.DQ = m.new(cfg.DType, b.B, b.Hq, 1, cfg.ValueDim()).Tensor, m.new(cfg.DType, b.B, b.Hq, 1, cfg.HeadDim).Tensor
		args.LSE = m.new(attention.F32, b.B, b.Hq, 1, 1).Tensor
	}
	if l.keys.Count(rank) == 0 {
		args.DK, args.DV = m.new(cfg.DType, b.B, b.Hkv, 1, cfg.HeadDim).Tensor, m.new(cfg.DType, b.B, b.Hkv, 1, cfg.ValueDim()).Tensor
	}
	if m.err != nil {
		return m.err
	}
	list := []attention.Tensor{args.Q, args.K, args.V, args.O}
	for _, t := range []struct {
		field string
		attention.Tensor
	}{{"LSE", args.LSE}, {"DO", args.DO}, {"DQ", args.DQ}, {"DK", args.DK}, {"DV", args.DV}} {
		if !t.Given() {
			return &attention.ShapeError{Field: t.field, Got: "missing", Want: "a tensor"}
		}
		list = append(list, t.Tensor)
	}
	if err := op.checkSide(list...); err != nil {
		return err
	}
	var all tensors.BackwardTensors
	if err := all.CheckAll(&cfg, &args); err != nil {
		return err
	}
	if err := all.Each(func(_ int, t *tensors.Layout) error { return t.CheckDevice(op.dev) }); err != nil {
		return err
	}
	if err := op.checkBackwardTier(l, rank); err != nil {
		return err
	}
	if err := l.checkBackwardReach(rank, a); err != nil {
		return err
	}
	return op.checkMemory("parallel.Backward", l.backwardScratch(rank))
}

// checkBackwardTier is checkTier of Backward: most calls need float32 gradients.
func (op *Op) checkBackwardTier(l *layout, rank int) error {
	cfg := l.cfg
	cfg.F32Gradients = (l.outer > 1 || l.sharers() > 1) && cfg.DType != attention.F32
	return op.checkCall(l, rank, cfg, func(local *attention.Op, s attention.Shape) error {
		_, err := local.PlanBackward(s)
		return err
	})
}

// backwardAll computes the gradients from this rank's tensors.
func (c *call) backwardAll(t operands, d gradients) error {
	if c.nothing() {
		for _, x := range [...]view{d.dQ, d.dK, d.dV} {
			c.clear(x)
		}
		return c.err
	}
	if c.inner == 1 {
		return c.backwardGroup(t, d)
	}
	heads, err := c.toHeads(exchanged{view: t.q}, exchanged{view: t.k, kv: true}, exchanged{view: t.v, kv: true}, exchanged{view: t.o},
		exchanged{view: t.lse}, exchanged{view: d.dO})
	if err != nil {
		return err
	}
	h := operands{heads[0], heads[1], heads[2], heads[3], heads[4]}
	stored := c.cfg.DType
	if c.sharers() > 1 {
		stored = attention.F32
	}
	g := gradients{heads[5], c.like(h.q, c.cfg.DType), c.like(h.k, stored), c.like(h.v, stored)}
	if err := c.backwardGroup(h, g); err != nil {
		return err
	}
	return c.toRows([]view{g.dQ, g.dK, g.dV}, []exchanged{{view: d.dQ}, {view: d.dK, kv: true}, {view: d.dV, kv: true}})
}

// backwardGroup computes the gradients of the group's rows and keys for this rank's heads. dK
// and dV may be float32.
func (c *call) backwardGroup(t operands, d gradients) error {
	switch {
	case c.outer == 1:
		return c.wholeBackward(t, d)
	case c.mode == ModeAllGather:
		return c.allGatherBackward(t, d)
	}
	return c.ringBackward(t, d)
}

// wholeBackward computes the gradients of a call over all rows and keys.
func (c *call) wholeBackward(t operands, d gradients) error {
	cfg := c.cfg
	cfg.F32Gradients = d.dK.dtype != cfg.DType
	op, err := c.op.of(cfg)
	if err != nil {
		return err
	}
	dQ := d.dQ
	if cfg.F32Gradients {
		dQ = c.like(dQ, attention.F32)
	}
	a := attention.BackwardArgs{Args: c.whole(t.q, t.k, t.v, t.o, t.lse), DO: d.dO.Tensor, DQ: dQ.Tensor, DK: d.dK.Tensor, DV: d.dV.Tensor}
	if !c.ordered() {
		return c.err
	}
	if err := op.Backward(c.s, a); err != nil {
		return err
	}
	if cfg.F32Gradients {
		c.sum(d.dQ, dQ)
	}
	return nil
}

// add adds the gradients of runs of this rank's rows over one block of keys. lse gives the
// packed LSE of a run's rows.
func (c *call) add(runs []run, t operands, k, v view, lse func(r *run) view, dO, dQ, dK, dV view) error {
	if c.packed() {
		for _, group := range calls(runs, c.cfg) {
			if err := c.backward(group, t.q, k, v, t.o, t.lse, dO, dQ, dK, dV); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range runs {
		if err := c.backward(runs[i:i+1], t.q, k, v, t.o, lse(&runs[i]), dO, dQ, dK, dV); err != nil {
			return err
		}
	}
	return nil
}
