package tensors

import (
	"cmp"
	"slices"
	"unsafe"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Overlap: whether tensors share bytes, decided from addresses, sizes and strides alone.

// memory identifies a piece of addressable memory. Tensors in different memory cannot
// overlap.
type memory struct {
	device *vk.Device
	handle uint64
}

// start returns a tensor's memory and the byte at which row 0 begins.
func (l *Layout) start() (memory, uint64) {
	off := uint64(l.Tensor.Offset * l.Size)
	if b := l.Tensor.Buffer; b != nil {
		return memory{b.Device(), b.Handle()}, b.Offset() + off
	}
	if b := problem.BackingOf(l.Tensor.Memory); b != nil {
		return memory{}, b.Address() + off
	}
	return memory{}, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(l.Tensor.Host)))) + off
}

// SpanBytes returns the distance from the first byte of row 0 to the end of the last
// row.
func (l *Layout) SpanBytes() uint64 {
	if l.Empty() {
		return 0
	}
	span := l.Dim
	for i, n := range l.Counts {
		span += (n - 1) * l.Steps[i]
	}
	return uint64(span * l.Size)
}

// Coincides reports whether two tensors of the same sizes have every row at the same
// address.
func (l *Layout) Coincides(other *Layout) bool {
	memA, a := l.start()
	memB, b := other.start()
	if memA != memB || a != b {
		return false
	}
	for i, n := range l.Counts {
		if n > 1 && l.Steps[i] != other.Steps[i] {
			return false
		}
	}
	return true
}

// Overlaps reports whether l and other share a byte. Interleaved tensors share none, for
// example Q, K and V in one tensor [B, S, 3, H, D]. The answer is exact unless the search
// takes more than maxDistanceNodes; then it is true.
func (l *Layout) Overlaps(other *Layout) bool {
	memA, a := l.start()
	memB, b := other.start()
	if memA != memB || (l.Tensor.Buffer == nil) != (other.Tensor.Buffer == nil) || (l.Tensor.Memory == nil) != (other.Tensor.Memory == nil) {
		return false
	}
	spanA, spanB := l.SpanBytes(), other.SpanBytes()
	if spanA == 0 || spanB == 0 {
		return false
	}
	if a+spanA <= b || b+spanB <= a {
		return false
	}
	if spanA > maxDistanceSpan || spanB > maxDistanceSpan {
		return true
	}
	// A row of other begins b-a plus multiples of its strides, less multiples of l's, behind
	// a row of l. The two share a byte if one begins before the other ends.
	gap := int64(b - a)
	d := distances{low: 1 - other.Dim*other.Size - gap, high: l.Dim*l.Size - 1 - gap}
	for i, n := range l.Counts {
		d.add(l.Steps[i]*l.Size, 1-n, 0)
	}
	for i, n := range other.Counts {
		d.add(other.Steps[i]*other.Size, 0, n-1)
	}
	return d.reachable()
}

// RowsDisjoint reports whether no two rows share an element. The answer is exact unless
// the search takes more than maxDistanceNodes; then it is false.
func (l *Layout) RowsDisjoint() bool {
	if l.Empty() || l.nested() {
		return true
	}
	if l.SpanBytes() > maxDistanceSpan {
		return false
	}
	// Of two different rows, one has the larger index in the first dimension in which they
	// differ. Each dimension in turn is the first.
	for first, n := range l.Counts {
		if n == 1 {
			continue
		}
		if l.Steps[first] == 0 {
			return false
		}
		d := distances{low: 1 - l.Dim, high: l.Dim - 1}
		d.add(l.Steps[first], 1, n-1)
		for i := first + 1; i < len(l.Counts); i++ {
			d.add(l.Steps[i], 1-l.Counts[i], l.Counts[i]-1)
		}
		if d.reachable() {
			return false
		}
	}
	return true
}

// nested reports whether each stride, in ascending order, steps over all that the smaller
// ones span. Usual layouts do, which proves in a few nanoseconds that their rows are disjoint.
func (l *Layout) nested() bool {
	var list [len(l.Counts)]int
	order := list[:0]
	for i, n := range l.Counts {
		if n > 1 { // a dimension of size 1 never steps
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.Steps[a], l.Steps[b]) })
	span := l.Dim
	for _, i := range order {
		if l.Steps[i] < span {
			return false
		}
		span += (l.Counts[i] - 1) * l.Steps[i] // fits: see CheckBounds
	}
	return true
}

const (
	// maxDistanceNodes bounds the search for a distance, to about 50 µs. Where each stride
	// steps over all that smaller ones span, a node has at most 2 successors, and a search
	// fewer than 2^7 nodes.
	maxDistanceNodes = 1 << 12
	maxDistanceSpan  = 1 << 60 // sums of distances fit an int64
)

// distances are sums of multiples of strides. The search asks whether one of them lies in
// low..high.
type distances struct {
	terms     [6]distanceTerm // by stride, ascending
	n         int
	low, high int64
	nodes     int // visited
}

// distanceTerm contributes step times a number from least to most.
type distanceTerm struct {
	step, least, most int64
	// Over this term and all before it: the smallest and largest sum, and a divisor of all sums.
	from, to int64
	divisor  int64
}

// add adds a term behind the terms of smaller strides. Terms of the same stride become
// one.
func (d *distances) add(step, least, most int64) {
	if step == 0 || least == 0 && most == 0 {
		return
	}
	at := d.n
	for at > 0 && d.terms[at-1].step >= step {
		at--
	}
	if t := &d.terms[at]; at < d.n && t.step == step {
		t.least, t.most = t.least+least, t.most+most
		return
	}
	copy(d.terms[at+1:], d.terms[at:d.n])
	d.terms[at] = distanceTerm{step: step, least: least, most: most}
	d.n++
}

// reachable reports whether some distance lies in low..high, or that the search gave up.
func (d *distances) reachable() bool {
	terms := d.terms[:d.n]
	// Copies of low..high at distances of at most its length cover one interval. That
	// replaces the term.
	for len(terms) > 0 && terms[0].step <= d.high-d.low+1 {
		t := &terms[0]
		d.low, d.high = d.low-t.step*t.most, d.high-t.step*t.least
		terms = terms[1:]
	}
	var before distanceTerm
	for i := range terms {
		t := &terms[i]
		t.from, t.to = before.from+t.step*t.least, before.to+t.step*t.most
		t.divisor = int64(arith.GCD(uint64(before.divisor), uint64(t.step)))
		before = *t
	}
	return d.search(terms, d.low, d.high)
}

// search reports whether a sum of the terms lies in low..high. It tries the numbers of the
// largest stride that bring the sum within reach of the others.
func (d *distances) search(terms []distanceTerm, low, high int64) bool {
	if d.nodes++; d.nodes > maxDistanceNodes {
		return true
	}
	if len(terms) == 0 {
		return low <= 0 && 0 <= high
	}
	t := &terms[len(terms)-1]
	low, high = max(low, t.from), min(high, t.to)
	if low > high || floorDiv(high, t.divisor) == floorDiv(low-1, t.divisor) {
		return false
	}
	if len(terms) == 1 {
		return true // a multiple of the only stride, within its numbers
	}
	others := &terms[len(terms)-2]
	first := max(t.least, -floorDiv(others.to-low, t.step))
	last := min(t.most, floorDiv(high-others.from, t.step))
	for n := first; n <= last; n++ {
		if d.search(terms[:len(terms)-1], low-n*t.step, high-n*t.step) {
			return true
		}
	}
	return false
}

// floorDiv is n/d rounded down, for d of at least 1.
func floorDiv(n, d int64) int64 {
	if n < 0 {
		return -((d - 1 - n) / d)
	}
	return n / d
}
