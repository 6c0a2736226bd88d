package parallel

// Head groups: a ring computes some key heads, with their query heads, at a time. The float32 state
// of O, the sums of gradients and the blocks of K and V under way are then of these heads alone, and
// the next group has the same memory. The bytes that a rank sends stay the same, in more messages.

// leastRingMemory is the memory up to which a ring takes all heads at once. Smaller groups would
// leave a GPU idle: at head dim 128 it holds 131,072 rows of all heads, 1024 tiles of 128 rows for
// the 132 SMs of an H200. Tests set it.
var leastRingMemory uint64 = 256 << 20

// ringRows are the numbers of rows by which the memory of a group of ranks is counted.
type ringRows struct {
	partial int // of the state of a step: of the longest segment that has several steps
	lse     int // of the LSE that gradients copy
}

// chooseHeads chooses the key heads of a group: as many as fit in two blocks of K and V with all
// key heads, or in leastRingMemory, on every rank.
func (l *layout) chooseHeads() {
	if !l.rings() {
		return
	}
	for g := range l.outer {
		var rows ringRows
		segments, _ := l.segments(g)
		for i := range segments {
			if segments[i].steps > 1 {
				rows.partial = max(rows.partial, segments[i].rows)
			}
		}
		rows.lse = l.lseRows(g)
		l.ringRows = append(l.ringRows, rows)
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
	l.forwardHeads, l.backwardHeads = choose(l.ringForwardScratch), choose(l.ringBackwardScratch)
}

// rings reports whether blocks travel.
func (l *layout) rings() bool { return l.outer > 1 && l.mode != ModeAllGather }

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

// ringForwardScratch is the memory of a ring of n key heads in a rank of group g.
func (l *layout) ringForwardScratch(g, n int) uint64 {
	rows := countOf(l.groupRows[g])
	return l.blocksScratch(g, n) + l.elements(l.queryHeads(n), rows+l.ringRows[g].partial, l.cfg.ValueDim()+1)*4
}

// ringBackwardScratch is ringForwardScratch of Backward.
func (l *layout) ringBackwardScratch(g, n int) uint64 {
	d, dv, hq := l.cfg.HeadDim, l.cfg.ValueDim(), l.queryHeads(n)
	return l.blocksScratch(g, n) + (l.elements(hq, countOf(l.groupRows[g]), d)+l.elements(hq, l.ringRows[g].lse, 1)+3*l.elements(n, l.groupKeys.most(), d+dv))*4
}
