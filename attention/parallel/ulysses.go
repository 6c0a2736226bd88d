package parallel

import "vkattn/attention"

// Ulysses: an all-to-all gives each rank of a group all rows of the group for some of the
// heads, and another one gives the results back.

// headsOf is the part of a tensor that a member of the group computes with.
func (c *call) headsOf(v view, kv bool, u int) view {
	if kv {
		return v.headsFrom(c.kvHeads(u))
	}
	return v.headsFrom(c.heads(u))
}

// exchanged is a tensor of an exchange between heads and sequence.
type exchanged struct {
	view
	kv bool // K or V
}

func (c *call) spans(kv bool) (ranks Split, group []Span) {
	first := c.group * c.inner
	if kv {
		return c.layout.keys[first : first+c.inner], c.groupKeys[c.group]
	}
	return c.layout.rows[first : first+c.inner], c.groupRows[c.group]
}

// toHeads gives this rank all rows of the group for its heads.
func (c *call) toHeads(tensors ...exchanged) (list []view, err error) {
	if c.inner == 1 {
		for i := range tensors {
			list = append(list, tensors[i].view)
		}
		return list, nil
	}
	var sends, receives []Transfer
	type arrival struct {
		view
		from   int // member
		tensor int
	}
	var arrivals []arrival
	for i, t := range tensors {
		ranks, group := c.spans(t.kv)
		mine := c.headsOf(t.view, t.kv, c.u)
		list = append(list, c.new(t.dtype, t.batch, mine.heads, countOf(group), t.dim))
		for u := range c.inner {
			a := arrival{mine, u, i}
			if u != c.u {
				peer := c.group*c.inner + u
				sends = append(sends, c.sends(peer, c.headsOf(t.view, t.kv, u))...)
				a.view = c.new(t.dtype, t.batch, mine.heads, ranks.Count(u), t.dim)
				receives = append(receives, transfers(peer, messages(a.view)...)...)
			}
			arrivals = append(arrivals, a)
		}
	}
	if err := c.sync(c.ctx); err != nil {
		return nil, err
	}
	if err := c.g.exchange(c.ctx, sends, receives); err != nil {
		return nil, err
	}
	for _, a := range arrivals {
		ranks, group := c.spans(tensors[a.tensor].kv)
		c.place(list[a.tensor], a.view, ranks[a.from], group)
	}
	return list, nil
}

// messageBytes is the size from which the part of each sequence of a batch is a message of its own. It
// can then be sent from, and received into, a tensor whose heads are not those of one rank alone. Tests
// lower it.
var messageBytes int64 = 512 << 10

// messages divides a tensor into its messages. Sender and receiver divide alike: sizes alone decide.
func messages(v view) (list []view) {
	if v.bytes() < int64(v.batch)*messageBytes {
		return []view{v}
	}
	for b := range v.batch {
		list = append(list, v.sequencesFrom(b, 1))
	}
	return list
}

// sends are the messages of a tensor, which is copied where the transport cannot move it.
func (c *call) sends(peer int, v view) []Transfer {
	if !c.isDense(messages(v)[0]) {
		v = c.dense(v)
	}
	return transfers(peer, messages(v)...)
}

// place copies rows of some spans to where they lie among those of all.
func (c *call) place(dst, src view, spans, all []Span) {
	for _, p := range places(spans, all) {
		c.copy(dst.rowsFrom(p.to, p.n), src.rowsFrom(p.at, p.n))
	}
}

// take copies rows of some spans from where they lie among those of all.
func (c *call) take(dst, src view, spans, all []Span) {
	for _, p := range places(spans, all) {
		c.copy(dst.rowsFrom(p.at, p.n), src.rowsFrom(p.to, p.n))
	}
}

// toRows gives each rank all heads of its rows: heads[i] has all rows of the group for this
// rank's heads, and out[i] receives this rank's rows. Where ranks share a key head, their
// float32 gradients are summed in the order of ranks.
func (c *call) toRows(heads []view, out []exchanged) error {
	var sends, receives []Transfer
	arrived := make([][]view, len(out)) // by member; not given: in its place already
	for i, t := range out {
		ranks, group := c.spans(t.kv)
		arrived[i] = make([]view, c.inner)
		summed := c.summed(heads[i].dtype, &out[i])
		for u := range c.inner {
			dst := c.headsOf(t.view, t.kv, u)
			direct := !summed && (u == c.u || c.isDense(messages(dst)[0]))
			if !direct {
				dst = c.new(heads[i].dtype, t.batch, heads[i].heads, t.rows, t.dim)
				arrived[i][u] = dst
			}
			if u == c.u {
				c.take(dst, heads[i], ranks[u], group)
				continue
			}
			piece := c.new(heads[i].dtype, t.batch, heads[i].heads, ranks.Count(u), t.dim)
			c.take(piece, heads[i], ranks[u], group)
			peer := c.group*c.inner + u
			sends = append(sends, transfers(peer, messages(piece)...)...)
			receives = append(receives, transfers(peer, messages(dst)...)...)
		}
	}
	if err := c.sync(c.ctx); err != nil {
		return err
	}
	if err := c.g.exchange(c.ctx, sends, receives); err != nil {
		return err
	}
	for i, t := range out {
		shared := 1
		if t.kv {
			shared = c.sharers()
		}
		summed := c.summed(heads[i].dtype, &out[i])
		for u := 0; u < c.inner; u += shared {
			dst := c.headsOf(t.view, t.kv, u)
			switch {
			case summed:
				c.sum(dst, arrived[i][u:u+shared]...)
			case arrived[i][u].Given():
				c.copy(dst, arrived[i][u])
			}
		}
	}
	return nil
}

// summed reports whether a tensor of toRows is a sum of float32 gradients, or one that is rounded.
func (c *call) summed(heads attention.DType, out *exchanged) bool {
	return heads == attention.F32 && (out.kv && c.sharers() > 1 || out.dtype != attention.F32)
}
