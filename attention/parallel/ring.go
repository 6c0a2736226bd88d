package parallel

import (
	"errors"
	"slices"

	"vkattn/attention"
)

// Ring attention: each rank keeps its rows, and blocks of K and V travel from rank to rank.
// While a rank computes with a block, it sends the block on and receives the next one. The
// states of the blocks are merged in the order in which they arrive, which is the same in
// every call: the rank's own block, then the block of the rank before, and so on.

// block is K and V of a group of ranks.
type block struct{ k, v view }

// ring passes blocks on among the ranks of all groups that have the same heads.
type ring struct {
	*call
	now     block // of group source()
	step    int
	buffers [2]block // receive by turns
	next    block
	pending Pending
}

// startRing begins with this rank's block.
func (c *call) startRing(k, v view) *ring {
	r := &ring{call: c, now: block{k, v}}
	if c.outer > 1 {
		r.now = block{c.dense(k), c.dense(v)}
	}
	most := c.groupKeys.most()
	for i := range min(2, c.outer-1) {
		r.buffers[i] = block{c.new(k.dtype, k.batch, k.heads, most, k.dim), c.new(v.dtype, v.batch, v.heads, most, v.dim)}
	}
	return r
}

// peer is the rank with the same heads that is some groups away.
func (c *call) peer(distance int) int {
	return (c.group+distance+c.outer)%c.outer*c.inner + c.u
}

// source is the group of the current block.
func (r *ring) source() int { return (r.group - r.step + r.outer) % r.outer }

// start sends the current block on and begins to receive the next one.
func (r *ring) start() error {
	if r.step == r.outer-1 {
		return nil
	}
	keys := countOf(r.groupKeys[(r.source()-1+r.outer)%r.outer])
	b := r.buffers[r.step%2]
	r.next = b.resized(keys)
	if err := r.sync(r.ctx); err != nil {
		return err
	}
	p, err := r.g.t.Exchange(transfers(r.peer(1), r.now.k, r.now.v), transfers(r.peer(-1), r.next.k, r.next.v))
	if err == nil {
		r.pending = p
	}
	return err
}

// finish waits for the next block; more is false after the last.
func (r *ring) finish() (more bool, err error) {
	if r.pending == nil {
		return false, nil
	}
	err = r.g.wait(r.ctx, r.pending)
	r.pending, r.now = nil, r.next
	r.step++
	return true, err
}

// abandon ends the call on all ranks and waits for transfers under way, so that nothing
// touches the tensors once the call has returned.
func (r *ring) abandon(err error, more ...Pending) error {
	var named *RankError
	if !errors.As(err, &named) {
		named = &RankError{r.rank, err}
	}
	r.g.t.Abort(named)
	for _, p := range append(more, r.pending) {
		if p != nil {
			_ = r.g.wait(r.ctx, p)
		}
	}
	return err
}

// resized is a block of fewer keys in the same memory.
func (b block) resized(keys int) block {
	return block{resized(b.k, b.k.heads, keys), resized(b.v, b.v.heads, keys)}
}

// resized is a packed tensor in the memory of a larger one.
func resized(v view, heads, rows int) view {
	t := v.Tensor
	t.Strides = attention.Strides{}
	return viewOf(t, v.dtype, v.batch, heads, rows, v.dim)
}

// transfers are the messages of packed tensors to or from one rank.
func transfers(peer int, tensors ...view) (list []Transfer) {
	for i := range tensors {
		if tensors[i].bytes() > 0 {
			list = append(list, Transfer{peer, tensors[i].memory()})
		}
	}
	return list
}

// segment is a range of rows whose runs begin and end together in all steps, with its state.
// Packed sequences are one segment.
type segment struct {
	row, rows int
	steps     int // steps that contribute
	done      int
	o, lse    view
}

// segments divides the rows of this rank, and returns the runs of each step.
func (c *call) segments(rows int) (list []segment, steps [][]run) {
	cuts := []int{0, rows}
	for t := range c.outer {
		runs := c.runs(c.group, (c.group-t+c.outer)%c.outer)
		steps = append(steps, runs)
		for i := range runs {
			cuts = append(cuts, runs[i].row, runs[i].row+runs[i].rows)
		}
	}
	if c.packed() {
		cuts = cuts[:2]
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i, first := range cuts[:len(cuts)-1] {
		list = append(list, segment{row: first, rows: cuts[i+1] - first})
	}
	for t := range steps {
		if !c.packed() {
			steps[t] = cutAt(steps[t], cuts)
		}
		for i := range list {
			if len(list[i].of(steps[t])) > 0 {
				list[i].steps++
			}
		}
	}
	return list, steps
}

// of returns the runs of a segment: at most one but for packed sequences.
func (s *segment) of(runs []run) []run {
	first, _ := slices.BinarySearchFunc(runs, s.row, func(r run, row int) int { return r.row - row })
	end, _ := slices.BinarySearchFunc(runs, s.row+s.rows, func(r run, row int) int { return r.row - row })
	return runs[first:end]
}

// ringForward computes O and LSE of this rank's rows.
func (c *call) ringForward(q, k, v, o, lse view) error {
	segments, steps := c.segments(q.rows)
	most := 0
	for i := range segments {
		s := &segments[i]
		s.o, s.lse = c.new(attention.F32, q.batch, q.heads, s.rows, v.dim), c.new(attention.F32, q.batch, q.heads, s.rows, 1)
		if s.steps > 1 {
			most = max(most, s.rows)
		}
	}
	n := c.headsAtOnce(q, k, most, v.dim)
	partial := segment{o: c.new(attention.F32, q.batch, n, most, v.dim), lse: c.new(attention.F32, q.batch, n, most, 1)}
	r := c.startRing(k, v)
	for more := true; more; {
		if err := r.start(); err != nil {
			return err
		}
		for i := range segments {
			s := &segments[i]
			if runs := s.of(steps[r.step]); len(runs) > 0 {
				if err := c.attend(s, &partial, runs, q, r.now.k, r.now.v, o); err != nil {
					return r.abandon(err)
				}
			}
		}
		if err := c.submit(); err != nil {
			return r.abandon(err)
		}
		var err error
		if more, err = r.finish(); err != nil {
			return err
		}
	}
	for i := range segments {
		s := &segments[i]
		if s.steps == 0 {
			c.clear(o.rowsFrom(s.row, s.rows))
			c.empty(s.lse)
		}
		if lse.Given() {
			c.copy(lse.rowsFrom(s.row, s.rows), s.lse)
		}
	}
	return nil
}

// maxPartial bounds the memory of the state of one step, which takes some heads at a time.
// Tests lower it.
var maxPartial uint64 = 256 << 20

// headsAtOnce is the number of query heads, whole groups of them, of a partial state.
func (l *layout) headsAtOnce(q, k view, rows, dim int) int {
	group := q.heads / k.heads
	if q.batch > 1 { // LSE of some heads of a batch is not packed
		return q.heads
	}
	one := max(1, l.elements(group, rows, dim+1)*4)
	return group * min(k.heads, max(1, int(min(maxPartial/one, attention.MaxLength))))
}

// attend adds the state of runs to the state of their segment. The last one rounds O.
func (c *call) attend(s, partial *segment, runs []run, q, k, v, o view) error {
	n := q.heads
	if s.done > 0 {
		n = partial.o.heads
	}
	s.done++
	for first := 0; first < q.heads; first += n {
		n := min(n, q.heads-first)
		kvFirst, kv := first*k.heads/q.heads, n*k.heads/q.heads
		part := *s
		part.o, part.lse = s.o.headsFrom(first, n), s.lse.headsFrom(first, n)
		if err := c.attendHeads(&part, partial, runs, q.headsFrom(first, n), k.headsFrom(kvFirst, kv), v.headsFrom(kvFirst, kv), o.headsFrom(first, n)); err != nil {
			return err
		}
	}
	return nil
}

// attendHeads is attend for some heads.
func (c *call) attendHeads(s, partial *segment, runs []run, q, k, v, o view) error {
	state := resized(s.lse, q.heads, s.rows)
	to, lse := s.o, state
	if s.done > 1 {
		to, lse = resized(partial.o, q.heads, s.rows), resized(partial.lse, q.heads, s.rows)
	}
	if c.packed() {
		c.empty(lse)
		for _, runs := range calls(runs, c.cfg) {
			if err := c.forward(runs, true, q, k, v, to, lse); err != nil {
				return err
			}
		}
	} else if err := c.forward(runs, true, q, k, v, to, lse); err != nil {
		return err
	}
	merge := attention.MergeArgs{Shape: attention.Shape{B: q.batch, Hq: q.heads, Sq: s.rows}, First: attention.States{O: s.o.Tensor, LSE: state.Tensor},
		O: s.o.Tensor, LSE: state.Tensor}
	if s.done > 1 {
		merge.Second = attention.States{O: to.Tensor, LSE: lse.Tensor}
	}
	out := attention.F32
	if s.done == s.steps {
		out, merge.O = o.dtype, o.rowsFrom(s.row, s.rows).Tensor
	} else if s.done == 1 {
		return nil
	}
	m, err := c.op.merge(out)
	if err != nil {
		return err
	}
	if !c.ordered() {
		return c.err
	}
	return m.Forward(c.s, merge)
}
