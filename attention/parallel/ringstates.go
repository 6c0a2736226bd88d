package parallel

import (
	"math"

	"vkattn/attention"
	"vkattn/attention/merge"
)

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
