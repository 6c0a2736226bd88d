package attention

import (
	"errors"
	"fmt"
	"math"

	"vkattn/vk"
)

// pushBytes is the size of the push constant block of shaders/interface.glsl.
const pushBytes = 120

// record checks the arguments and puts the dispatches into c. It is what every
// call pays on the host: it allocates nothing once the request is known.
// s is the stream that c belongs to; nil for a command buffer.
func (op *Op) record(c *vk.Commands, s *vk.Stream, a *Args) error {
	var l layouts
	if err := op.check(&l, a); err != nil {
		return err
	}
	all := l.all()
	r := op.request(&l, a)
	if s == nil && op.cfg.mayCUDA() {
		r.bar = cudaRecords
	}
	if r.access == AccessAddresses {
		for i := range all {
			if all[i].tensor.Buffer.Address() == 0 {
				return fmt.Errorf("%w: the buffer of %s has no device address, and Access asks for addresses",
					ErrUnsupported, all[i].field)
			}
		}
	}
	p, err := op.prepare(r)
	if err != nil {
		return err
	}
	if p.cuda != nil {
		return op.forwardCUDA(p.cuda, s, a, all)
	}
	if p.options.any() {
		err := op.recordGeneral(c, p, r.access, a, all)
		if errors.Is(err, errNeedsCombine) { // nothing was recorded
			r.separateCombine = true
			if p, err = op.prepare(r); err == nil {
				err = op.recordGeneral(c, p, r.access, a, all)
			}
		}
		return err
	}
	work := launch{op: op, prepared: p, args: a, tensors: all}
	chunk, err := work.batchesAtOnce()
	if err != nil {
		return err
	}
	if r.access == AccessDescriptors && chunk < a.B {
		if err := c.Reserve((a.B+chunk-1)/chunk, len(work.tensors)); err != nil {
			return err
		}
	}
	for first := 0; first < a.B; first += chunk {
		if err := work.dispatch(c, first, min(chunk, a.B-first)); err != nil {
			return err
		}
	}
	return nil
}

// launch is one Forward on its way to dispatches.
type launch struct {
	*prepared
	op      *Op
	args    *Args
	tensors []layout // Q, K, V, O and, when asked for, LSE
}

// extent is the number of elements of one batch, from its first to past its last.
func (l *layout) extent() uint64 {
	return uint64((l.counts[1]-1)*l.steps[1] + (l.counts[2]-1)*l.steps[2] + l.dim)
}

// batchesAtOnce is how many batches one dispatch may cover: the grid's z, the
// 32 bits of a stride and the range of a descriptor bound it.
func (l *launch) batchesAtOnce() (int, error) {
	limits := &l.op.dev.Caps().Limits
	most := min(uint64(l.args.B), uint64(limits.MaxWorkGroupCount[2])/uint64(l.slices))
	for i := range l.tensors {
		t := &l.tensors[i]
		if lse := i > firstOutput; !lse { // LSE is packed, and the kernel knows how
			if t.steps[1] > math.MaxUint32 || t.steps[2] > math.MaxUint32 {
				return 0, fmt.Errorf("%w: %s has a head or row stride of 2^32 elements or more", ErrUnsupported, t.field)
			}
			if uint64(t.steps[2])*uint64(l.rowReach) > math.MaxUint32 {
				return 0, fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them",
					ErrUnsupported, t.field, t.steps[2])
			}
		}
		if t.steps[0] > math.MaxUint32 {
			most = 1
		}
		if l.access == AccessAddresses {
			continue
		}
		extent, size, step := t.extent(), uint64(t.size), uint64(t.steps[0])
		span := limits.MaxStorageBufferRange - min(limits.MaxStorageBufferRange, limits.MinStorageBufferOffsetAlignment)
		if extent*size > span {
			return 0, fmt.Errorf("%w: one batch of %s spans %d bytes, a descriptor reaches %d; buffers with device addresses have no such limit",
				ErrUnsupported, t.field, extent*size, span)
		}
		if step > 0 && most > 1 {
			most = min(most, 1+(span/size-extent)/step)
		}
	}
	return int(max(most, 1)), nil
}

// rowReach bounds the rows, counted from a slice's first one, that a kernel
// addresses with 32-bit offsets.
func (v *variant) rowReach() uint32 { return max(v.tile.rows(), v.tile.keys()) + 1 }

// dispatch records batches [first, first+count).
func (l *launch) dispatch(c *vk.Commands, first, count int) error {
	var push denseParams
	var bound [5]vk.BufferRange
	var held [5]vk.Resource
	align := l.op.dev.Caps().Limits.MinStorageBufferOffsetAlignment
	for i := range l.tensors {
		t := &l.tensors[i]
		b, size := t.tensor.Buffer, uint64(t.size)
		held[i] = b
		at := (uint64(t.tensor.Offset) + uint64(first)*uint64(t.steps[0])) * size
		if l.access == AccessAddresses {
			push.addr[i] = b.Address() + at
		} else {
			// The descriptor starts at a multiple of the device's alignment; the kernel adds the rest.
			start := max((b.Offset()+at)/align*align, b.Offset())
			rest := b.Offset() + at - start
			push.addr[i] = rest / size
			length := rest + (uint64(count-1)*uint64(t.steps[0])+t.extent())*size
			// Kernels read whole 32-bit words; a buffer may end in the middle of one.
			offset := start - b.Offset()
			bound[i] = vk.BufferRange{Buffer: b, Offset: offset, Size: min((length+3)&^3, b.Size()-offset)}
		}
		if i <= firstOutput {
			for d, stride := range t.steps {
				if d == 0 && count == 1 {
					stride = 0
				}
				push.stride[i][d] = uint32(stride)
			}
		}
	}
	s := &l.args.Shape
	push.Sq, push.Sk, push.Hq, push.groupSize = uint32(s.Sq), uint32(s.Sk), uint32(s.Hq), uint32(s.Group())
	if l.op.cfg.Causal == BottomRight {
		push.causalOffset = int32(s.Sk - s.Sq)
	}
	f := &l.op.factors.products
	push.scoreScale, push.unitHigh, push.unitLow = f.scale, f.unitHigh, f.unitLow
	groups := [3]uint32{ceilDiv(uint32(s.Sq), l.rows), uint32(s.Hq), uint32(count) * l.slices}
	if l.access == AccessAddresses {
		return c.Dispatch(l.pipeline, nil, paramBytes(&push, pushBytes), groups, held[:len(l.tensors)]...)
	}
	if len(l.tensors) < len(bound) {
		// LSE is not written; its binding must still name a buffer.
		o := l.tensors[firstOutput].tensor.Buffer
		bound[len(l.tensors)] = vk.BufferRange{Buffer: o, Size: min(o.Size(), 4)}
	}
	return c.Dispatch(l.pipeline, bound[:], paramBytes(&push, pushBytes), groups)
}

// factors are the numbers of a Config that kernels take: what turns products into scores, and
// scores into natural exponents.
type factors struct{ scale, unitHigh, unitLow float32 }

// scoreFactors are those of each kind of kernel.
type scoreFactors struct {
	products factors // scores are scaled products, as exponents of two
	natural  factors // scores have a bias or ALiBi and are natural exponents
}

func (c Config) factors() scoreFactors {
	var f scoreFactors
	high, low := c.logUnit()
	f.products = factors{c.scaleLog2(), high, low}
	f.natural = factors{c.ScaleValue(), 1, 0}
	return f
}

// of is those of a kernel with the options f.
func (s *scoreFactors) of(f options) factors {
	if f.natural() {
		return s.natural
	}
	return s.products
}

// leastScaleLog2 is the least |scaleLog2|.
const leastScaleLog2 = 0x1p-100

// scaleLog2 is the scale in log2 units. Kernels multiply masked scores, which
// are -Inf, by it: 0 becomes a number too small to matter, so that they stay so.
func (c Config) scaleLog2() float32 {
	s := float64(c.ScaleValue()) * math.Log2E
	if math.Abs(s) < leastScaleLog2 {
		return float32(math.Copysign(leastScaleLog2, s))
	}
	return float32(s)
}

// logUnit is |scale| / |scaleLog2|, almost ln 2, as the sum of two float32: a
// kernel's row max is in units of scaleLog2 as rounded, and LSE in those of scale.
// Where scaleLog2 stands for a smaller scale it is ln 2: the row max may have the exponents
// of scales of V in it.
func (c Config) logUnit() (high, low float32) {
	unit := math.Abs(float64(c.ScaleValue())) / math.Abs(float64(c.scaleLog2()))
	if math.Abs(float64(c.scaleLog2())) == leastScaleLog2 {
		unit = math.Ln2
	}
	high = float32(unit)
	return high, float32(unit - float64(high))
}
