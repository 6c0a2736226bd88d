package parallel

import "vkattn/attention"

// Gradients of the ring and of the all-gather. Both add the gradients of each call to float32
// sums, which leave the rank or are rounded at the end.

// wholeLSE returns the packed LSE of a run's rows. Runs of the same rows share a copy.
func (c *call) wholeLSE(lse view) func(r *run) view {
	copies := map[Span]view{}
	return func(r *run) view {
		s := Span{r.row, r.rows}
		if _, ok := copies[s]; !ok {
			copies[s] = c.dense(lse.rowsFrom(r.row, r.rows))
		}
		return copies[s]
	}
}

// ringBackward passes float32 dK and dV of each block on behind K and V: every rank adds its
// own, and they return to the block's rank complete. The order of the sum is that of the
// ranks, from the block's own on.
//
// Each step computes into a buffer of its own, so that the sums may arrive meanwhile. A rank sends
// the sums of a step and receives those of the next one in the same exchange: a send alone could
// wait for a receive that the other rank, which waits in the same way, starts later.
func (c *call) ringBackward(t operands, d gradients) error {
	dQ := c.zeros(t.q)
	most := c.groupKeys.most()
	var buffers [3]block // of the step, of the sums that arrive and of those that leave; by turns
	for i := range buffers {
		buffers[i] = block{c.new(attention.F32, t.k.batch, t.k.heads, most, t.k.dim), c.new(attention.F32, t.v.batch, t.v.heads, most, t.v.dim)}
	}
	lse := c.wholeLSE(t.lse)
	r := c.startRing(t.k, t.v)
	var passing Pending // the sums of the step before leave, and those of this step arrive
	for more := true; more; {
		keys := countOf(r.groupKeys[r.source()])
		own, sums := buffers[0].resized(keys), buffers[1].resized(keys)
		if err := r.start(); err != nil {
			return r.abandon(err, passing)
		}
		runs := c.runs(c.group, r.source())
		if len(runs) > 0 || r.step == 0 {
			c.clear(own.k)
			c.clear(own.v)
		}
		if err := c.add(runs, t, r.now.k, r.now.v, lse, d.dO, dQ, own.k, own.v); err != nil {
			return r.abandon(err, passing)
		}
		if err := c.submit(); err != nil { // the device computes while messages arrive
			return r.abandon(err, passing)
		}
		if r.step == 0 {
			buffers[0], buffers[1] = buffers[1], buffers[0]
			sums = own
		} else {
			err := c.g.wait(c.ctx, passing)
			if passing = nil; err != nil {
				return r.abandon(err)
			}
			if len(runs) > 0 {
				c.sum(sums.k, sums.k, own.k)
				c.sum(sums.v, sums.v, own.v)
			}
		}
		if err := c.sync(c.ctx); err != nil {
			return r.abandon(err)
		}
		buffers[1], buffers[2] = buffers[2], buffers[1]
		next := buffers[1].resized(countOf(r.groupKeys[(r.source()-1+r.outer)%r.outer]))
		var err error
		if passing, err = c.g.t.Exchange(transfers(c.peer(1), sums.k, sums.v), transfers(c.peer(-1), next.k, next.v)); err != nil {
			return r.abandon(err)
		}
		if more, err = r.finish(); err != nil {
			return r.abandon(err, passing)
		}
	}
	if err := c.g.wait(c.ctx, passing); err != nil {
		return err
	}
	home := buffers[1].resized(t.k.rows)
	c.sum(d.dQ, dQ)
	c.sum(d.dK, home.k)
	c.sum(d.dV, home.v)
	return nil
}

// allGatherBackward computes dK and dV of all keys from this rank's rows, and gives each rank
// those of its keys. The sum follows the order of the ranks.
func (c *call) allGatherBackward(t operands, d gradients) error {
	all, err := c.gatherKeys(t.k, t.v)
	if err != nil {
		return err
	}
	dQ, dK, dV := c.zeros(t.q), c.zeros(all[0]), c.zeros(all[1])
	if err := c.add(c.wholeRuns(c.rank), t, all[0], all[1], c.wholeLSE(t.lse), d.dO, dQ, dK, dV); err != nil {
		return err
	}
	_, keys := c.extent()
	order := []Span{{0, keys}}
	var sends, receives []Transfer
	terms := [2][]view{make([]view, c.ranks), make([]view, c.ranks)}
	for i, whole := range [2]view{dK, dV} {
		for r := range c.ranks {
			piece := c.new(attention.F32, whole.batch, whole.heads, c.layout.keys.Count(r), whole.dim)
			c.take(piece, whole, c.layout.keys[r], order)
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
