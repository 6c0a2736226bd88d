package parallel

import "vkattn/attention"

// All-gather: every rank receives all of K and V and computes its rows in ordinary calls.

// gatherKeys gives this rank the keys of all ranks in their order.
func (c *call) gatherKeys(tensors ...view) (list []view, err error) {
	var sends, receives []Transfer
	arrived := make([][]view, len(tensors))
	for i, t := range tensors {
		t = c.dense(t)
		arrived[i] = make([]view, c.ranks)
		for r := range c.ranks {
			if r == c.rank {
				arrived[i][r] = t
				continue
			}
			arrived[i][r] = c.new(t.dtype, t.batch, t.heads, c.layout.keys.Count(r), t.dim)
			sends = append(sends, transfers(r, t)...)
			receives = append(receives, transfers(r, arrived[i][r])...)
		}
	}
	if err := c.sync(c.ctx); err != nil {
		return nil, err
	}
	if err := c.g.exchange(c.ctx, sends, receives); err != nil {
		return nil, err
	}
	_, keys := c.extent()
	all := []Span{{0, keys}}
	for i, t := range tensors {
		whole := c.new(t.dtype, t.batch, t.heads, keys, t.dim)
		for r := range c.ranks {
			c.place(whole, arrived[i][r], c.layout.keys[r], all)
		}
		list = append(list, whole)
	}
	return list, nil
}

// allGatherForward computes O and LSE of this rank's rows.
func (c *call) allGatherForward(q, k, v, o, lse view) error {
	all, err := c.gatherKeys(k, v)
	if err != nil {
		return err
	}
	runs := c.wholeRuns(c.rank)
	for _, s := range uncovered(runs, q.rows) {
		c.clear(o.rowsFrom(s.First, s.N))
		if lse.Given() {
			c.empty(lse.rowsFrom(s.First, s.N))
		}
	}
	if c.packed() {
		for _, runs := range calls(runs, c.cfg) {
			if err := c.forward(runs, false, q, all[0], all[1], o, lse); err != nil {
				return err
			}
		}
		return nil
	}
	for _, r := range runs {
		var part view
		if lse.Given() {
			part = c.new(attention.F32, q.batch, q.heads, r.rows, 1)
		}
		if err := c.forward([]run{r}, false, q, all[0], all[1], o.rowsFrom(r.row, r.rows), part); err != nil {
			return err
		}
		if lse.Given() {
			c.copy(lse.rowsFrom(r.row, r.rows), part)
		}
	}
	return nil
}
