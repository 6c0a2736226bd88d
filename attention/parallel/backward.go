package parallel

import (
	"context"
	"math"

	"vkattn/attention"
)

// BackwardArgs are this rank's tensors of one backward call.
type BackwardArgs struct {
	Args // of the forward call, with O and LSE as Forward has written them

	DO         attention.Tensor // gradient of O, as O
	DQ, DK, DV attention.Tensor // the gradients, as Q, K and V
}

// Backward computes dQ of this rank's rows and dK and dV of its keys, from the tensors of a
// forward call with its O and LSE. All ranks call it with the same Problem. Each gradient is
// summed in float32, in an order that depends on the mode and the number of ranks alone, and
// rounded once. Tensors and stream are as for Forward, and the gradients are complete when
// Backward returns. ctx ends the call on all ranks.
//
// The kernels of tiers cuda and cubin store no float32 gradients, which every mode but ulysses
// needs: with Config.Tier TierCUDA the error matches [attention.ErrUnsupported] on every rank. Tensors that buffer
// descriptors do not reach are refused as by Forward.
func (op *Op) Backward(ctx context.Context, s *attention.Stream, a BackwardArgs) error {
	return op.start(ctx, s, callBackward, &a, (*call).backwardAll)
}

// backwardAll computes the gradients from this rank's tensors.
func (c *call) backwardAll(t operands) error {
	if c.nothing() {
		for _, x := range [...]view{t.dQ, t.dK, t.dV} {
			c.clear(x)
		}
		return c.err
	}
	if c.inner == 1 {
		return c.backwardGroup(t)
	}
	heads, err := c.toHeads(exchanged{view: t.q}, exchanged{view: t.k, kv: true}, exchanged{view: t.v, kv: true}, exchanged{view: t.o},
		exchanged{view: t.lse}, exchanged{view: t.dO})
	if err != nil {
		return err
	}
	h := operands{q: heads[0], k: heads[1], v: heads[2], o: heads[3], lse: heads[4], dO: heads[5]}
	stored := c.cfg.DType
	if c.sharers() > 1 {
		stored = attention.F32
	}
	h.dQ, h.dK, h.dV = c.like(h.q, c.cfg.DType), c.like(h.k, stored), c.like(h.v, stored)
	if err := c.backwardGroup(h); err != nil {
		return err
	}
	return c.toRows([]view{h.dQ, h.dK, h.dV}, []exchanged{{view: t.dQ}, {view: t.dK, kv: true}, {view: t.dV, kv: true}})
}

// backwardGroup computes the gradients of the group's rows and keys for this rank's heads. dK
// and dV may be float32.
func (c *call) backwardGroup(t operands) error {
	switch {
	case c.outer == 1:
		return c.wholeBackward(t)
	case c.mode == ModeAllGather:
		return c.allGatherBackward(t)
	}
	return c.ringBackward(t)
}

// wholeBackward computes the gradients of a call over all rows and keys.
func (c *call) wholeBackward(t operands) error {
	cfg := c.cfg
	cfg.F32Gradients = t.dK.dtype != cfg.DType
	op, err := c.op.of(cfg)
	if err != nil {
		return err
	}
	dQ := t.dQ
	if cfg.F32Gradients {
		dQ = c.like(dQ, attention.F32)
	}
	a := attention.BackwardArgs{Args: c.whole(t), DO: t.dO.Tensor, DQ: dQ.Tensor, DK: t.dK.Tensor, DV: t.dV.Tensor}
	if !c.ordered() {
		return c.err
	}
	if err := op.Backward(c.stream, a); err != nil {
		return err
	}
	if cfg.F32Gradients {
		c.sum(t.dQ, dQ)
	}
	return nil
}

// add adds the gradients of runs of this rank's rows over the keys of t to float32 gradients. lse gives the
// packed LSE of a run's rows.
func (c *call) add(runs []run, t operands, lse func(r *run) view) error {
	if c.packed() {
		for _, group := range calls(math.MaxInt, runs, c.cfg) {
			if err := c.backward(group, t); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range runs {
		t.lse = lse(&runs[i])
		if err := c.backward(runs[i:i+1], t); err != nil {
			return err
		}
	}
	return nil
}
