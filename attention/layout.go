package attention

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"vkattn/attention/quant"
	"vkattn/vk"
)

// layout is a tensor with its sizes and strides.
type layout struct {
	field  string // the Args field, for errors
	tensor Tensor
	size   int64    // bytes of an element
	counts [3]int64 // batch, heads, rows
	steps  [3]int64 // their strides, in elements
	dim    int64    // elements of a row
}

// set resolves the strides of a tensor and stores its sizes.
func (l *layout) set(field string, t *Tensor, size, batch, heads, seq, dim int) {
	s := t.Strides.Resolve(heads, seq, dim)
	*l = layout{
		field: field, tensor: *t, size: int64(size), dim: int64(dim),
		counts: [3]int64{int64(batch), int64(heads), int64(seq)},
		steps:  [3]int64{s.Batch, s.Head, s.Seq},
	}
}

// setKV is set for K or V. For a Blocked type dim, offset and strides count blocks of
// 32 elements.
func (l *layout) setKV(field string, t *Tensor, cfg *Config, batch, heads, seq, dim int) {
	l.set(field, t, cfg.KV.RowBytes(cfg.DType, 1), batch, heads, seq, dim)
	if cfg.KV.Blocked() {
		l.size = int64(cfg.KV.RowBytes(cfg.DType, quant.BlockElements))
		l.dim /= quant.BlockElements
		l.tensor.Offset /= quant.BlockElements
		for i := range l.steps {
			l.steps[i] /= quant.BlockElements
		}
	}
}

var strideNames = [3]string{"Batch", "Head", "Seq"}

// checkBounds reports too little memory, and offsets or strides out of range. If it
// returns nil, all distances fit an int64.
func (l *layout) checkBounds() error {
	if l.tensor.Offset < 0 {
		return &ShapeError{l.field + ".Offset", l.tensor.Offset, "at least 0"}
	}
	// Packed strides are products of the sizes. If a product overflows, the strides are
	// meaningless too.
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

// checkGiven reports missing memory, or both kinds of memory.
func (l *layout) checkGiven() error {
	switch t := l.tensor; {
	case t.Buffer != nil && t.Host != nil:
		return &ShapeError{l.field, "in both Buffer and Host", "one of them"}
	case !t.Given():
		return &ShapeError{l.field, "missing", "a Buffer or Host memory"}
	}
	return nil
}

// checkDevice reports memory on the wrong side: a device operation takes buffers of its
// device, the CPU tier takes host memory.
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

// rowsDisjoint reports whether the strides prove that no two rows share an element:
// taken in ascending order, each stride must step over all that the smaller ones span.
// Layouts that avoid overlap by another interleaving are not recognized.
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

// memory identifies a piece of addressable memory. Tensors in different memory cannot
// overlap.
type memory struct {
	device *vk.Device
	handle uint64
}

// start returns a tensor's memory and the byte at which row 0 begins.
func (l *layout) start() (memory, uint64) {
	off := uint64(l.tensor.Offset * l.size)
	if b := l.tensor.Buffer; b != nil {
		return memory{b.Device(), b.Handle()}, b.Offset() + off
	}
	return memory{}, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(l.tensor.Host)))) + off
}

// overlaps reports whether l and other may share a byte. Interleaved tensors, for
// example Q and O in alternating columns of wider rows, count as disjoint if their
// strides have a common divisor that separates them.
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
	if period == 0 { // one row each, and they overlap
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

// spanBytes returns the distance from the first byte of row 0 to the end of the last
// row.
func (l *layout) spanBytes() uint64 {
	span := l.dim
	for i, n := range l.counts {
		span += (n - 1) * l.steps[i]
	}
	return uint64(span * l.size)
}

// period returns a divisor of the distances in bytes between all rows; 0 for one row.
func (l *layout) period() (p uint64) {
	for i, n := range l.counts {
		if n > 1 {
			p = gcd(p, uint64(l.steps[i]*l.size))
		}
	}
	return p
}

// wovenWith reports whether two tensors in the same memory are disjoint because each
// stays within its own part of every period. K and V of a page, one after the other, are
// an example. The rows of one tensor may overlap each other.
func (l *layout) wovenWith(other *layout) bool {
	_, a := l.start()
	_, b := other.start()
	for i, n := range l.counts {
		if n < 2 || l.steps[i] == 0 {
			continue
		}
		period := uint64(l.steps[i] * l.size)
		gap := (b%period + period - a%period) % period
		if gap >= l.within(period) && gap+other.within(period) <= period {
			return true
		}
	}
	return false
}

// within returns the distance in bytes from the first byte of row 0 to the end of the
// rows that lie in the same period.
func (l *layout) within(period uint64) uint64 {
	span := uint64(l.dim * l.size)
	for i, n := range l.counts {
		if step := uint64(l.steps[i] * l.size); n > 1 && step%period != 0 {
			span += uint64(n-1) * step
		}
	}
	return span
}

// element returns the memory of a vector from element i on.
func (l *layout) element(i int64) []byte { return l.tensor.Host[(l.tensor.Offset+i)*l.size:] }

// hostRow returns the memory of a row.
func (l *layout) hostRow(batch, head, seq int64) []byte {
	e := l.tensor.Offset + batch*l.steps[0] + head*l.steps[1] + seq*l.steps[2]
	return l.tensor.Host[e*l.size:][:l.dim*l.size]
}

// coincides reports whether two tensors of the same sizes have every row at the same
// address.
func (l *layout) coincides(other *layout) bool {
	memA, a := l.start()
	memB, b := other.start()
	if memA != memB || a != b {
		return false
	}
	for i, n := range l.counts {
		if n > 1 && l.steps[i] != other.steps[i] {
			return false
		}
	}
	return true
}

// extent is the number of elements of one batch, from its first to past its last.
func (l *layout) extent() uint64 {
	return uint64((l.counts[1]-1)*l.steps[1] + (l.counts[2]-1)*l.steps[2] + l.dim)
}

func checkDevice(all []layout, dev *vk.Device) error {
	for i := range all {
		if err := all[i].checkDevice(dev); err != nil {
			return err
		}
	}
	return nil
}
