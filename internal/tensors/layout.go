package tensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"vkattn/internal/arith"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Layout is a tensor with its sizes and strides.
type Layout struct {
	Field  string // the Args field, for errors
	Tensor problem.Tensor
	DType  problem.DType
	Size   int64    // bytes of an element
	Counts [3]int64 // batch, heads, rows
	Steps  [3]int64 // their strides, in elements
	Dim    int64    // elements of a row

	quantized bool // elements have no DType
	latent    bool // a Latent type
}

// Set resolves the strides of a tensor and stores its sizes.
func (l *Layout) Set(field string, t *problem.Tensor, dtype problem.DType, batch, heads, seq, dim int) {
	s := t.Strides.Resolve(heads, seq, dim)
	l.Field, l.Tensor, l.DType, l.Size, l.Dim, l.quantized, l.latent = field, *t, dtype, int64(dtype.Size()), int64(dim), false, false
	l.Counts = [3]int64{int64(batch), int64(heads), int64(seq)}
	l.Steps = [3]int64{s.Batch, s.Head, s.Seq}
}

// SetKV is set for K or V. For a Blocked type dim, offset and strides count blocks.
func (l *Layout) SetKV(field string, t *problem.Tensor, kv problem.KVType, dtype problem.DType, batch, heads, seq, dim int) {
	unit := kv.Unit()
	blocks := (dim + unit - 1) / unit // V of a Latent type is a part of one
	l.Set(field, t, dtype, batch, heads, seq, blocks*unit)
	if l.quantized = kv != problem.KVSame; !l.quantized {
		return
	}
	l.Size, l.Dim, l.latent = int64(kv.RowBytes(dtype, unit)), int64(blocks), kv.Latent()
	l.Tensor.Offset /= int64(unit)
	for i := range l.Steps {
		l.Steps[i] /= int64(unit)
	}
}

var StrideNames = [3]string{"Batch", "Head", "Seq"}

// Empty reports whether the tensor has no rows.
func (l *Layout) Empty() bool { return l.Counts[0] == 0 || l.Counts[1] == 0 || l.Counts[2] == 0 }

// CheckBounds reports too little memory, and offsets or strides out of range. If it
// returns nil, all distances fit an int64.
func (l *Layout) CheckBounds() error {
	if l.Tensor.Offset < 0 {
		return &problem.ShapeError{Field: l.Field + ".Offset", Got: l.Tensor.Offset, Want: "at least 0"}
	}
	// Packed strides are products of the sizes. If a product overflows, the strides are
	// meaningless too.
	if l.Tensor.Strides == (problem.Strides{}) {
		if _, ok := arith.Product(l.Counts[0], l.Counts[1], l.Counts[2], l.Dim); !ok {
			return l.TooLarge()
		}
	}
	end, ok := l.Tensor.Offset, true
	if !l.Empty() {
		end, ok = arith.Add(end, l.Dim)
	}
	for i, n := range l.Counts {
		if l.Steps[i] < 0 {
			return &problem.ShapeError{Field: l.Field + ".Strides." + StrideNames[i], Got: l.Steps[i], Want: "at least 0"}
		}
		var far int64
		if ok && !l.Empty() {
			far, ok = arith.Mul(n-1, l.Steps[i])
		}
		if ok {
			end, ok = arith.Add(end, far)
		}
	}
	if ok {
		end, ok = arith.Mul(end, l.Size)
	}
	if !ok {
		return l.TooLarge()
	}
	if have := l.memoryBytes(); uint64(end) > have {
		return &problem.ShapeError{Field: l.Field, Got: fmt.Sprintf("%d bytes", have), Want: fmt.Sprintf("at least %d bytes", end)}
	}
	return nil
}

func (l *Layout) TooLarge() error {
	return &problem.ShapeError{Field: l.Field, Got: fmt.Sprintf("%v with offset %d and strides %v", l.Counts, l.Tensor.Offset, l.Steps),
		Want: "an extent below 2^63 bytes"}
}

// CheckGiven reports missing memory, or both kinds of memory.
func (l *Layout) CheckGiven() error {
	switch t := &l.Tensor; {
	case t.Buffer != nil && t.Host != nil:
		return &problem.ShapeError{Field: l.Field, Got: problem.Phrase("in both ${Buffer} and ${Host}"), Want: "one of them"}
	case t.Memory != nil && (t.Buffer != nil || t.Host != nil):
		return &problem.ShapeError{Field: l.Field, Got: problem.Phrase("in ${Memory} and elsewhere"), Want: "in one place"}
	case !t.Given():
		return &problem.ShapeError{Field: l.Field, Got: "missing", Want: problem.Phrase("a ${Buffer} or ${Host} memory")}
	}
	if l.Tensor.Sizes() != nil {
		return l.checkMade()
	}
	return nil
}

// checkMade compares a tensor that a Device made with what the call takes.
func (l *Layout) checkMade() error {
	dtype, _ := l.Tensor.DType()
	switch {
	case l.quantized:
		return &problem.ShapeError{Field: l.Field, Got: "a tensor of " + dtype.String(), Want: "quantized rows, in memory of the caller"}
	case dtype != l.DType:
		return &problem.ShapeError{Field: l.Field, Got: "a tensor of " + dtype.String(), Want: l.DType.String()}
	}
	if have := l.Tensor.Sizes(); len(have) == 4 {
		want := [4]int{int(l.Counts[0]), int(l.Counts[1]), int(l.Counts[2]), int(l.Dim)}
		if [4]int(have) != want {
			return &problem.ShapeError{Field: l.Field, Got: fmt.Sprintf("a tensor of %v", have), Want: fmt.Sprint(want)}
		}
	}
	return nil
}

// Place is where an operation computes and its tensors lie: a Vulkan device, a device of another kind, or neither, which
// is host memory and the CPU.
type Place struct {
	Vulkan *vk.Device
	Other  any // a backend.Device
}

// CPU reports whether the operation computes in host memory.
func (p Place) CPU() bool { return p.Vulkan == nil && p.Other == nil }

// side is a kind of memory.
type side uint8

const (
	inHost side = iota
	inBuffer
	inMemory
)

func (s side) String() string {
	if s == inHost {
		return "in host memory"
	}
	return "in device memory"
}

func (l *Layout) side() side {
	switch {
	case l.Tensor.Buffer != nil:
		return inBuffer
	case l.Tensor.Memory != nil:
		return inMemory
	}
	return inHost
}

// checkSide refuses a tensor on another side than that of a field.
func (l *Layout) checkSide(first side, field string) error {
	if l.side() == first {
		return nil
	}
	return l.otherSide(first, field)
}

func (l *Layout) otherSide(first side, field string) error {
	switch s := l.side(); {
	case s != inHost && first != inHost:
		return &problem.ShapeError{Field: l.Field, Got: "in memory of another device", Want: "one device, with " + field}
	default:
		return &problem.ShapeError{Field: l.Field, Got: s.String(), Want: first.String() + ", where " + field + " is"}
	}
}

// CheckDevice reports memory on the wrong side: an operation takes memory of its device, which is not closed; on the CPU
// it takes host memory.
func (l *Layout) CheckDevice(on Place) error {
	b := l.Tensor.Buffer
	if b != nil && on.Vulkan != nil && b.Device() == on.Vulkan && !b.Closed() { // what most calls have
		return nil
	}
	switch s := l.side(); {
	case on.CPU() && s != inHost:
		return &problem.ShapeError{Field: l.Field, Got: s.String(), Want: inHost.String() + ", where the CPU tier computes"}
	case on.CPU():
		return nil
	case on.Other != nil:
		return l.checkMemory(on.Other)
	case s == inHost:
		return &problem.ShapeError{Field: l.Field, Got: s.String(), Want: "a buffer of the operation's device"}
	case b == nil:
		return &problem.ShapeError{Field: l.Field, Got: "in memory of another device", Want: "a buffer of the operation's device"}
	case b.Device() != on.Vulkan:
		return &problem.ShapeError{Field: l.Field, Got: "a buffer of another device", Want: "one of the operation's device"}
	case b.Closed():
		return errs.Closed("the buffer of " + l.Field)
	}
	return nil
}

// checkMemory is CheckDevice for a device that is not Vulkan's.
func (l *Layout) checkMemory(device any) error {
	m := l.Tensor.Memory
	switch b := problem.BackingOf(m); {
	case l.side() == inHost:
		return &problem.ShapeError{Field: l.Field, Got: inHost.String(), Want: "memory of the operation's device"}
	case b == nil || b.Device() != device:
		return &problem.ShapeError{Field: l.Field, Got: "in memory of another device", Want: "memory of the operation's device"}
	case m.Closed():
		return errs.Closed("the memory of " + l.Field)
	}
	return nil
}

func (l *Layout) memoryBytes() uint64 {
	switch l.side() {
	case inBuffer:
		return l.Tensor.Buffer.Size()
	case inMemory:
		return l.Tensor.Memory.Size()
	}
	return uint64(len(l.Tensor.Host))
}

// Element returns the memory of a vector from element i on.
func (l *Layout) Element(i int64) []byte { return l.Tensor.Host[(l.Tensor.Offset+i)*l.Size:] }

// HostRow returns the memory of a row.
func (l *Layout) HostRow(batch, head, seq int64) []byte {
	e := l.Tensor.Offset + batch*l.Steps[0] + head*l.Steps[1] + seq*l.Steps[2]
	return l.Tensor.Host[e*l.Size:][:l.Dim*l.Size]
}

// AlignedRow is the length of a row in the units in which kernels count alignments: elements of the storage type, and
// bytes of quantized rows.
func AlignedRow(kv problem.KVType, elements int) int {
	if kv == problem.KVSame {
		return elements
	}
	return kv.RowBytes(problem.F16, elements)
}

// Alignment is the largest of 1, 2, 4 and 8 that divides what a kernel adds to reach a row, counted in elements, of
// quantized rows in bytes. The length of a row counts too: a kernel reads eight elements at once only if the row has eight.
func (l *Layout) Alignment(a problem.Access) uint32 {
	unit, base := uint64(1), BaseOf(&l.Tensor, l.Size, a)
	if l.quantized {
		unit = uint64(l.Size)
	} else {
		base /= uint64(l.Size)
	}
	return LargestAlignment(uint64(l.Dim)*unit, uint64(l.Tensor.Offset)*unit, uint64(l.Steps[0])*unit, uint64(l.Steps[1])*unit,
		uint64(l.Steps[2])*unit, base)
}

// Extent is the number of elements of one batch, from its first to past its last.
func (l *Layout) Extent() uint64 {
	if l.Empty() {
		return 0
	}
	return uint64((l.Counts[1]-1)*l.Steps[1] + (l.Counts[2]-1)*l.Steps[2] + l.Dim)
}

func CheckDevice(all []Layout, on Place) error {
	for i := range all {
		if err := all[i].CheckDevice(on); err != nil {
			return err
		}
	}
	return nil
}

// TensorBegun reports whether t names memory, or has an offset or strides: missing memory is
// an error.
func TensorBegun(t *problem.Tensor) bool {
	return t.Given() || t.Offset != 0 || t.Strides != (problem.Strides{})
}

// BaseOf is the byte position of a device tensor's first element: an address, or
// an offset into its VkBuffer, which descriptors align to far more than 16.
func BaseOf(t *problem.Tensor, size int64, a problem.Access) uint64 {
	at := uint64(t.Offset * size)
	if t.Memory != nil {
		return problem.BackingOf(t.Memory).Address() + at
	}
	if a == problem.AccessAddresses {
		return t.Buffer.Address() + at
	}
	return t.Buffer.Offset() + at
}

// LargestAlignment is the largest of 1, 2, 4 and 8 that divides all of n.
func LargestAlignment(n ...uint64) uint32 {
	all := uint64(8)
	for _, x := range n {
		all |= x
	}
	return 1 << bits.TrailingZeros64(all)
}

// VectorBegun reports whether v names memory or has an offset: missing memory is an error.
func VectorBegun(v *problem.Vector) bool { return v.Given() || v.Offset != 0 }

// IntAt returns an element of an int32 vector in host memory.
func IntAt(v *problem.Vector, i int) int {
	return int(int32(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):])))
}

// FloatAt returns an element of a float32 vector in host memory.
func FloatAt(v *problem.Vector, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
}
