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

// Gradients of the ring and of the all-gather. Both add the gradients of each call to float32
// sums, which leave the rank or are rounded at the end.

// runLSE has the packed LSE of runs' rows. Runs of the same rows share a copy.
type runLSE struct {
	*call
	lse    view
	memory map[Span]*view
	ready  map[Span]view
}

func (c *call) runLSE(lse view) *runLSE {
	return &runLSE{c, lse, map[Span]*view{}, map[Span]view{}}
}

// begin takes the LSE of other heads, in the memory of those before.
func (x *runLSE) begin(lse view) {
	x.lse = lse
	clear(x.ready)
}

func (x *runLSE) of(r *run) view {
	s := Span{r.row, r.rows}
	if _, ok := x.ready[s]; !ok {
		if x.memory[s] == nil {
			x.memory[s] = new(view)
		}
		x.ready[s] = x.denseIn(x.memory[s], x.lse.rowsFrom(r.row, r.rows))
	}
	return x.ready[s]
}

// ringGradients is the memory in which a ring sums gradients of a group of heads.
type ringGradients struct {
	dQ      view
	buffers [3]block // of the step, of the sums that arrive and of those that leave; by turns
	lse     *runLSE
}

// ringBackward passes float32 dK and dV of each block on behind K and V: every rank adds its
// own, and they return to the block's rank complete. The order of the sum is that of the
// ranks, from the block's own on.
func (c *call) ringBackward(t operands) error {
	n := c.backwardHeads
	sums := ringGradients{dQ: c.new(attention.F32, t.q.batch, n*t.q.heads/t.k.heads, t.q.rows, t.q.dim), lse: c.runLSE(t.lse)}
	most := c.groupKeys.most()
	for i := range sums.buffers {
		sums.buffers[i] = block{c.new(attention.F32, t.k.batch, n, most, t.k.dim), c.new(attention.F32, t.v.batch, n, most, t.v.dim)}
	}
	r := c.startRing(t.k, t.v, n)
	return c.eachGroup(t, n, func(t operands) error { return r.backwardHeads(&sums, t) })
}

// backwardHeads computes the gradients of a group of heads.
//
// Each step computes into a buffer of its own, so that the sums may arrive meanwhile. A rank sends
// the sums of a step and receives those of the next one in the same exchange: a send alone could
// wait for a receive that the other rank, which waits in the same way, starts later.
func (r *ring) backwardHeads(g *ringGradients, t operands) error {
	r.begin(t.k, t.v)
	buffers := &g.buffers
	r.clear(g.dQ)
	g.lse.begin(t.lse)
	var passing Pending // the sums of the step before leave, and those of this step arrive
	for more := true; more; {
		keys := countOf(r.groupKeys[r.source()])
		own, sums := buffers[0].resized(keys), buffers[1].resized(keys)
		if err := r.start(); err != nil {
			return r.abandon(err, passing)
		}
		runs := r.runs(r.group, r.source())
		if len(runs) > 0 || r.step == 0 {
			r.clear(own.k)
			r.clear(own.v)
		}
		x := t
		x.k, x.v, x.dQ, x.dK, x.dV = r.now.k, r.now.v, g.dQ, own.k, own.v
		if err := r.add(runs, x, g.lse.of); err != nil {
			return r.abandon(err, passing)
		}
		if err := r.submitStep(); err != nil { // the device computes while messages arrive
			return r.abandon(err, passing)
		}
		if r.step == 0 {
			buffers[0], buffers[1] = buffers[1], buffers[0]
			sums = own
		} else {
			err := r.g.wait(r.ctx, passing)
			passing = nil
			if err != nil {
				return r.abandon(err)
			}
			if len(runs) > 0 {
				r.sum(sums.k, sums.k, own.k)
				r.sum(sums.v, sums.v, own.v)
			}
		}
		if err := r.sync(r.ctx); err != nil {
			return r.abandon(err)
		}
		buffers[1], buffers[2] = buffers[2], buffers[1]
		next := buffers[1].resized(countOf(r.groupKeys[(r.source()-1+r.outer)%r.outer]))
		var err error
		if passing, err = r.g.t.Exchange(transfers(r.peer(1), sums.k, sums.v), transfers(r.peer(-1), next.k, next.v)); err != nil {
			return r.abandon(err)
		}
		if more, err = r.finish(); err != nil {
			return r.abandon(err, passing)
		}
	}
	if err := r.g.wait(r.ctx, passing); err != nil {
		return err
	}
	home := buffers[1].resized(t.k.rows)
	r.sum(t.dQ, g.dQ)
	r.sum(t.dK, home.k)
	r.sum(t.dV, home.v)
	return nil
}

// allGatherBackward computes dK and dV of all keys from this rank's rows, and gives each rank
// those of its keys. The sum follows the order of the ranks. All key heads are one group, if kernels reach
// their gradients. Groups have the same memory.
func (c *call) allGatherBackward(t operands) error {
	n := c.backwardHeads
	_, keys := c.extent()
	x := c.newKVGather(t.k, t.v, n)
	sums := gatherGradients{call: c, lse: c.runLSE(t.lse), dQ: c.new(attention.F32, t.q.batch, n*t.q.heads/t.k.heads, t.q.rows, t.q.dim)}
	for i, v := range [2]view{t.k, t.v} {
		*sums.all.tensor(i) = c.new(attention.F32, v.batch, n, keys, v.dim)
		for r := range c.ranks {
			sums.pieces = append(sums.pieces, c.new(attention.F32, v.batch, n, c.layout.keys.Count(r), v.dim))
			if r != c.rank {
				sums.terms = append(sums.terms, c.new(attention.F32, v.batch, n, v.rows, v.dim))
			} else { // its own piece
				sums.terms = append(sums.terms, sums.pieces[len(sums.pieces)-1])
			}
		}
	}
	return c.eachGroup(t, n, func(t operands) error {
		arriving, err := x.start(t.k, t.v)
		if err != nil {
			return err
		}
		if err := c.await(&arriving); err != nil {
			return err
		}
		x.placeArrived()
		return sums.add(t, x.all)
	})
}

// gatherGradients is the memory in which an all-gather sums gradients of a group of heads.
type gatherGradients struct {
	*call
	lse    *runLSE
	dQ     view
	all    block  // dK and dV of all keys, of this rank's rows
	pieces []view // of them those of each rank's keys: dK of all ranks, then dV
	terms  []view // of this rank's keys what each rank gives
}

// add computes the gradients of a group of heads from K and V of all keys.
func (s *gatherGradients) add(t operands, kv block) error {
	s.clear(s.dQ)
	s.lse.begin(t.lse)
	var sends, receives []Transfer
	var copies []copying
	order := []Span{{0, s.all.k.rows}}
	for i := range 2 {
		whole := s.all.tensor(i)
		s.clear(*whole)
		for r := range s.ranks {
			piece, term := s.pieces[i*s.ranks+r], s.terms[i*s.ranks+r]
			copies = append(copies, taking(piece, *whole, s.layout.keys[r], order)...)
			if r != s.rank {
				sends, receives = append(sends, transfers(r, piece)...), append(receives, transfers(r, term)...)
			}
		}
	}
	x := t
	x.k, x.v, x.dQ, x.dK, x.dV = kv.k, kv.v, s.dQ, s.all.k, s.all.v
	if err := s.call.add(s.wholeRuns(s.groupRows[s.group]), x, s.lse.of); err != nil {
		return err
	}
	s.copies(copies)
	if err := s.sync(s.ctx); err != nil {
		return err
	}
	if err := s.g.exchange(s.ctx, sends, receives); err != nil {
		return err
	}
	s.sum(t.dQ, s.dQ)
	s.sum(t.dK, s.terms[:s.ranks]...)
	s.sum(t.dV, s.terms[s.ranks:]...)
	return nil
}
