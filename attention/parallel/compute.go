package parallel

import (
	"cmp"
	"slices"

	"vkattn/attention"
	"vkattn/attention/merge"
)

// Calls of this rank for some runs. Tensors that are not packed sequences take a call for each
// run. Packed ones take a call for each group of runs of the same Config: every run is a
// sequence of its own, with gaps between them (Varlen.UsedQ and UsedK).

// calls divides the runs of packed sequences into groups that one call can compute: the same
// Config, rows and keys ascending. It lists the first groups, up to most of them.
func calls(most int, runs []run, cfg attention.Config) (groups [][]run) {
	type open struct {
		cfg   attention.Config
		group int
	}
	var list []open
next:
	for _, r := range runs {
		c := r.config(cfg)
		for i := range list {
			g := &groups[list[i].group]
			if last := (*g)[len(*g)-1]; list[i].cfg == c && last.key+last.keys <= r.key {
				*g = append(*g, r)
				continue next
			}
		}
		if len(groups) == most {
			break
		}
		groups = append(groups, []run{r})
		list = append(list, open{c, len(groups) - 1})
	}
	return groups
}

// varlen describes the sequences of a group of runs.
func (s *side) varlen(runs []run, rows, keys int) *attention.Varlen {
	vector := func(number func(r *run) int, last ...int) attention.Vector {
		var list []int
		for i := range runs {
			list = append(list, number(&runs[i]))
		}
		return s.vector(append(list, last...))
	}
	return &attention.Varlen{
		CuQ: vector(func(r *run) int { return r.row }, rows), TotalQ: rows, UsedQ: vector(func(r *run) int { return r.rows }),
		CuK: vector(func(r *run) int { return r.key }, keys), TotalK: keys, UsedK: vector(func(r *run) int { return r.keys }),
	}
}

// arguments are the arguments of a call for one run, or for a group of runs of packed
// sequences. O and LSE are those of the whole tensors for packed sequences, otherwise those of
// the run's rows.
func (c *call) arguments(runs []run, q, k, v, o, lse view) attention.Args {
	a := attention.Args{O: o.Tensor, LSE: lse.Tensor}
	a.Hq, a.Hkv = q.heads, k.heads
	if c.packed() {
		a.B, a.Varlen = len(runs), c.varlen(runs, q.rows, k.rows)
		for i := range runs {
			a.Sq, a.Sk = max(a.Sq, runs[i].rows), max(a.Sk, runs[i].keys)
		}
	} else {
		r := &runs[0]
		a.B, a.Sq, a.Sk = q.batch, r.rows, r.keys
		q, k, v = q.rowsFrom(r.row, r.rows), k.rowsFrom(r.key, r.keys), v.rowsFrom(r.key, r.keys)
	}
	a.Q, a.K, a.V = q.Tensor, k.Tensor, v.Tensor
	return a
}

// forward computes runs of one Config behind a barrier. f32 stores O in float32.
func (c *call) forward(runs []run, f32 bool, q, k, v, o, lse view) error {
	op, a, err := c.forwardCall(runs, f32, q, k, v, o, lse)
	if err != nil {
		return err
	}
	if !c.ordered() {
		return c.err
	}
	return op.Forward(c.stream, a)
}

// forwardCall is the operation and the arguments of a forward call.
func (c *call) forwardCall(runs []run, f32 bool, q, k, v, o, lse view) (*attention.Op, attention.Args, error) {
	cfg := runs[0].config(c.cfg)
	cfg.F32O = f32
	op, err := c.op.of(cfg)
	if err != nil {
		return nil, attention.Args{}, err
	}
	return op, c.arguments(runs, q, k, v, o, lse), nil
}

// runCall is a call of one run. O and LSE are of its rows.
type runCall struct {
	run       run
	q, o, lse view
}

// forwardRuns computes runs of tensors that are not packed sequences, which do not depend on one another.
//
// They follow behind one barrier. Behind a barrier of its own, a call begins when the last row tile of the one
// before has ended, and few tiles keep a GPU busy until then. The calls that end with short row tiles come last.
func (c *call) forwardRuns(list []runCall, f32 bool, k, v view) error {
	slices.SortStableFunc(list, func(a, b runCall) int { return cmp.Compare(b.run.shortest(), a.run.shortest()) })
	if len(list) > 0 && !c.ordered() {
		return c.err
	}
	for _, x := range list {
		op, a, err := c.forwardCall([]run{x.run}, f32, x.q, k, v, x.o, x.lse)
		if err != nil {
			return err
		}
		if err := op.Forward(c.stream, a); err != nil {
			return err
		}
	}
	return nil
}

// backward adds the gradients of runs of one Config to float32 dQ, dK and dV of the whole
// tensors.
func (c *call) backward(runs []run, t operands) error {
	cfg := runs[0].config(c.cfg)
	cfg.F32Gradients = true
	op, err := c.op.of(cfg)
	if err != nil {
		return err
	}
	if !c.packed() {
		r := &runs[0]
		t.o, t.dO, t.dQ = t.o.rowsFrom(r.row, r.rows), t.dO.rowsFrom(r.row, r.rows), t.dQ.rowsFrom(r.row, r.rows)
		t.dK, t.dV = t.dK.rowsFrom(r.key, r.keys), t.dV.rowsFrom(r.key, r.keys)
	}
	a := attention.BackwardArgs{Args: c.arguments(runs, t.q, t.k, t.v, t.o, t.lse),
		DO: t.dO.Tensor, DQ: t.dQ.Tensor, DK: t.dK.Tensor, DV: t.dV.Tensor, Accumulate: true, PartialKeys: c.mode != ModeAllGather}
	if !c.ordered() {
		return c.err
	}
	return op.Backward(c.stream, a)
}

// sum adds float32 tensors of the same sizes in their order, and rounds the sum once. The first
// of more than two terms is overwritten.
func (c *call) sum(dst view, terms ...view) {
	if dst.bytes() == 0 {
		return
	}
	for len(terms) > 2 {
		c.add2(terms[0], terms[0], terms[1].Tensor)
		terms = append([]view{terms[0]}, terms[2:]...)
	}
	var second attention.Tensor
	if len(terms) == 2 {
		second = terms[1].Tensor
	}
	c.add2(dst, terms[0], second)
}

// add2 adds two float32 tensors, or converts one. The second may be left out.
func (c *call) add2(dst, first view, second attention.Tensor) {
	op, err := c.op.sum(dst.dtype, dst.dim)
	if err != nil {
		c.fail(err)
		return
	}
	if c.ordered() {
		c.fail(op.Forward(c.stream, merge.SumArgs{Shape: attention.Shape{B: dst.batch, Hq: dst.heads, Sq: dst.rows},
			First: first.Tensor, Second: second, Out: dst.Tensor}))
	}
}

// uncovered lists the rows of n that no run has.
func uncovered(runs []run, n int) (list []Span) {
	at := 0
	for _, r := range runs {
		if r.row > at {
			list = append(list, Span{at, r.row - at})
		}
		at = max(at, r.row+r.rows)
	}
	if at < n {
		list = append(list, Span{at, n - at})
	}
	return list
}

// whole returns the arguments of a call over all rows and keys, for the heads of Q and K.
func (c *call) whole(t operands) attention.Args {
	a := attention.Args{Shape: c.Shape, Q: t.q.Tensor, K: t.k.Tensor, V: t.v.Tensor, O: t.o.Tensor, LSE: t.lse.Tensor}
	a.Hq, a.Hkv = t.q.heads, t.k.heads
	if c.packed() {
		a.Varlen = &attention.Varlen{CuQ: c.vector(c.CuQ), CuK: c.vector(c.CuK), TotalQ: t.q.rows, TotalK: t.k.rows}
	}
	return a
}
