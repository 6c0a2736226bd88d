package attention

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/vk"
)

// pushBytes is the size of the push constant block of shaders/interface.glsl.
const pushBytes = 120

// record checks the arguments and puts the dispatches into c.
func (op *Op) record(c *vk.Commands, a Args) error {
	if err := op.check(a); err != nil {
		return err
	}
	r := op.request(a)
	if r.access == AccessAddresses {
		for i, t := range [5]Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
			if t.Buffer != nil && t.Buffer.Address() == 0 {
				return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses",
					ErrUnsupported, [5]string{"Q", "K", "V", "O", "LSE"}[i])
			}
		}
	}
	p, err := op.prepare(r)
	if err != nil {
		return err
	}
	l := op.launch(p, a)
	chunk, err := l.batchesAtOnce()
	if err != nil {
		return err
	}
	if err := c.Keep(p.pipeline); err != nil {
		return err
	}
	for _, t := range [5]Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
		if t.Buffer != nil {
			if err := c.Keep(t.Buffer); err != nil {
				return err
			}
		}
	}
	for first := 0; first < a.B; first += chunk {
		if err := l.dispatch(c, first, min(chunk, a.B-first)); err != nil {
			return err
		}
	}
	return nil
}

// launch is one Forward on its way to dispatches.
type launch struct {
	op       *Op
	plan     *Plan
	pipeline *vk.Pipeline
	shape    Shape
	tensors  [5]launchTensor // Q, K, V, O, LSE
}

type launchTensor struct {
	buffer  *vk.Buffer
	size    uint64 // bytes of an element
	offset  uint64 // of the first element, in elements
	strides [3]uint64
	extent  uint64 // elements of one batch, from its first to past its last
}

func (op *Op) launch(p *prepared, a Args) launch {
	l := launch{op: op, plan: &p.plan, pipeline: p.pipeline, shape: a.Shape}
	dims := [4]int{op.cfg.HeadDim, op.cfg.HeadDim, op.cfg.ValueDim(), op.cfg.ValueDim()}
	heads := [4]int{a.Hq, a.KVHeads(), a.KVHeads(), a.Hq}
	seqs := [4]int{a.Sq, a.Sk, a.Sk, a.Sq}
	for i, t := range [4]Tensor{a.Q, a.K, a.V, a.O} {
		s := t.Strides.Resolve(heads[i], seqs[i], dims[i])
		l.tensors[i] = launchTensor{
			buffer: t.Buffer, size: uint64(op.cfg.DType.Size()), offset: uint64(t.Offset),
			strides: [3]uint64{uint64(s.Batch), uint64(s.Head), uint64(s.Seq)},
			extent:  uint64(heads[i]-1)*uint64(s.Head) + uint64(seqs[i]-1)*uint64(s.Seq) + uint64(dims[i]),
		}
	}
	if a.LSE.Given() {
		rows := uint64(a.Hq) * uint64(a.Sq)
		l.tensors[4] = launchTensor{
			buffer: a.LSE.Buffer, size: 4, offset: uint64(a.LSE.Offset), strides: [3]uint64{rows}, extent: rows,
		}
	}
	return l
}

// batchesAtOnce is how many batches one dispatch may cover: the grid's z, the
// 32 bits of a stride and the range of a descriptor bound it.
func (l *launch) batchesAtOnce() (int, error) {
	limits := &l.op.dev.Caps().Limits
	slices := uint64(l.plan.variant.slices())
	most := min(uint64(l.shape.B), uint64(limits.MaxWorkGroupCount[2])/slices)
	for i := range l.tensors {
		t := &l.tensors[i]
		if t.buffer == nil {
			continue
		}
		name := [5]string{"Q", "K", "V", "O", "LSE"}[i]
		if t.strides[1] > math.MaxUint32 || t.strides[2] > math.MaxUint32 {
			return 0, fmt.Errorf("%w: %s has a head or row stride of 2^32 elements or more", ErrUnsupported, name)
		}
		if i < 4 && t.strides[2]*uint64(l.plan.variant.rowReach()) > math.MaxUint32 {
			return 0, fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them",
				ErrUnsupported, name, t.strides[2])
		}
		if t.strides[0] > math.MaxUint32 {
			most = 1
		}
		if l.plan.Access == AccessAddresses {
			continue
		}
		span := limits.MaxStorageBufferRange - min(limits.MaxStorageBufferRange, limits.MinStorageBufferOffsetAlignment)
		if t.extent*t.size > span {
			return 0, fmt.Errorf("%w: one batch of %s spans %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit",
				ErrUnsupported, name, t.extent*t.size, span)
		}
		if t.strides[0] > 0 {
			most = min(most, 1+(span/t.size-t.extent)/t.strides[0])
		}
	}
	return int(max(most, 1)), nil
}

// rowReach bounds the rows, counted from a slice's first one, that a kernel
// addresses with 32-bit offsets.
func (v variant) rowReach() uint32 { return max(v.tile.rows(), v.tile.blockCols) + 1 }

// dispatch records batches [first, first+count).
func (l *launch) dispatch(c *vk.Commands, first, count int) error {
	var push [pushBytes]byte
	var bound [5]vk.BufferRange
	var buffers []vk.BufferRange
	le := binary.LittleEndian
	align := l.op.dev.Caps().Limits.MinStorageBufferOffsetAlignment
	for i := range l.tensors {
		t := &l.tensors[i]
		if l.plan.Access == AccessDescriptors {
			buffers = bound[:]
		}
		if t.buffer == nil {
			// LSE is not written; its binding must still name a buffer.
			bound[i] = vk.BufferRange{Buffer: l.tensors[3].buffer, Size: min(l.tensors[3].buffer.Size(), 4)}
			continue
		}
		at := (t.offset + uint64(first)*t.strides[0]) * t.size
		if l.plan.Access == AccessAddresses {
			le.PutUint64(push[8*i:], t.buffer.Address()+at)
		} else {
			// The descriptor starts at a multiple of the device's alignment; the kernel adds the rest.
			start := (t.buffer.Offset() + at) / align * align
			if start < t.buffer.Offset() {
				start = t.buffer.Offset()
			}
			rest := t.buffer.Offset() + at - start
			le.PutUint64(push[8*i:], rest/t.size)
			length := rest + (uint64(count-1)*t.strides[0]+t.extent)*t.size
			// Kernels read whole 32-bit words; a buffer may end in the middle of one.
			offset := start - t.buffer.Offset()
			bound[i] = vk.BufferRange{Buffer: t.buffer, Offset: offset, Size: min((length+3)&^3, t.buffer.Size()-offset)}
		}
		if i < 4 {
			for d, stride := range t.strides {
				if d == 0 && count == 1 {
					stride = 0
				}
				le.PutUint32(push[40+12*i+4*d:], uint32(stride))
			}
		}
	}
	s := &l.shape
	unitHigh, unitLow := l.op.cfg.logUnit()
	var offset int
	if l.op.cfg.Causal == BottomRight {
		offset = s.Sk - s.Sq
	}
	for i, word := range [...]uint32{
		uint32(s.Sq), uint32(s.Sk), uint32(s.Hq), uint32(s.Group()),
		math.Float32bits(l.op.cfg.scaleLog2()), uint32(int32(offset)),
		math.Float32bits(unitHigh), math.Float32bits(unitLow),
	} {
		le.PutUint32(push[88+4*i:], word)
	}
	v := &l.plan.variant
	groups := [3]uint32{ceilDiv(uint32(s.Sq), v.tile.rows()), uint32(s.Hq), uint32(count) * v.slices()}
	return c.Dispatch(l.pipeline, buffers, push[:], groups)
}

// scaleLog2 is the scale in log2 units. Kernels multiply masked scores, which
// are -Inf, by it: 0 becomes a number too small to matter, so that they stay so.
func (c Config) scaleLog2() float32 {
	s := float64(c.ScaleValue()) * math.Log2E
	if tiny := math.Ldexp(1, -100); math.Abs(s) < tiny {
		return float32(math.Copysign(tiny, s))
	}
	return float32(s)
}

// logUnit is |scale| / |scaleLog2|, almost ln 2, as the sum of two float32: a
// kernel's maximum is in units of scaleLog2 as rounded, and LSE in those of scale.
func (c Config) logUnit() (high, low float32) {
	unit := math.Abs(float64(c.ScaleValue())) / math.Abs(float64(c.scaleLog2()))
	high = float32(unit)
	return high, float32(unit - float64(high))
}
