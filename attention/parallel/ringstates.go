package parallel

import (
	"cmp"
	"slices"

	"vkattn/attention"
)

// States of a ring: float32 O and LSE of a segment over the keys of each block, and their merges.

// state is float32 O and LSE of some rows.
type state struct{ o, lse view }

// segment is a range of rows whose runs begin and end together in all steps, with its state.
// Packed sequences are one segment.
type segment struct {
	row, rows int
	steps     int // steps that contribute
	done      int // of them, merged into the state
	state
	partial []state // of steps after the first, which wait for their merge
}

// arenaAlign is the alignment of an arena's tensors in bytes.
const arenaAlign = 256

// arena hands out packed tensors in one allocation, one after the other.
type arena struct {
	memory view
	used   int64 // bytes
}

func (a *arena) new(dtype attention.DType, batch, heads, rows, dim int) view {
	t := a.memory.Tensor
	t.Strides, t.Offset = attention.Strides{}, a.used/int64(dtype.Size())
	v := viewOf(t, dtype, batch, heads, rows, dim)
	a.used += (v.bytes() + arenaAlign - 1) &^ (arenaAlign - 1)
	return v
}

// makeStates allocates the states of some heads in one piece of memory, which it returns. With
// ScheduleAhead packed copies of this rank's block have it during an exchange.
func (c *call) makeStates(segments []segment, batch, heads, dim int) view {
	a := c.forwardRing
	memory := arena{memory: c.new(attention.F32, 1, 1, 1, int(c.statesScratch(&c.sizes[c.group], a)/4))}
	next := func(s *segment) state {
		return state{memory.new(attention.F32, batch, heads, s.rows, dim), memory.new(attention.F32, batch, heads, s.rows, 1)}
	}
	for i := range segments {
		s := &segments[i]
		s.state = next(s)
		for range a.states {
			if s.steps > 1 {
				s.partial = append(s.partial, next(s))
			}
		}
	}
	return memory.memory
}

// beginHeads begins the states of a group of heads.
func beginHeads(segments []segment) {
	for i := range segments {
		segments[i].done = 0
	}
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

// work is a step: this rank's runs over a block.
type work struct {
	runs []run
	block
}

// stepPart is the work of a segment in a step.
type stepPart struct {
	runs []run
	block
	state
}

// attend adds some steps to the states of the segments, in the order of the steps. The last step of a
// segment rounds O.
//
// The calls of all steps write states of their own and read the blocks alone. So they follow one
// another without a barrier: behind a barrier, a call begins when the last row tile of the one before
// has ended, and few tiles keep a GPU busy until then. The calls that end with short tiles come last.
func (c *call) attend(segments []segment, steps []work, q, o view) error {
	var parts []stepPart
	waiting := make([][]state, len(segments))
	for i := range segments {
		s := &segments[i]
		done := s.done
		for _, w := range steps {
			runs := s.of(w.runs)
			if len(runs) == 0 {
				continue
			}
			to := s.state
			if done > 0 {
				to = s.partial[len(waiting[i])]
				waiting[i] = append(waiting[i], to)
			}
			done++
			parts = append(parts, stepPart{runs, w.block, to})
		}
		if s.done == 0 && done > 0 {
			s.done = 1
			if s.steps == 1 {
				waiting[i] = []state{{}} // nothing to merge: its O is rounded
			}
		}
	}
	if err := c.attendParts(parts, q); err != nil {
		return err
	}
	return c.mergeStates(segments, waiting, o)
}

// attendParts computes the states of parts, which are independent.
func (c *call) attendParts(parts []stepPart, q view) error {
	if c.packed() { // the calls of a part share LSE, and each uploads cu_seqlens
		for _, p := range parts {
			c.empty(p.lse)
			for _, runs := range calls(p.runs, c.cfg) {
				if err := c.forward(runs, true, q, p.k, p.v, p.o, p.lse); err != nil {
					return err
				}
			}
		}
		return nil
	}
	slices.SortStableFunc(parts, func(a, b stepPart) int { return cmp.Compare(b.runs[0].shortest(), a.runs[0].shortest()) })
	if !c.ordered() {
		return c.err
	}
	for _, p := range parts {
		if err := c.forwardUnordered(p.runs, true, q, p.k, p.v, p.o, p.lse); err != nil {
			return err
		}
	}
	return nil
}

// shortest is the number of keys that the row with the fewest keys sees.
func (r *run) shortest() int {
	switch r.shape {
	case lower, upper:
		return r.keys - r.rows + 1
	case band:
		return r.width
	}
	return r.keys
}

// mergeStates merges the states that wait, of all segments at once, one after the other in a segment.
func (c *call) mergeStates(segments []segment, waiting [][]state, o view) error {
	for j, more := 0, true; more; j++ {
		more = false
		for i := range segments {
			if j >= len(waiting[i]) {
				continue
			}
			if !more && !c.ordered() {
				return c.err
			}
			more = true
			if err := c.merge(&segments[i], waiting[i][j], o); err != nil {
				return err
			}
		}
	}
	return nil
}

// merge merges a state into that of its segment, after a barrier. Without a state it rounds O.
func (c *call) merge(s *segment, second state, o view) error {
	m := attention.MergeArgs{Shape: attention.Shape{B: s.o.batch, Hq: s.o.heads, Sq: s.rows}, First: attention.States{O: s.o.Tensor, LSE: s.lse.Tensor},
		O: s.o.Tensor, LSE: s.lse.Tensor}
	if second.o.Given() {
		m.Second = attention.States{O: second.o.Tensor, LSE: second.lse.Tensor}
		s.done++
	}
	out := attention.F32
	if s.done == s.steps {
		out, m.O = o.dtype, o.rowsFrom(s.row, s.rows).Tensor
	}
	op, err := c.op.merge(out)
	if err != nil {
		return err
	}
	return op.Forward(c.s, m)
}
