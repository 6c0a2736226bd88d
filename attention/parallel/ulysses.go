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
			if u == c.u {
				c.place(list[i], mine, ranks[u], group)
				continue
			}
			peer := c.group*c.inner + u
			sends = append(sends, transfers(peer, c.dense(c.headsOf(t.view, t.kv, u)))...)
			a := arrival{c.new(t.dtype, t.batch, mine.heads, ranks.Count(u), t.dim), u, i}
			receives = append(receives, transfers(peer, a.view)...)
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
	arrived := make([][]view, len(out)) // by member
	for i, t := range out {
		ranks, group := c.spans(t.kv)
		arrived[i] = make([]view, c.inner)
		for u := range c.inner {
			piece := c.new(heads[i].dtype, t.batch, heads[i].heads, ranks.Count(u), t.dim)
			c.take(piece, heads[i], ranks[u], group)
			if u == c.u {
				arrived[i][u] = piece
				continue
			}
			peer := c.group*c.inner + u
			sends = append(sends, transfers(peer, piece)...)
			arrived[i][u] = c.new(heads[i].dtype, t.batch, heads[i].heads, t.rows, t.dim)
			receives = append(receives, transfers(peer, arrived[i][u])...)
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
		for u := 0; u < c.inner; u += shared {
			dst := c.headsOf(t.view, t.kv, u)
			if heads[i].dtype == attention.F32 && (shared > 1 || t.dtype != attention.F32) {
				c.sum(dst, arrived[i][u:u+shared]...)
				continue
			}
			c.copy(dst, arrived[i][u])
		}
	}
	return nil
}
