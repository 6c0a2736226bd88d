package attention

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"vkattn/vk"
)

// layout is a tensor with its sizes: where every row of it lies.
type layout struct {
	field  string // the Args field, for errors
	tensor Tensor
	size   int64    // bytes of an element
	counts [3]int64 // batch, heads, rows
	steps  [3]int64 // their strides, in elements
	dim    int64    // elements of a row
}

// set resolves the strides of a tensor.
func (l *layout) set(field string, t *Tensor, size, batch, heads, seq, dim int) {
	s := t.Strides.Resolve(heads, seq, dim)
	*l = layout{
		field: field, tensor: *t, size: int64(size), dim: int64(dim),
		counts: [3]int64{int64(batch), int64(heads), int64(seq)},
		steps:  [3]int64{s.Batch, s.Head, s.Seq},
	}
}

// setKV is set for K or V. Rows of a Blocked type are counted in blocks of 32
// elements: dim, offset and strides are then numbers of blocks.
func (l *layout) setKV(field string, t *Tensor, cfg *Config, batch, heads, seq, dim int) {
	l.set(field, t, cfg.KV.RowBytes(cfg.DType, 1), batch, heads, seq, dim)
	if cfg.KV.Blocked() {
		l.size = int64(cfg.KV.RowBytes(cfg.DType, blockElements))
		l.dim /= blockElements
		l.tensor.Offset /= blockElements
		for i := range l.steps {
			l.steps[i] /= blockElements
		}
	}
}

var strideNames = [3]string{"Batch", "Head", "Seq"}

// checkBounds reports too little memory, and offsets and strides out of range.
// All distances are known to fit an int64 afterwards.
func (l *layout) checkBounds() error {
	if l.tensor.Offset < 0 {
		return &ShapeError{l.field + ".Offset", l.tensor.Offset, "at least 0"}
	}
	// Packed strides were multiplied up from the sizes: if those do not fit,
	// the strides are not to be trusted either.
	if l.tensor.Strides == (Strides{}) {
		if _, ok := product(l.counts[0], l.counts[1], l.counts[2], l.dim); !ok {
			return l.tooLarge()
		}
	}
	end, ok := add(l.tensor.Offset, l.dim)
	for i, n := range l.counts {
		if l.steps[i] < 0 {
			return &ShapeError{l.field + ".Strides." + strideNames[i], l.steps[i], "at least 0"}
		}
		var far int64
		if ok {
			far, ok = mul(n-1, l.steps[i])
		}
		if ok {
			end, ok = add(end, far)
		}
	}
	if ok {
		end, ok = mul(end, l.size)
	}
	if !ok {
		return l.tooLarge()
	}
	if have := l.memoryBytes(); uint64(end) > have {
		return &ShapeError{l.field, fmt.Sprintf("%d bytes", have), fmt.Sprintf("at least %d bytes", end)}
	}
	return nil
}

func (l *layout) tooLarge() error {
	return &ShapeError{l.field, fmt.Sprintf("%v with offset %d and strides %v", l.counts, l.tensor.Offset, l.steps),
		"an extent below 2^63 bytes"}
}

// checkGiven reports missing memory, or memory of both kinds.
func (l *layout) checkGiven() error {
	switch t := l.tensor; {
	case t.Buffer != nil && t.Host != nil:
		return &ShapeError{l.field, "in both Buffer and Host", "one of them"}
	case !t.Given():
		return &ShapeError{l.field, "missing", "a Buffer or Host memory"}
	}
	return nil
}

// checkDevice reports memory that is not where an operation computes: in buffers of
// its device, or in host memory where it has none.
func (l *layout) checkDevice(dev *vk.Device) error {
	switch b := l.tensor.Buffer; {
	case dev == nil && b != nil:
		return &ShapeError{l.field, side(true), side(false) + ", where the CPU tier computes"}
	case dev != nil && b == nil:
		return &ShapeError{l.field, side(false), "a buffer of the operation's device"}
	case dev != nil && b.Device() != dev:
		return &ShapeError{l.field, "a buffer of another device", "one of the operation's device"}
	}
	return nil
}

func (l *layout) memoryBytes() uint64 {
	if l.tensor.Buffer != nil {
		return l.tensor.Buffer.Size()
	}
	return uint64(len(l.tensor.Host))
}

// rowsDisjoint reports whether no two rows share an element. It is proved from
// the strides: taken in ascending order, each must step over everything the
// smaller ones span. Layouts that avoid overlap by interleaving some other way
// are not recognized.
func (l *layout) rowsDisjoint() bool {
	var list [len(l.counts)]int
	order := list[:0]
	for i, n := range l.counts {
		if n > 1 { // a dimension of size 1 never steps
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.steps[a], l.steps[b]) })
	span := l.dim
	for _, i := range order {
		if l.steps[i] < span {
			return false
		}
		span += (l.counts[i] - 1) * l.steps[i] // fits: see checkBounds
	}
	return true
}

// memory names a piece of addressable memory, so that two tensors overlap only
// if their memory is equal.
type memory struct {
	device *vk.Device
	handle uint64
}

// start is the memory a tensor lies in and the byte of it where row 0 begins.
func (l *layout) start() (memory, uint64) {
	off := uint64(l.tensor.Offset * l.size)
	if b := l.tensor.Buffer; b != nil {
		return memory{b.Device(), b.Handle()}, b.Offset() + off
	}
	return memory{}, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(l.tensor.Host)))) + off
}

// overlaps reports whether l and other may share a byte. Tensors woven into one
// another, such as Q and O kept side by side in wider rows, are recognized as
// disjoint when their strides have a common divisor that separates them.
func (l *layout) overlaps(other *layout) bool {
	memA, a := l.start()
	memB, b := other.start()
	if (l.tensor.Buffer == nil) != (other.tensor.Buffer == nil) || memA != memB {
		return false
	}
	if a+l.spanBytes() <= b || b+other.spanBytes() <= a {
		return false
	}
	period := gcd(l.period(), other.period())
	if period == 0 { // one row each, and they meet
		return true
	}
	// Every row of l begins at a, and every row of other at b, modulo period.
	var gap uint64 // from a up to b
	if b >= a {
		gap = (b - a) % period
	} else {
		gap = (period - (a-b)%period) % period
	}
	return gap < uint64(l.dim*l.size) || gap+uint64(other.dim*other.size) > period
}

// spanBytes is the distance from the first byte of row 0 to the end of the
// last row.
func (l *layout) spanBytes() uint64 {
	span := l.dim
	for i, n := range l.counts {
		span += (n - 1) * l.steps[i]
	}
	return uint64(span * l.size)
}

// period divides the distance in bytes between any two rows; 0 for one row.
func (l *layout) period() (p uint64) {
	for i, n := range l.counts {
		if n > 1 {
			p = gcd(p, uint64(l.steps[i]*l.size))
		}
	}
	return p
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
