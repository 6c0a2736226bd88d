package parallel

import (
	"context"
	"fmt"

	"vkattn/attention"
	"vkattn/attention/internal/tensors"
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
// rounded once. It runs on the CPU tier alone.
func (op *Op) Backward(ctx context.Context, a BackwardArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	x, err := op.plan(a.Problem)
	rank := op.group.Rank()
	if op.dev != nil {
		err = fmt.Errorf("%w: gradients over several ranks on a device", attention.ErrUnsupported)
	}
	if err == nil {
		if err = x.checkBackward(rank, &a); err == nil {
			err = vk.CheckHostMemory("parallel.Backward", x.backwardScratch(rank))
		}
	}
	return op.run(ctx, nil, callBackward, x, err, func(c *call) error {
		l := c.layout
		cfg, rows, keys := &l.cfg, l.rows.Count(rank), l.keys.Count(rank)
		return c.backwardAll(l.view(rank, &a.Args), gradients{
			viewOf(a.DO, cfg.DType, l.batch(), l.Hq, rows, cfg.ValueDim()), viewOf(a.DQ, cfg.DType, l.batch(), l.Hq, rows, cfg.HeadDim),
			viewOf(a.DK, cfg.DType, l.batch(), l.KVHeads(), keys, cfg.HeadDim), viewOf(a.DV, cfg.DType, l.batch(), l.KVHeads(), keys, cfg.ValueDim())})
	})
}

// checkBackward checks this rank's tensors.
func (l *layout) checkBackward(rank int, a *BackwardArgs) error {
	cfg, b := l.checkable(&side{}, rank, &a.Args)
	args := attention.BackwardArgs{Args: b, DO: a.DO, DQ: a.DQ, DK: a.DK, DV: a.DV}
	like := func(t attention.Tensor) attention.Tensor { return attention.Tensor{Host: make([]byte, len(t.Host))} }
	if l.rows.Count(rank) == 0 {
		args.DO, args.DQ = like(b.O), like(b.Q)
		args.LSE = attention.Tensor{Host: make([]byte, 4*b.B*b.Hq)}
	}
	if l.keys.Count(rank) == 0 {
		args.DK, args.DV = like(b.K), like(b.V)
	}
	for _, t := range []struct {
		field string
		attention.Tensor
	}{{"LSE", args.LSE}, {"DO", args.DO}, {"DQ", args.DQ}, {"DK", args.DK}, {"DV", args.DV}} {
		if !t.Given() {
			return &attention.ShapeError{Field: t.field, Got: "missing", Want: "host memory"}
		}
	}
	var all tensors.BackwardTensors
	if err := all.CheckAll(&cfg, &args); err != nil {
		return err
	}
	return all.Each(func(_ int, t *tensors.Layout) error { return t.CheckDevice(nil) })
}

// backwardAll computes the gradients from this rank's tensors.
func (c *call) backwardAll(t operands, d gradients) error {
	if c.inner == 1 {
		return c.backwardGroup(t, d)
	}
	heads, err := c.toHeads(exchanged{t.q, false}, exchanged{t.k, true}, exchanged{t.v, true}, exchanged{t.o, false},
		exchanged{t.lse, false}, exchanged{d.dO, false})
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
	return c.toRows([]view{g.dQ, g.dK, g.dV}, []exchanged{{d.dQ, false}, {d.dK, true}, {d.dV, true}})
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
	if err := op.Backward(c.s, attention.BackwardArgs{Args: c.whole(t.q, t.k, t.v, t.o, t.lse), DO: d.dO.Tensor,
		DQ: dQ.Tensor, DK: d.dK.Tensor, DV: d.dV.Tensor}); err != nil {
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
