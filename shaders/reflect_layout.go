package shaders

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

var errTooLarge = errors.New("a size overflows")

// SharedBytes is the workgroup (shared) memory the module takes when
// specialized with constants (spec id -> value; the others keep their
// defaults). Variables are counted one after another, each aligned to 16.
func (r *Reflection) SharedBytes(constants map[uint32]uint32) (uint64, error) {
	e := r.evaluator(constants)
	total := uint64(0)
	for _, v := range r.variables {
		if v.operands[2] != storageWorkgroup {
			continue
		}
		x, err := e.pointee(v.operands[0])
		if err != nil {
			return 0, err
		}
		total += roundUp(x.size, 16)
		if total > 1<<61 {
			return 0, errTooLarge
		}
	}
	return total, nil
}

// LocalSize is the workgroup size under the specialization.
func (r *Reflection) LocalSize(constants map[uint32]uint32) ([3]uint32, error) {
	e := r.evaluator(constants)
	var size [3]uint32
	ids := r.localSizeIDs
	for id, d := range r.decorations {
		if builtin := d[decorationBuiltIn]; len(builtin) == 1 && builtin[0] == builtInWorkgroupSize {
			v, err := e.value(id)
			if err != nil {
				return size, err
			}
			if len(v) != 3 {
				return size, errConstant
			}
			return [3]uint32{uint32(v[0]), uint32(v[1]), uint32(v[2])}, nil
		}
	}
	if len(ids) == 3 {
		for i, id := range ids {
			v, err := e.scalar(id)
			if err != nil {
				return size, err
			}
			size[i] = uint32(v)
		}
		return size, nil
	}
	if len(r.localSize) == 3 {
		return [3]uint32(r.localSize), nil
	}
	return size, errors.New("no workgroup size is declared")
}

// PushConstantBytes is the size of the push constant block, 0 if there is
// none or it cannot be read.
func (r *Reflection) PushConstantBytes() int {
	e := r.evaluator(nil)
	for _, v := range r.variables {
		if v.operands[2] != storagePushConstant {
			continue
		}
		x, err := e.pointee(v.operands[0])
		if err != nil || x.size > 1<<20 {
			return 0
		}
		return int(x.size)
	}
	return 0
}

// Member is where a member of a block lies, in bytes from its start.
type Member struct{ Offset, Size uint32 }

// PushConstants lists the members of the push constant block in their order, none
// if there is no block.
func (r *Reflection) PushConstants() ([]Member, error) {
	e := r.evaluator(nil)
	for _, v := range r.variables {
		if v.operands[2] != storagePushConstant {
			continue
		}
		pointer := r.types[v.operands[0]]
		if pointer.op != opTypePointer {
			return nil, fmt.Errorf("type %d is no pointer", v.operands[0])
		}
		block := r.types[pointer.operands[2]]
		if block.op != opTypeStruct {
			return nil, errors.New("the push constants are no block")
		}
		var list []Member
		for i, typ := range block.operands[1:] {
			x, err := e.layout(typ)
			offset := r.members[[2]uint32{block.operands[0], uint32(i)}][decorationOffset]
			if err != nil {
				return nil, fmt.Errorf("member %d of the push constants: %w", i, err)
			}
			if len(offset) != 1 || x.size > math.MaxUint32 {
				return nil, fmt.Errorf("member %d of the push constants has no offset, or no size", i)
			}
			list = append(list, Member{offset[0], uint32(x.size)})
		}
		return list, nil
	}
	return nil, nil
}

// pointee is the extent of what a pointer type points to.
func (e *evaluator) pointee(pointer uint32) (extent, error) {
	t := e.r.types[pointer]
	if t.op != opTypePointer {
		return extent{}, fmt.Errorf("type %d is no pointer", pointer)
	}
	return e.layout(t.operands[2])
}

// layout is the extent of a type: std430, or by the explicit offsets and
// strides where the module has them.
func (e *evaluator) layout(typ uint32) (extent, error) {
	if known, ok := e.layouts[typ]; ok {
		return known, nil
	}
	t, ok := e.r.types[typ]
	if !ok || e.sizing[typ] || len(e.sizing) > maxDepth {
		return extent{}, fmt.Errorf("type %d is missing, contains itself or nests too deep", typ)
	}
	e.sizing[typ] = true
	defer delete(e.sizing, typ)
	x, err := e.computeLayout(typ, t)
	if err == nil && (x.size > 1<<60 || x.align > 1<<20) {
		err = errTooLarge
	}
	if err != nil {
		return extent{}, err
	}
	e.layouts[typ] = x
	return x, nil
}

func (e *evaluator) computeLayout(typ uint32, t instruction) (extent, error) {
	o := t.operands
	switch t.op {
	case opTypeBool:
		return extent{4, 4}, nil
	case opTypeInt, opTypeFloat:
		if o[1] == 0 || o[1]%8 != 0 || o[1] > 64 {
			return extent{}, fmt.Errorf("type %d has %d bits", typ, o[1])
		}
		return extent{uint64(o[1] / 8), uint64(o[1] / 8)}, nil
	case opTypePointer:
		return extent{8, 8}, nil // a buffer device address
	case opTypeVector, opTypeMatrix:
		part, err := e.layout(o[1])
		if err != nil {
			return extent{}, err
		}
		n := uint64(o[2])
		if n < 2 || n > 4 {
			return extent{}, fmt.Errorf("type %d has %d components", typ, n)
		}
		if t.op == opTypeMatrix {
			return extent{n * roundUp(part.size, part.align), part.align}, nil
		}
		return extent{n * part.size, part.size * (n + n%2)}, nil // three align like four
	case opTypeArray:
		return e.arrayLayout(typ, o)
	case opTypeStruct:
		return e.structLayout(typ, o[1:])
	}
	return extent{}, fmt.Errorf("type %d (instruction %d) has no size", typ, t.op)
}

func (e *evaluator) arrayLayout(typ uint32, o []uint32) (extent, error) {
	part, err := e.layout(o[1])
	if err != nil {
		return extent{}, err
	}
	length, err := e.scalar(o[2])
	if err != nil {
		return extent{}, err
	}
	stride := roundUp(part.size, part.align)
	if explicit, ok := e.r.decoration(typ, decorationArrayStride); ok {
		stride = uint64(explicit)
	}
	high, size := bits.Mul64(length, stride)
	if high != 0 {
		return extent{}, errTooLarge
	}
	return extent{size, part.align}, nil
}

func (e *evaluator) structLayout(typ uint32, members []uint32) (extent, error) {
	all := extent{0, 1}
	_, isBlock := e.r.members[[2]uint32{typ, 0}][decorationOffset]
	for i, member := range members {
		part, err := e.layout(member)
		if err != nil {
			return extent{}, err
		}
		at := roundUp(all.size, part.align)
		if offset := e.r.members[[2]uint32{typ, uint32(i)}][decorationOffset]; len(offset) == 1 {
			at = uint64(offset[0])
		}
		if at > 1<<61 {
			return extent{}, errTooLarge
		}
		all.size = max(all.size, at+part.size)
		all.align = max(all.align, part.align)
	}
	if isBlock {
		return all, nil // a block ends with its last member
	}
	return extent{roundUp(all.size, all.align), all.align}, nil
}

// roundUp rounds size up to a multiple of align.
func roundUp(size, align uint64) uint64 {
	if align == 0 {
		return size
	}
	return (size + align - 1) / align * align
}
