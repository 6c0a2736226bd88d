package parallel

import (
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/internal/hostmem"
)

// Limits of a mode: the calls of attention that a split takes, and the bytes of a tensor that kernels reach.

// maxCalls is the most calls of attention for the rows of a rank over the keys of a step, or over all keys. A call
// computes whole tiles of 64 to 128 rows, so thousands of calls of a row each compute as many times too much. Splits
// in chunks take one to three calls, packed sequences a few more.
const maxCalls = 1024

// callsOf counts the calls that compute runs, up to maxCalls+1.
func (l *layout) callsOf(runs []run) int {
	if l.packed() {
		return len(calls(maxCalls+1, runs, l.cfg))
	}
	return len(runs)
}

// stepCalls is the number of calls of group g in the step of a ring that takes most, before segments divide them.
func (l *layout) stepCalls(g int) (most int) {
	for s := 0; s < l.outer && most <= maxCalls; s++ {
		most = max(most, l.callsOf(l.runs(g, s)))
	}
	return most
}

// gatherCalls is the number of calls of the rank whose rows over all keys take most.
func (l *layout) gatherCalls() (most int) {
	for g := range l.outer {
		most = max(most, l.callsOf(l.wholeRuns(l.groupRows[g])))
	}
	return most
}

// maxCopies is the most copies that place packed keys, beyond which a plan does not choose a gather: each is a
// dispatch, and a ring that overlaps needs none.
const maxCopies = 1024

// gatherCopies is the number of copies that place the packed keys of all ranks, of K and as many of V.
func (l *layout) gatherCopies() (n int) {
	_, keys := l.extent()
	for g, spans := range l.groupKeys {
		if l.packs(g, l.forwardHeads, l.cfg.HeadDim) || l.packs(g, l.forwardHeads, l.cfg.ValueDim()) {
			n += len(progressions(places(spans, []Span{{0, keys}})))
		}
	}
	return n
}

// memberCalls is the most calls for the rows of a rank that ulysses computes where they arrive. Those of more calls
// are copied into the order of the sequence, which takes one.
const memberCalls = 16

// fitsMembers reports whether ulysses computes the rows of each rank where they arrive.
func (l *layout) fitsMembers() bool {
	if l.inner == 1 || l.outer > 1 || l.packed() {
		return false
	}
	for _, rows := range l.rows {
		if len(l.wholeRuns(rows)) > memberCalls {
			return false
		}
	}
	return true
}

// refusal says why the mode cannot compute the forward pass, and the ring the backward pass; "" if it can.
func (l *layout) refusal(asked Schedule) string {
	switch {
	case l.outer > 1:
	case l.inner > 1:
		return l.unreachable("an exchange of heads", l.headsBinding(l.dtypeSize()))
	default: // the call itself refuses what it does not reach
		return ""
	}
	if !l.rings() || asked == ScheduleGather {
		if reason := l.gatherRefusal(); reason != "" || !l.rings() {
			return reason
		}
	}
	if l.calls > maxCalls {
		return tooManyCalls("a step")
	}
	return l.unreachable("one key head of a ring", l.widest(l.overlapBinding, 1))
}

// gatherRefusal is refusal of a gather.
func (l *layout) gatherRefusal() string {
	if l.gatherCalls() > maxCalls {
		return tooManyCalls("the keys of all ranks")
	}
	return l.unreachable("one key head of all ranks", l.widest(l.gatherBinding, 1))
}

func tooManyCalls(keys string) string {
	return fmt.Sprintf("its rows in this Split take more than %d calls of attention over %s", maxCalls, keys)
}

// backwardRefusal says why kernels cannot reach what the backward pass allocates; "" if they can.
func (l *layout) backwardRefusal() string {
	switch {
	case l.inner > 1 && l.outer == 1:
		size := l.dtypeSize()
		if l.sharers() > 1 {
			size = 4
		}
		return l.unreachable("an exchange of heads", uint64(l.batch())*l.headsBinding(size))
	case l.mode == ModeAllGather:
		return l.unreachable("one key head of the gradients of all ranks", l.widest(l.backwardBinding, 1))
	case l.outer > 1:
		return l.unreachable("one key head of a ring's gradients", l.widest(l.backwardBinding, 1))
	}
	return ""
}

// unreachable says that a tensor is larger than what a kernel reaches; "" if it is not.
func (l *layout) unreachable(what string, bytes uint64) string {
	if bytes <= l.reach {
		return ""
	}
	return fmt.Sprintf("a tensor of %s has %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit", what, bytes, l.reach)
}

// everywhere is the reach of kernels that take addresses.
const everywhere = math.MaxUint64

// mostReach bounds the reach of kernels. Tests lower it.
var mostReach uint64 = everywhere

// reach is the number of bytes of a tensor that this rank's kernels reach. They take addresses if all buffers of
// the call have some.
func (op *Op) reach(list ...attention.Tensor) uint64 {
	if op.dev == nil || op.cfg.Access == attention.AccessAddresses {
		return mostReach
	}
	descriptors := op.cfg.Access == attention.AccessDescriptors || !op.dev.Caps().BufferDeviceAddress
	for i := range list {
		descriptors = descriptors || list[i].Buffer != nil && list[i].Buffer.Address() == 0
	}
	if descriptors {
		return min(mostReach, op.dev.Caps().Limits.MaxWindow())
	}
	return mostReach
}

// Bindings: the bytes that a descriptor of the largest tensor spans which a call allocates. Kernels of the forward
// pass take a sequence of a batch at a time where it is large, those of the backward pass all of them.

// binding is the size of a tensor of a sequence.
func binding(size uint64, heads, rows, dim int) uint64 {
	const most = 1 << 56 // so that products do not overflow
	return min(hostmem.Product(heads, rows, dim), most) * size
}

// headsBinding is that of ulysses, whose heads are computed at once.
func (l *layout) headsBinding(size uint64) (most uint64) {
	hq, kv := l.rankHeads()
	dim := max(l.cfg.HeadDim, l.cfg.ValueDim())
	rows := l.groupRows
	if l.members {
		rows = l.rows
	}
	return max(binding(size, hq, rows.most(), dim), binding(size, kv, l.groupKeys.most(), dim))
}

// overlapBinding is that of n key heads with ScheduleOverlap.
func (l *layout) overlapBinding(g, n int) uint64 {
	d, dv, size := l.cfg.HeadDim, l.cfg.ValueDim(), l.dtypeSize()
	hq, rows := l.queryHeads(n), countOf(l.groupRows[g])
	return max(binding(size, n, l.groupKeys.most(), max(d, dv)), binding(4, hq, rows, dv), binding(size, hq, rows, d))
}

// gatherBinding is that of n key heads of a gather. All sequences of a batch lie within the span of one.
func (l *layout) gatherBinding(g, n int) uint64 {
	d, dv, size := l.cfg.HeadDim, l.cfg.ValueDim(), l.dtypeSize()
	return max(binding(size, l.batch()*n, l.groupKeys.total(), max(d, dv)),
		binding(size, l.queryHeads(n), countOf(l.groupRows[g]), max(d, dv)))
}

// backwardBinding is that of n key heads of gradients of a ring or of an all-gather: float32 dK and dV of a block or
// of all keys, dQ, and with an exchange of heads Q, O and dO, which lie among all heads. Those of the caller have
// strides of their own.
func (l *layout) backwardBinding(g, n int) uint64 {
	dim, keys := max(l.cfg.HeadDim, l.cfg.ValueDim()), l.groupKeys.most()
	if l.mode == ModeAllGather {
		keys = l.groupKeys.total()
	}
	hq, rows := l.queryHeads(n), countOf(l.groupRows[g])
	bytes := max(binding(4, l.batch()*n, keys, dim), binding(4, l.batch()*hq, rows, l.cfg.HeadDim))
	if l.inner > 1 {
		all, _ := l.rankHeads()
		bytes = max(bytes, binding(l.dtypeSize(), (l.batch()-1)*all+hq, rows, dim))
	}
	return bytes
}

// checkReach reports a tensor of the caller that kernels take where it lies and do not reach. heads are those
// that a kernel takes at once, and all says that it takes all sequences of a batch at once.
func (l *layout) checkReach(field string, v view, heads int, all bool) error {
	if v.bytes() == 0 || l.reach == everywhere {
		return nil
	}
	batch := 1
	if all {
		batch = v.batch
	}
	elements := uint64(v.dim)
	for _, x := range [3]struct {
		n      int
		stride int64
	}{{batch, v.Strides.Batch}, {heads, v.Strides.Head}, {v.rows, v.Strides.Seq}} {
		elements += uint64(x.n-1) * uint64(x.stride)
	}
	if bytes := elements * uint64(v.dtype.Size()); bytes > l.reach {
		return fmt.Errorf("%w: parallel: %s spans %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit",
			attention.ErrUnsupported, field, bytes, l.reach)
	}
	return nil
}
