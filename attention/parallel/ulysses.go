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

	// members are the rows of each rank of the group, for this rank's heads. toHeads leaves them where
	// they arrive, and toRows sends them from there. Without members all rows lie in one tensor in the
	// order of the sequence, into which toHeads copies them, and from which toRows does.
	members []view

	only []bool // members that toRows gives their rows; nil: all
}

// wanted reports whether toRows gives a member its rows.
func (x *exchanged) wanted(u int) bool { return x.only == nil || x.only[u] }

func (c *call) spans(kv bool) (ranks Split, group []Span) {
	first := c.group * c.inner
	if kv {
		return c.layout.keys[first : first+c.inner], c.groupKeys[c.group]
	}
	return c.layout.rows[first : first+c.inner], c.groupRows[c.group]
}

// toHeads gives this rank all rows of the group for its heads. It fills in the members of a tensor that
// has room for them, in place of the tensor in the list.
func (c *call) toHeads(tensors ...exchanged) (list []view, err error) {
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
		if t.members == nil {
			list = append(list, c.new(t.dtype, t.batch, mine.heads, countOf(group), t.dim))
		} else {
			list = append(list, view{})
		}
		for u := range c.inner {
			a := arrival{mine, u, i}
			if u != c.u {
				peer := c.group*c.inner + u
				sends = append(sends, c.sends(peer, c.headsOf(t.view, t.kv, u))...)
				a.view = c.new(t.dtype, t.batch, mine.heads, ranks.Count(u), t.dim)
				receives = append(receives, transfers(peer, messages(a.view)...)...)
			}
			if t.members != nil {
				t.members[u] = a.view
				continue
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
	var copies []copying
	for _, a := range arrivals {
		ranks, group := c.spans(tensors[a.tensor].kv)
		copies = append(copies, placing(list[a.tensor], a.view, ranks[a.from], group)...)
	}
	c.copies(copies)
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

// placing are copies of rows of some spans to where they lie among those of all.
func placing(dst, src view, spans, all []Span) (list []copying) {
	for _, p := range progressions(places(spans, all)) {
		list = append(list, p.copies(dst, p.to, p.step, src, p.at, p.n)...)
	}
	return list
}

// taking are copies of rows of some spans from where they lie among those of all.
func taking(dst, src view, spans, all []Span) (list []copying) {
	for _, p := range progressions(places(spans, all)) {
		list = append(list, p.copies(dst, p.at, p.n, src, p.to, p.step)...)
	}
	return list
}

// copies are the copies of a progression to and from some rows on, with the distances of its places: one, or one for
// each sequence of the batch or each row of a place, whichever are fewer.
func (p *progression) copies(dst view, to, step int, src view, from, fromStep int) (list []copying) {
	switch {
	case p.count == 1:
		return []copying{{dst.rowsFrom(to, p.n), src.rowsFrom(from, p.n)}}
	case p.n <= src.batch:
		for i := range p.n {
			list = append(list, copying{dst.every(to+i, step, p.count), src.every(from+i, fromStep, p.count)})
		}
		return list
	}
	for b := range src.batch {
		list = append(list, copying{dst.sequencesFrom(b, 1).groupsOfRows(to, p.n, step, p.count),
			src.sequencesFrom(b, 1).groupsOfRows(from, p.n, fromStep, p.count)})
	}
	return list
}

// toRows gives each rank all heads of its rows: heads[i], or the members of out[i], have all rows of the
// group for this rank's heads, and out[i] receives this rank's rows. The member that is this rank may
// lie in out[i] already. Where ranks share a key head, their float32 gradients are summed in the order of
// ranks. A tensor that a rank does not want may be missing there.
func (c *call) toRows(heads []view, out []exchanged) error {
	var sends, receives []Transfer
	var copies []copying
	arrived := make([][]view, len(out)) // by member; not given: in its place already
	for i, t := range out {
		ranks, group := c.spans(t.kv)
		arrived[i] = make([]view, c.inner)
		if t.members != nil {
			heads[i] = t.members[c.u]
		}
		summed := c.summed(heads[i].dtype, &out[i])
		for u := range c.inner {
			peer := c.group*c.inner + u
			if u != c.u && t.wanted(u) { // the member's rows, for this rank's heads
				var piece view
				if t.members != nil {
					piece = t.members[u]
				} else {
					piece = c.new(heads[i].dtype, t.batch, heads[i].heads, ranks.Count(u), t.dim)
					copies = append(copies, taking(piece, heads[i], ranks[u], group)...)
				}
				sends = append(sends, transfers(peer, messages(piece)...)...)
			}
			if !t.wanted(c.u) {
				continue
			}
			dst := c.headsOf(t.view, t.kv, u) // this rank's rows, for the member's heads
			if t.members != nil && u == c.u {
				if mine := t.members[u]; mine.Buffer != dst.Buffer {
					copies = append(copies, copying{dst, mine})
				}
				continue
			}
			direct := !summed && (u == c.u || c.isDense(messages(dst)[0]))
			if !direct {
				dst = c.new(heads[i].dtype, t.batch, heads[i].heads, t.rows, t.dim)
				arrived[i][u] = dst
			}
			if u == c.u {
				copies = append(copies, taking(dst, heads[i], ranks[u], group)...)
				continue
			}
			receives = append(receives, transfers(peer, messages(dst)...)...)
		}
	}
	c.copies(copies)
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
