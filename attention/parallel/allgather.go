package parallel

import (
	"slices"

	"vkattn/attention"
)

// All-gather: every rank receives K and V of all ranks and computes its rows in ordinary calls. Mode
// allgather gathers all key heads at once. A ring with ScheduleGather gathers as many as fit in its memory.
// A device executes its own kernels and those that move messages by turns, so it is idle while messages move.

// kvGather gathers K and V of the ranks of all groups that have the same heads.
type kvGather struct {
	*call
	own block // of this rank, all heads
	all block // n key heads of all keys in the order of the sequence
	n   int
}

// newKVGather makes memory for n key heads. All heads and sequences of a key are adjacent, so that those
// of consecutive keys are one message, which leaves from its place and arrives in its place. Rows that are not
// whole words stay [batch, head, key, dim]: a kernel does not copy them, and a vkCmdCopyBuffer for each row
// of 32,768 keys of 8 heads took 0.2 s to record.
func (c *call) newKVGather(k, v view, n int) *kvGather {
	_, keys := c.extent()
	memory := func(v view) view {
		all, dim := c.new(v.dtype, v.batch, n, keys, v.dim), int64(v.dim)
		if v.dim*v.dtype.Size()%4 == 0 {
			all.Strides = attention.Strides{Batch: int64(n) * dim, Head: dim, Seq: int64(v.batch) * int64(n) * dim}
		}
		return all
	}
	return &kvGather{c, block{k, v}, block{memory(k), memory(v)}, n}
}

// start copies n key heads of this rank from first on to their places. When the device is idle it begins to
// send them to all ranks, and to receive theirs.
func (x *kvGather) start(first int) (Pending, error) {
	order := []Span{{0, x.all.k.rows}}
	x.copies(append(placing(x.all.k, x.own.k.headsFrom(first, x.n), x.groupKeys[x.group], order),
		placing(x.all.v, x.own.v.headsFrom(first, x.n), x.groupKeys[x.group], order)...))
	var sends, receives []Transfer
	for t := 1; t < x.outer; t++ {
		sends = append(sends, x.messages(x.peer(t), x.group)...)
		receives = append(receives, x.messages(x.peer(t), (x.group+t)%x.outer)...)
	}
	if err := x.sync(x.ctx); err != nil {
		return nil, err
	}
	return x.g.t.Exchange(sends, receives)
}

// messages are the keys of group g as messages to or from a rank: one a span and tensor, or one for each head
// where the heads of a key are not adjacent.
func (x *kvGather) messages(peer, g int) (list []Transfer) {
	for _, s := range x.groupKeys[g] {
		for _, v := range [2]view{x.all.k.rowsFrom(s.First, s.N), x.all.v.rowsFrom(s.First, s.N)} {
			if v.Strides.Head == int64(v.dim) {
				list = append(list, transfers(peer, v)...)
				continue
			}
			for b := range v.batch {
				for h := range v.heads {
					list = append(list, transfers(peer, v.sequencesFrom(b, 1).headsFrom(h, 1))...)
				}
			}
		}
	}
	return list
}

// gatherForward computes O and LSE of this rank's rows, some key heads and their query heads at a time.
func (c *call) gatherForward(q, k, v, o, lse view) error {
	n, group := c.gatherHeads(slices.Contains(c.lse, true)), q.heads/k.heads
	runs := c.wholeRuns(c.groupRows[c.group])
	x := c.newKVGather(k, v, n)
	for first := 0; first < k.heads; first += n {
		arriving, err := x.start(first)
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
		at, heads := first*group, n*group
		if err := c.forwardRows([]ranksRows{{runs, q.headsFrom(at, heads), o.headsFrom(at, heads), lse.headsFrom(at, heads)}}, x.all.k, x.all.v); err != nil {
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
