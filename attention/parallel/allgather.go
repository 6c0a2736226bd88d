package parallel

import (
	"cmp"
	"slices"

	"vkattn/attention"
)

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
	var copies []copying
	for i, t := range tensors {
		whole := c.new(t.dtype, t.batch, t.heads, keys, t.dim)
		for r := range c.ranks {
			copies = append(copies, placing(whole, arrived[i][r], c.layout.keys[r], all)...)
		}
		list = append(list, whole)
	}
	c.copies(copies)
	return list, nil
}

// allGatherForward computes O and LSE of this rank's rows.
func (c *call) allGatherForward(q, k, v, o, lse view) error {
	all, err := c.gatherKeys(k, v)
	if err != nil {
		return err
	}
	return c.forwardRows([]ranksRows{{c.wholeRuns(c.rank), q, o, lse}}, all[0], all[1])
}

// ranksRows are the rows of a rank, and the runs that compute them over all keys. LSE may be left out.
type ranksRows struct {
	runs      []run
	q, o, lse view
}

// forwardRows computes rows of some ranks over all keys in their order. Their calls do not depend on one
// another and follow without a barrier, those that end with short row tiles last (see attend).
func (c *call) forwardRows(list []ranksRows, k, v view) error {
	type part struct {
		*ranksRows
		runs []run
		lse  view
	}
	var parts []part
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
			for _, runs := range calls(x.runs, c.cfg) {
				if err := c.forward(runs, false, x.q, k, v, x.o, x.lse); err != nil {
					return err
				}
			}
			continue
		}
		for j := range x.runs {
			r := &x.runs[j]
			p := part{ranksRows: x, runs: x.runs[j : j+1]}
			if x.lse.Given() {
				lse := x.lse.rowsFrom(r.row, r.rows)
				if lse.packed() {
					p.lse = resized(lse, lse.heads, lse.rows)
				} else {
					p.lse = c.like(lse, attention.F32)
					copies = append(copies, copying{lse, p.lse})
				}
			}
			parts = append(parts, p)
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.runs[0].shortest(), a.runs[0].shortest()) })
	if len(parts) > 0 && !c.ordered() {
		return c.err
	}
	for _, p := range parts {
		r := &p.runs[0]
		if err := c.forwardUnordered(p.runs, false, p.q, k, v, p.o.rowsFrom(r.row, r.rows), p.lse); err != nil {
			return err
		}
	}
	c.copies(copies)
	return nil
}
