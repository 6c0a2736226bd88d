package parallel

import (
	"errors"
	"math"
	"slices"

	"vkattn/attention"
	"vkattn/attention/merge"
)

// Ring attention: each rank keeps its rows, and computes with the blocks of K and V of all ranks.
// The states of the blocks are merged in an order that is the same in every call: the rank's own
// block, then the block of the rank before, and so on.
//
// Blocks travel from rank to rank: while a rank computes with a block, it sends the block on and receives
// the next one. That is ScheduleOverlap. With ScheduleGather the forward pass gathers all blocks of some
// heads before it computes with them, and has no states to merge (allgather.go).

// block is K and V of a group of ranks.
type block struct{ k, v view }

// ring passes blocks on among the ranks of all groups that have the same heads. It takes the key
// heads in groups, one after the other, through the same buffers (headgroups.go).
type ring struct {
	*call
	now      block // of group source()
	step     int
	copied   bool      // now is a packed copy of this rank's block
	own      block     // memory of such copies
	buffers  [2]block  // receive by turns
	at       int       // buffer of now; ownBlock: none
	read     [3]uint64 // submission that read a buffer last
	received int       // blocks so far
	next     block
	pending  Pending
}

const ownBlock = 2

// startRing makes the buffers for groups of n key heads.
func (c *call) startRing(k, v view, n int) *ring {
	r := &ring{call: c}
	most := c.groupKeys.most()
	for i := range min(2, k.heads/n*(c.outer-1)) {
		r.buffers[i] = block{c.new(k.dtype, k.batch, n, most, k.dim), c.new(v.dtype, v.batch, n, most, v.dim)}
	}
	return r
}

// begin begins a group of heads with this rank's block of them.
func (r *ring) begin(k, v view) {
	r.copied = !r.isDense(k) || !r.isDense(v)
	r.now, r.at, r.step = block{r.denseIn(&r.own.k, k), r.denseIn(&r.own.v, v)}, ownBlock, 0
}

// peer is the rank with the same heads that is some groups away.
func (c *call) peer(distance int) int {
	return (c.group+distance+c.outer)%c.outer*c.inner + c.u
}

// source is the group of the current block.
func (r *ring) source() int { return (r.group - r.step + r.outer) % r.outer }

// start sends the current block on and begins to receive the next one. The device may still compute
// the step before: start waits for what is sent, and for the last reader of what is received.
func (r *ring) start() error {
	if r.step == r.outer-1 {
		return nil
	}
	keys := countOf(r.groupKeys[(r.source()-1+r.outer)%r.outer])
	i := r.received % 2
	r.next = r.buffers[i].resized(keys)
	var err error
	if r.received == 0 || r.step == 0 && r.copied {
		err = r.sync(r.ctx)
	} else {
		err = r.reached(r.ctx, r.read[i])
	}
	if err != nil {
		return err
	}
	r.received++
	p, err := r.g.t.Exchange(transfers(r.peer(1), r.now.k, r.now.v), transfers(r.peer(-1), r.next.k, r.next.v))
	if err == nil {
		r.pending = p
	}
	return err
}

// submitStep submits the computation of a step.
func (r *ring) submitStep() error {
	value, err := r.submit()
	r.read[r.at] = value
	return err
}

// finish waits for the next block; more is false after the last.
func (r *ring) finish() (more bool, err error) {
	if r.pending == nil {
		return false, nil
	}
	err = r.g.wait(r.ctx, r.pending)
	r.pending, r.now, r.at = nil, r.next, (r.received-1)%2
	r.step++
	return true, err
}

// abandon is that of the call, with the transfer under way.
func (r *ring) abandon(err error, more ...Pending) error {
	return r.call.abandon(err, append(more, r.pending)...)
}

// await waits for a transfer that may be under way, once.
func (c *call) await(p *Pending) error {
	pending := *p
	*p = nil
	if pending == nil {
		return nil
	}
	return c.g.wait(c.ctx, pending)
}

// abandon ends the call on all ranks and waits for transfers under way, so that nothing
// touches the tensors once the call has returned.
func (c *call) abandon(err error, pending ...Pending) error {
	var named *RankError
	if !errors.As(err, &named) {
		named = &RankError{c.rank, err}
	}
	c.g.t.Abort(named)
	for _, p := range pending {
		if p != nil {
			_ = c.g.wait(c.ctx, p)
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

// transfers are the messages of tensors to or from one rank.
func transfers(peer int, tensors ...view) (list []Transfer) {
	for i := range tensors {
		if tensors[i].bytes() > 0 {
			list = append(list, Transfer{peer, tensors[i].memory()})
		}
	}
	return list
}

// segments divides the rows of group g, and returns the runs of each step.
func (l *layout) segments(g int) (list []segment, steps [][]run) {
	cuts := []int{0, countOf(l.groupRows[g])}
	for t := range l.outer {
		runs := l.runs(g, (g-t+l.outer)%l.outer)
		steps = append(steps, runs)
		for i := range runs {
			cuts = append(cuts, runs[i].row, runs[i].row+runs[i].rows)
		}
	}
	if l.packed() {
		cuts = cuts[:2]
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i, first := range cuts[:len(cuts)-1] {
		list = append(list, segment{row: first, rows: cuts[i+1] - first})
	}
	for t := range steps {
		if !l.packed() {
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

// ringForward computes O and LSE of this rank's rows, one group of heads after the other.
func (c *call) ringForward(t operands) error {
	n := c.forwardHeads
	segments, steps := c.segments(c.group)
	c.makeStates(segments, t.q.batch, n*t.q.heads/t.k.heads, t.v.dim)
	r := c.startRing(t.k, t.v, n)
	return c.eachGroup(t, n, func(t operands) error { return r.forwardHeads(segments, steps, t) })
}

// forwardHeads computes O and LSE of a group of heads.
func (r *ring) forwardHeads(segments []segment, steps [][]run, t operands) error {
	r.begin(t.k, t.v)
	for i := range segments {
		segments[i].done = 0
	}
	for more := true; more; {
		if err := r.start(); err != nil {
			return err
		}
		if err := r.attend(segments, steps[r.step], r.now, t.q, t.o); err != nil {
			return r.abandon(err)
		}
		if err := r.submitStep(); err != nil {
			return r.abandon(err)
		}
		var err error
		if more, err = r.finish(); err != nil {
			return err
		}
	}
	r.endHeads(segments, t.o, t.lse)
	return nil
}

// States of a ring: float32 O and LSE of a segment over the keys of each block, and their merges.

// state is float32 O and LSE of some rows.
type state struct{ o, lse view }

// segment is a range of rows whose runs begin and end together in all steps, with its state.
// Packed sequences are one segment.
type segment struct {
	row, rows int
	steps     int // steps that contribute
	done      int // of them
	state
	partial state // of a step after the first, until it is merged
}

// makeStates allocates the states of some heads.
func (c *call) makeStates(segments []segment, batch, heads, dim int) {
	for i := range segments {
		s := &segments[i]
		next := func() state {
			return state{c.new(attention.F32, batch, heads, s.rows, dim), c.new(attention.F32, batch, heads, s.rows, 1)}
		}
		s.state = next()
		if s.steps > 1 {
			s.partial = next()
		}
	}
}

// attend adds a block to the states of the segments. The last block of a segment rounds its O.
func (c *call) attend(segments []segment, runs []run, b block, q, o view) error {
	var parts []segmentPart
	for i := range segments {
		s := &segments[i]
		if p := (segmentPart{s, s.of(runs), s.state}); len(p.runs) > 0 {
			if s.done++; s.done > 1 {
				p.to = s.partial
			}
			parts = append(parts, p)
		}
	}
	if err := c.attendParts(parts, b, q); err != nil {
		return err
	}
	if len(parts) > 0 && !c.ordered() {
		return c.err
	}
	for i := range parts {
		if err := c.merge(&parts[i], o); err != nil {
			return err
		}
	}
	return nil
}

// segmentPart is what a block adds to a segment: its runs, and the state that they write.
type segmentPart struct {
	*segment
	runs []run
	to   state
}

// attendParts computes the states of parts, each in memory of its own.
func (c *call) attendParts(parts []segmentPart, b block, q view) error {
	if c.packed() { // the calls of a part share LSE, and each uploads cu_seqlens
		for _, p := range parts {
			c.empty(p.to.lse)
			for _, runs := range calls(math.MaxInt, p.runs, c.cfg) {
				if err := c.forward(runs, true, q, b.k, b.v, p.to.o, p.to.lse); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var list []runCall
	for _, p := range parts {
		list = append(list, runCall{p.runs[0], q, p.to.o, p.to.lse})
	}
	return c.forwardRuns(list, true, b.k, b.v)
}

// merge merges what a part wrote into the state of its segment, and rounds O after the last part. The
// first state of several is that of its segment already.
func (c *call) merge(p *segmentPart, o view) error {
	s, out := p.segment, attention.F32
	m := merge.MergeArgs{Shape: attention.Shape{B: s.o.batch, Hq: s.o.heads, Sq: s.rows},
		First: merge.States{O: s.o.Tensor, LSE: s.lse.Tensor},
		O:     s.o.Tensor, LSE: s.lse.Tensor}
	if s.done > 1 {
		m.Second = merge.States{O: p.to.o.Tensor, LSE: p.to.lse.Tensor}
	}
	switch s.done {
	case s.steps:
		out, m.O = o.dtype, o.rowsFrom(s.row, s.rows).Tensor
	case 1:
		return nil
	}
	op, err := c.op.merge(out)
	if err != nil {
		return err
	}
	return op.Forward(c.stream, m)
}

// endHeads stores LSE, and O of rows that see no key.
func (c *call) endHeads(segments []segment, o, lse view) {
	var list []copying
	for i := range segments {
		s := &segments[i]
		if s.steps == 0 {
			c.clear(s.o)
			c.empty(s.lse)
			c.sum(o.rowsFrom(s.row, s.rows), s.o)
		}
		if lse.Given() {
			list = append(list, copying{lse.rowsFrom(s.row, s.rows), s.lse})
		}
	}
	c.copies(list)
}
