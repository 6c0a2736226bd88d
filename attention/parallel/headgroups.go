package parallel

import "slices"

// Head groups: a ring computes some key heads, with their query heads, at a time. The float32 state
// of O, the sums of gradients and the blocks of K and V under way are then of these heads alone, and
// the next group has the same memory. The bytes that a rank sends stay the same, in more messages.

// leastRingMemory is the memory up to which a ring takes all heads at once. Smaller groups would
// leave a GPU idle: at head dim 128 it holds 131,072 rows of all heads, 1024 tiles of 128 rows for
// the 132 SMs of an H200. Tests set it.
var leastRingMemory uint64 = 256 << 20

// ringRows are the numbers of rows by which the memory of a rank is counted.
type ringRows struct {
	partial int // of the state of a step after the first: of the segments that have several steps
	lse     int // of the LSE that gradients copy
}

// chooseHeads chooses the key heads of a group. chooseSchedule may choose others for the forward pass.
func (l *layout) chooseHeads() {
	switch {
	case l.outer == 1:
		return
	case !l.rings():
		l.gathers = true
		l.forwardHeads, _ = l.mostHeads(anyScratch, l.gatherBinding)
		l.backwardHeads, _ = l.mostHeads(anyScratch, l.backwardBinding)
		l.lseHeads = l.forwardHeads
		return
	}
	for g := range l.outer {
		l.calls = max(l.calls, l.stepCalls(g))
		if l.calls > maxCalls {
			return // refused
		}
		rows := ringRows{lse: l.lseRows(g)}
		segments, steps := l.segments(g)
		for _, runs := range steps {
			l.calls = max(l.calls, l.callsOf(runs))
		}
		for i := range segments {
			if segments[i].steps > 1 {
				rows.partial += segments[i].rows
			}
		}
		l.ringRows = append(l.ringRows, rows)
	}
	l.forwardHeads, _ = l.mostHeads(l.overlapScratch, l.overlapBinding)
	l.backwardHeads, _ = l.mostHeads(l.ringBackwardScratch, l.backwardBinding)
}

// mostHeads is the largest group of key heads of equal groups that fits in two blocks of K and V with all
// key heads, or in leastRingMemory, on every rank, and whose tensors kernels reach. If none does it is 1.
func (l *layout) mostHeads(scratch, binding func(g, n int) uint64) (n int, fits bool) {
	kv := l.ringHeads()
	most := max(leastRingMemory, 2*l.elements(kv, l.groupKeys.most(), l.cfg.HeadDim+l.cfg.ValueDim())*l.dtypeSize())
	for _, n := range groupSizes(kv) {
		if l.widest(scratch, n) <= most && l.widest(binding, n) <= l.reach {
			return n, true
		}
	}
	return 1, false
}

// anyScratch is the memory of a mode whose heads only the reach of kernels bounds.
func anyScratch(_, _ int) uint64 { return 0 }

// widest is the memory of n key heads on the rank that takes most.
func (l *layout) widest(scratch func(g, n int) uint64, n int) (most uint64) {
	for g := range l.outer {
		most = max(most, scratch(g, n))
	}
	return most
}

// groupSizes lists the sizes of equal groups of n heads, the largest first.
func groupSizes(n int) (list []int) {
	var small []int
	for i := 1; i <= n/i; i++ {
		if n%i == 0 {
			list = append(list, n/i)
			if i < n/i {
				small = append(small, i)
			}
		}
	}
	slices.Reverse(small)
	return append(list, small...)
}

// rings reports whether blocks travel.
func (l *layout) rings() bool { return l.outer > 1 && l.mode != ModeAllGather }

// ringHeads is the number of key heads of a rank.
func (l *layout) ringHeads() int {
	_, kv := l.rankHeads()
	return kv
}

// headGroups is the number of groups of n key heads; 1 where a call does not divide them.
func (l *layout) headGroups(n int) int {
	if n == 0 {
		return 1
	}
	return l.ringHeads() / n
}

// blocksScratch is the memory of n key heads of K and V: packed copies of this rank's, and buffers
// that receive.
func (l *layout) blocksScratch(g, n int) uint64 {
	dims, buffers := l.cfg.HeadDim+l.cfg.ValueDim(), min(2, l.headGroups(n)*(l.outer-1))
	elements := l.elements(n, countOf(l.groupKeys[g]), dims) + uint64(buffers)*l.elements(n, l.groupKeys.most(), dims)
	return elements * uint64(l.cfg.DType.Size())
}

// queryHeads is the number of query heads of n key heads.
func (l *layout) queryHeads(n int) int {
	hq, kv := l.rankHeads()
	return n * hq / kv
}

// overlapScratch is the memory of ScheduleOverlap in a rank of group g: blocks, and the states.
func (l *layout) overlapScratch(g, n int) uint64 {
	rows := countOf(l.groupRows[g]) + l.ringRows[g].partial
	return l.blocksScratch(g, n) + l.elements(l.queryHeads(n), rows, l.cfg.ValueDim()+1)*4
}

// gatherHeads is the number of key heads that a gather takes at a time. lse says that a rank asks for LSE.
// Without it, K and V of all key heads from two ranks are exactly the two blocks that a ring may take.
func (l *layout) gatherHeads(lse bool) int {
	if lse {
		return l.lseHeads
	}
	return l.forwardHeads
}

// gatherScratch is the memory of a gather in a rank: K and V of all ranks, and again those of ranks with many short
// spans. A rank that is one of them may copy its own to send them.
func (l *layout) gatherScratch(_, n int) uint64 {
	elements := l.elements(n, l.groupKeys.total(), l.cfg.HeadDim+l.cfg.ValueDim())
	for g := range l.outer {
		elements += l.packedElements(g, n)
	}
	return elements * l.dtypeSize()
}

// packedElements are the elements of n key heads of a group of ranks that move as one message a tensor.
func (l *layout) packedElements(g, n int) (elements uint64) {
	for _, dim := range [2]int{l.cfg.HeadDim, l.cfg.ValueDim()} {
		if l.packs(g, n, dim) {
			elements += l.elements(n, countOf(l.groupKeys[g]), dim)
		}
	}
	return elements
}

// gatherLSEScratch is gatherScratch in a rank of group g that asks for LSE: packed copies of all heads.
func (l *layout) gatherLSEScratch(g, n int) uint64 {
	return l.gatherScratch(g, n) + l.elements(l.queryHeads(l.ringHeads()), countOf(l.groupRows[g]), 1)*4
}

// ringBackwardScratch is the memory of gradients, which always overlap.
func (l *layout) ringBackwardScratch(g, n int) uint64 {
	d, dv, hq := l.cfg.HeadDim, l.cfg.ValueDim(), l.queryHeads(n)
	return l.blocksScratch(g, n) + (l.elements(hq, countOf(l.groupRows[g]), d)+
		l.elements(hq, l.ringRows[g].lse, 1)+3*l.elements(n, l.groupKeys.most(), d+dv))*4
}
