package parallel

// Head groups: a ring computes some key heads, with their query heads, at a time. The float32 state
// of O, the sums of gradients and the blocks of K and V under way are then of these heads alone, and
// the next group has the same memory. The bytes that a rank sends stay the same, in more messages.
// schedule.go has the groups of a forward pass whose blocks arrive ahead.

// leastRingMemory is the memory up to which a ring takes all heads at once. Smaller groups would
// leave a GPU idle: at head dim 128 it holds 131,072 rows of all heads, 1024 tiles of 128 rows for
// the 132 SMs of an H200. Tests set it.
var leastRingMemory uint64 = 256 << 20

// ringSizes are the numbers of rows and keys by which the memory of a rank is counted.
type ringSizes struct {
	rows, keys int // of the rank
	others     int // keys of the other ranks of the ring
	partial    int // rows of the state of a step after the first: of the segments that have several steps
	segments   int
	partials   int // segments that have several steps
	lse        int // rows of the LSE that gradients copy
}

// most keeps the largest of each number.
func (s *ringSizes) most(x ringSizes) {
	s.rows, s.keys, s.others, s.partial = max(s.rows, x.rows), max(s.keys, x.keys), max(s.others, x.others), max(s.partial, x.partial)
	s.segments, s.partials, s.lse = max(s.segments, x.segments), max(s.partials, x.partials), max(s.lse, x.lse)
}

// chooseHeads chooses the key heads of a group: as many as fit in two blocks of K and V with all
// key heads, or in leastRingMemory, on every rank.
func (l *layout) chooseHeads() {
	if !l.rings() {
		return
	}
	total := 0
	for g := range l.outer {
		total += countOf(l.groupKeys[g])
	}
	for g := range l.outer {
		sizes := ringSizes{rows: countOf(l.groupRows[g]), keys: countOf(l.groupKeys[g]), lse: l.lseRows(g)}
		sizes.others = total - sizes.keys
		segments, _ := l.segments(g)
		sizes.segments = len(segments)
		for i := range segments {
			if segments[i].steps > 1 {
				sizes.partial += segments[i].rows
				sizes.partials++
			}
		}
		l.sizes = append(l.sizes, sizes)
		l.widest.most(sizes)
	}
	_, kv := l.kvHeads(0)
	most := max(leastRingMemory, 2*l.elements(kv, l.groupKeys.most(), l.cfg.HeadDim+l.cfg.ValueDim())*uint64(l.cfg.DType.Size()))
	choose := func(scratch func(g, n int) uint64) int {
		for n := kv; n > 1; n-- {
			var needed uint64
			for g := range l.outer {
				needed = max(needed, scratch(g, n))
			}
			if kv%n == 0 && needed <= most {
				return n
			}
		}
		return 1
	}
	overlap := func(g, n int) uint64 { return l.ringForwardScratch(g, arrangement{heads: n, states: 1}) }
	l.overlapRing, l.backwardHeads = arrangement{heads: choose(overlap), states: 1}, choose(l.ringBackwardScratch)
	l.aheadRing, l.aheadFits = l.chooseAhead(most)
	l.forwardRing = l.overlapRing
}

// rings reports whether blocks travel.
func (l *layout) rings() bool { return l.outer > 1 && l.mode != ModeAllGather }

// ringHeads is the number of key heads of a rank.
func (l *layout) ringHeads() int {
	_, kv := l.kvHeads(0)
	return kv
}

// headGroups is the number of groups of n key heads; 1 without a ring.
func (l *layout) headGroups(n int) int {
	if !l.rings() {
		return 1
	}
	_, kv := l.kvHeads(0)
	return kv / n
}

// blocksScratch is the memory of n key heads of K and V: packed copies of this rank's, and buffers
// that receive.
func (l *layout) blocksScratch(g, n int) uint64 {
	dims, buffers := l.cfg.HeadDim+l.cfg.ValueDim(), min(2, l.headGroups(n)*(l.outer-1))
	return (l.elements(n, countOf(l.groupKeys[g]), dims) + uint64(buffers)*l.elements(n, l.groupKeys.most(), dims)) * uint64(l.cfg.DType.Size())
}

// queryHeads is the number of query heads of n key heads.
func (l *layout) queryHeads(n int) int {
	_, hq := l.heads(0)
	_, kv := l.kvHeads(0)
	return n * hq / kv
}

// ringForwardScratch is the memory of a ring's forward pass in a rank of group g.
func (l *layout) ringForwardScratch(g int, a arrangement) uint64 {
	if a.ahead > 0 {
		return l.aheadScratch(&l.sizes[g], a)
	}
	return l.blocksScratch(g, a.heads) + l.statesScratch(&l.sizes[g], a)
}

// aheadScratch is the memory of ScheduleAhead: the blocks of other ranks, and the states.
func (l *layout) aheadScratch(s *ringSizes, a arrangement) uint64 {
	return l.elements(a.ahead, s.others, l.cfg.HeadDim+l.cfg.ValueDim())*uint64(l.cfg.DType.Size()) + l.statesScratch(s, a)
}

// statesScratch is the memory of the states of a group of heads. With ScheduleAhead packed copies of
// this rank's block have it during an exchange.
func (l *layout) statesScratch(s *ringSizes, a arrangement) uint64 {
	states := l.elements(l.queryHeads(a.heads), s.rows+a.states*s.partial, l.cfg.ValueDim()+1)*4 + uint64(2*(s.segments+a.states*s.partials))*arenaAlign
	own := l.elements(a.ahead, s.keys, l.cfg.HeadDim+l.cfg.ValueDim())*uint64(l.cfg.DType.Size()) + 2*arenaAlign
	if a.ahead == 0 {
		own = 0
	}
	return (max(states, own) + 3) &^ 3 // words
}

// ringBackwardScratch is ringForwardScratch of Backward.
func (l *layout) ringBackwardScratch(g, n int) uint64 {
	d, dv, hq := l.cfg.HeadDim, l.cfg.ValueDim(), l.queryHeads(n)
	return l.blocksScratch(g, n) + (l.elements(hq, countOf(l.groupRows[g]), d)+l.elements(hq, l.sizes[g].lse, 1)+3*l.elements(n, l.groupKeys.most(), d+dv))*4
}
