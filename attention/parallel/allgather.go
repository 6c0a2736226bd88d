package parallel

import "vkattn/attention"

// All-gather: every rank receives K and V of all ranks and computes its rows in ordinary calls. Mode
// allgather gathers all key heads at once. A ring with ScheduleGather gathers some at a time, into the
// same memory. A device executes its own kernels and those that move messages by turns, so it is idle
// while messages move.

// kvGather gathers K and V of the ranks of all groups that have the same heads.
type kvGather struct {
	*call
	k, v    view    // of this rank, all heads
	arrived []block // by group, the memory of the others' blocks
	whole   block   // memory of all keys in the order of the sequence
	blocks  []block // by group, of the key heads under way
}

// newKVGather makes memory for n key heads.
func (c *call) newKVGather(k, v view, n int) *kvGather {
	memory := func(keys int) block {
		return block{c.new(k.dtype, k.batch, n, keys, k.dim), c.new(v.dtype, v.batch, n, keys, v.dim)}
	}
	_, keys := c.extent()
	x := &kvGather{call: c, k: k, v: v, arrived: make([]block, c.outer), whole: memory(keys)}
	for g := range c.outer {
		if g != c.group {
			x.arrived[g] = memory(countOf(c.groupKeys[g]))
		}
	}
	return x
}

// start begins to send n key heads of this rank's block from first on to all ranks, and to receive
// theirs, when the device is idle. What it sends is copied first where it is not packed, or the transport
// cannot move it. The memory of all keys is free until place and has the copy.
func (x *kvGather) start(first, n int) (Pending, error) {
	own := block{x.k.headsFrom(first, n), x.v.headsFrom(first, n)}
	memory := block{resized(x.whole.k, n, own.k.rows), resized(x.whole.v, n, own.v.rows)}
	sent := block{x.denseIn(&memory.k, own.k), x.denseIn(&memory.v, own.v)}
	x.blocks = make([]block, x.outer)
	x.blocks[x.group] = own
	var sends, receives []Transfer
	for t := 1; t < x.outer; t++ {
		g := (x.group + t) % x.outer
		b := &x.blocks[g]
		*b = block{resized(x.arrived[g].k, n, x.arrived[g].k.rows), resized(x.arrived[g].v, n, x.arrived[g].v.rows)}
		sends = append(sends, transfers(x.peer(t), sent.k, sent.v)...)
		receives = append(receives, transfers(x.peer(t), b.k, b.v)...)
	}
	if err := x.sync(x.ctx); err != nil {
		return nil, err
	}
	return x.g.t.Exchange(sends, receives)
}

// place copies the blocks to their places in the order of the sequence. The copies are recorded, and may be
// submitted when the blocks have arrived.
func (x *kvGather) place() block {
	n := x.blocks[x.group].k.heads
	all := block{resized(x.whole.k, n, x.whole.k.rows), resized(x.whole.v, n, x.whole.v.rows)}
	order := []Span{{0, all.k.rows}}
	var copies []copying
	for g, b := range x.blocks {
		copies = append(copies, placing(all.k, b.k, x.groupKeys[g], order)...)
		copies = append(copies, placing(all.v, b.v, x.groupKeys[g], order)...)
	}
	x.copies(copies)
	return all
}

// gatherForward computes O and LSE of this rank's rows, some key heads and their query heads at a time.
func (c *call) gatherForward(q, k, v, o, lse view) error {
	n, group := c.forwardHeads, q.heads/k.heads
	runs := c.wholeRuns(c.groupRows[c.group])
	x := c.newKVGather(k, v, n)
	for first := 0; first < k.heads; first += n {
		arriving, err := x.start(first, n)
		if err != nil {
			return err
		}
		// What is recorded runs when it is submitted, so it is recorded while the blocks arrive. Uploads of
		// packed sequences may submit by themselves.
		if c.s == nil || c.packed() {
			if err := c.await(&arriving); err != nil {
				return err
			}
		}
		all, at, heads := x.place(), first*group, n*group
		if err := c.forwardRows([]ranksRows{{runs, q.headsFrom(at, heads), o.headsFrom(at, heads), lse.headsFrom(at, heads)}}, all.k, all.v); err != nil {
			return c.abandon(err, arriving)
		}
		if err := c.await(&arriving); err != nil {
			return err
		}
		if _, err := c.submit(); err != nil {
			return err
		}
	}
	return nil
}

// ranksRows are the rows of a rank, and the runs that compute them over all keys. LSE may be left out.
type ranksRows struct {
	runs      []run
	q, o, lse view
}

// forwardRows computes rows of some ranks over all keys in their order.
func (c *call) forwardRows(list []ranksRows, k, v view) error {
	var together []runCall
	var copies []copying
	for i := range list {
		x := &list[i]
		for _, s := range uncovered(x.runs, x.q.rows) {
			c.clear(x.o.rowsFrom(s.First, s.N))
			if x.lse.Given() {
				c.empty(x.lse.rowsFrom(s.First, s.N))
			}
		}
		if c.packed() { // each uploads cu_seqlens
			lse := x.lse
			if lse.Given() { // batch size 1: the heads lie one after the other
				lse = resized(lse, lse.heads, lse.rows)
			}
			for _, runs := range calls(x.runs, c.cfg) {
				if err := c.forward(runs, false, x.q, k, v, x.o, lse); err != nil {
					return err
				}
			}
			continue
		}
		for _, r := range x.runs {
			p := runCall{run: r, q: x.q, o: x.o.rowsFrom(r.row, r.rows)}
			if x.lse.Given() {
				lse := x.lse.rowsFrom(r.row, r.rows)
				if lse.packed() {
					p.lse = resized(lse, lse.heads, lse.rows)
				} else {
					p.lse = c.like(lse, attention.F32)
					copies = append(copies, copying{lse, p.lse})
				}
			}
			together = append(together, p)
		}
	}
	if err := c.forwardRuns(together, false, k, v); err != nil {
		return err
	}
	c.copies(copies)
	return nil
}
