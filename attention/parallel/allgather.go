package parallel

import (
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
)

// All-gather: every rank receives K and V of all ranks and computes its rows in ordinary calls. Mode
// allgather gathers all key heads at once. A ring with ScheduleGather gathers as many as fit in its memory.
// A device executes its own kernels and those that move messages by turns, so it is idle while messages move.

// kvGather gathers K and V of the ranks of all groups that have the same heads.
type kvGather struct {
	*call
	sent    block   // memory for copies of n key heads of this rank
	all     block   // n key heads of all keys in the order of the sequence
	arrived []block // by group of ranks: n key heads that move as one message
	n       int
}

// newKVGather makes memory for n key heads. All heads and sequences of a key are adjacent, so that those
// of consecutive keys are one message, which leaves from its place and arrives in its place. Rows that are not
// whole words stay [batch, head, key, dim]: a kernel does not copy them, and a vkCmdCopyBuffer for each row
// of 32,768 keys of 8 heads took 0.2 s to record.
func (c *call) newKVGather(k, v view, n int) *kvGather {
	_, keys := c.extent()
	x := &kvGather{call: c, arrived: make([]block, c.outer), n: n}
	for i, v := range [2]view{k, v} {
		all, dim := c.new(v.dtype, v.batch, n, keys, v.dim), int64(v.dim)
		if c.wordRows(v.dim) {
			all.Strides = attention.Strides{Batch: int64(n) * dim, Head: dim, Seq: int64(v.batch) * int64(n) * dim}
		}
		*x.all.tensor(i) = all
		for g := range c.outer {
			if g != c.group && c.packs(g, n, v.dim) {
				*x.arrived[g].tensor(i) = c.new(v.dtype, v.batch, n, countOf(c.groupKeys[g]), v.dim)
			}
		}
	}
	return x
}

// tensor is K or V.
func (b *block) tensor(i int) *view { return [2]*view{&b.k, &b.v}[i] }

// wordRows reports whether rows of K or V are whole 32-bit words.
func (l *layout) wordRows(dim int) bool { return dim*l.cfg.DType.Size()%4 == 0 }

// placedMessages is the number of messages of a tensor that a gather receives in their places from a rank,
// however short they are.
const placedMessages = 16

// packs reports whether n heads of K or V of a group of ranks move as one message, which the receiver copies to
// their places. In place they would be many messages, most of them short. The layout alone decides, so sender and
// receiver decide alike.
func (l *layout) packs(g, n, dim int) bool {
	spans := l.groupKeys[g]
	messages := len(spans)
	if !l.wordRows(dim) {
		messages *= l.batch() * n
	}
	return messages > placedMessages && l.elements(n, countOf(spans), dim)*l.dtypeSize() < uint64(messages)*uint64(messageBytes)
}

// start copies n key heads of this rank to their places. When the device is idle it begins to
// send them to all ranks, and to receive theirs.
func (x *kvGather) start(k, v view) (Pending, error) {
	own := block{k, v}
	x.copies(x.placing(nil, x.group, own))
	var sends, receives []Transfer
	for i := range 2 {
		if v := own.tensor(i); x.packs(x.group, x.n, v.dim) {
			*v = x.denseIn(x.sent.tensor(i), *v)
		}
	}
	for t := 1; t < x.outer; t++ {
		g := (x.group + t) % x.outer
		sends = append(sends, x.messages(g, x.group, own)...)
		receives = append(receives, x.messages(g, g, x.arrived[g])...)
	}
	if err := x.sync(x.ctx); err != nil {
		return nil, err
	}
	return x.g.t.Exchange(sends, receives)
}

// messages are the keys of group g as messages to or from the rank of another group: of each tensor one a span, or
// one for each head where the heads of a key are not adjacent, or else all in one, which is packed.
func (x *kvGather) messages(other, g int, packed block) (list []Transfer) {
	peer := other*x.inner + x.u
	for i := range 2 {
		all := x.all.tensor(i)
		if x.packs(g, x.n, all.dim) {
			list = append(list, transfers(peer, *packed.tensor(i))...)
			continue
		}
		for _, s := range x.groupKeys[g] {
			v := all.rowsFrom(s.First, s.N)
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

// placing adds copies of tensors with the keys of group g to their places.
func (x *kvGather) placing(list []copying, g int, b block) []copying {
	order := []Span{{0, x.all.k.rows}}
	for i := range 2 {
		if v := b.tensor(i); v.Given() {
			list = append(list, placing(*x.all.tensor(i), *v, x.groupKeys[g], order)...)
		}
	}
	return list
}

// placeArrived copies what has arrived elsewhere to its places.
func (x *kvGather) placeArrived() {
	var list []copying
	for g, b := range x.arrived {
		list = x.placing(list, g, b)
	}
	x.copies(list)
}

// gatherForward computes O and LSE of this rank's rows, some key heads and their query heads at a time.
func (c *call) gatherForward(t operands) error {
	n := c.gatherHeads(slices.Contains(c.lse, true))
	runs := c.wholeRuns(c.groupRows[c.group])
	x := c.newKVGather(t.k, t.v, n)
	return c.eachGroup(t, n, func(t operands) error {
		arriving, err := x.start(t.k, t.v)
		if err != nil {
			return err
		}
		// What is recorded runs when it is submitted, so it is recorded while the blocks arrive. Uploads of
		// packed sequences may submit by themselves, and a launch of tier cuda submits what is recorded.
		if c.s == nil || c.packed() || plan.MayCUDA((*problem.Config)(&c.cfg)) {
			if err := c.await(&arriving); err != nil {
				return err
			}
		}
		x.placeArrived()
		if err := c.forwardRows([]ranksRows{{runs, t.q, t.o, t.lse}}, x.all.k, x.all.v); err != nil {
			return c.abandon(err, arriving)
		}
		if err := c.await(&arriving); err != nil {
			return err
		}
		_, err = c.submit()
		return err
	})
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
			for _, runs := range calls(math.MaxInt, x.runs, c.cfg) {
				if err := c.forward(runs, false, x.q, k, v, x.o, x.lse); err != nil {
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
