package parallel

import "vkattn/attention"

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
func (c *call) ringBackward(t operands, d gradients) error {
	n := c.backwardHeads
	heads := n * t.q.heads / t.k.heads
	sums := ringGradients{dQ: c.new(attention.F32, t.q.batch, heads, t.q.rows, t.q.dim), lse: c.runLSE(t.lse)}
	most := c.groupKeys.most()
	for i := range sums.buffers {
		sums.buffers[i] = block{c.new(attention.F32, t.k.batch, n, most, t.k.dim), c.new(attention.F32, t.v.batch, n, most, t.v.dim)}
	}
	r := c.startRing(t.k, t.v, n)
	for first := 0; first < t.k.heads; first += n {
		at := first * t.q.heads / t.k.heads
		r.begin(first)
		group := operands{q: t.q.headsFrom(at, heads), k: r.now.k, v: r.now.v, o: t.o.headsFrom(at, heads), lse: t.lse.headsFrom(at, heads)}
		if c.packed() { // batch size 1: the heads lie one after the other
			group.lse = resized(group.lse, heads, t.lse.rows)
		}
		if err := r.backwardHeads(&sums, group, gradients{d.dO.headsFrom(at, heads), d.dQ.headsFrom(at, heads),
			d.dK.headsFrom(first, n), d.dV.headsFrom(first, n)}); err != nil {
			return err
		}
	}
	return nil
}

// backwardHeads computes the gradients of a group of heads.
//
// Each step computes into a buffer of its own, so that the sums may arrive meanwhile. A rank sends
// the sums of a step and receives those of the next one in the same exchange: a send alone could
// wait for a receive that the other rank, which waits in the same way, starts later.
func (r *ring) backwardHeads(g *ringGradients, t operands, d gradients) error {
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
		if err := r.add(runs, t, r.now.k, r.now.v, g.lse.of, d.dO, g.dQ, own.k, own.v); err != nil {
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
			if passing = nil; err != nil {
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
	r.sum(d.dQ, g.dQ)
	r.sum(d.dK, home.k)
	r.sum(d.dV, home.v)
	return nil
}

// allGatherBackward computes dK and dV of all keys from this rank's rows, and gives each rank
// those of its keys. The sum follows the order of the ranks.
func (c *call) allGatherBackward(t operands, d gradients) error {
	x := c.newKVGather(t.k, t.v, t.k.heads)
	arriving, err := x.start(0)
	if err != nil {
		return err
	}
	if err := c.await(&arriving); err != nil {
		return err
	}
	dQ, dK, dV := c.zeros(t.q), c.zeros(x.all.k), c.zeros(x.all.v)
	if err := c.add(c.wholeRuns(c.groupRows[c.group]), t, x.all.k, x.all.v, c.runLSE(t.lse).of, d.dO, dQ, dK, dV); err != nil {
		return err
	}
	_, keys := c.extent()
	order := []Span{{0, keys}}
	var sends, receives []Transfer
	terms := [2][]view{make([]view, c.ranks), make([]view, c.ranks)}
	for i, whole := range [2]view{dK, dV} {
		for r := range c.ranks {
			piece := c.new(attention.F32, whole.batch, whole.heads, c.layout.keys.Count(r), whole.dim)
			c.copies(taking(piece, whole, c.layout.keys[r], order))
			if r == c.rank {
				terms[i][r] = piece
				continue
			}
			sends = append(sends, transfers(r, piece)...)
			terms[i][r] = c.new(attention.F32, whole.batch, whole.heads, t.k.rows, whole.dim)
			receives = append(receives, transfers(r, terms[i][r])...)
		}
	}
	if err := c.sync(c.ctx); err != nil {
		return err
	}
	if err := c.g.exchange(c.ctx, sends, receives); err != nil {
		return err
	}
	c.sum(d.dQ, dQ)
	c.sum(d.dK, terms[0]...)
	c.sum(d.dV, terms[1]...)
	return nil
}
