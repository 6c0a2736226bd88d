package shaders

import (
	"errors"
	"fmt"
)

// value is a constant: its scalars, each in the low bits of a word.
type value []uint64

// evaluator computes constants under one specialization. Each is computed
// once, so that the work is bounded by the module's size.
type evaluator struct {
	r     *Reflection
	spec  map[uint32]uint32
	known map[uint32]value
	open  map[uint32]bool // being computed: a cycle is an error

	layouts map[uint32]extent // likewise for the sizes of types
	sizing  map[uint32]bool
}

// extent is the size and alignment of a type.
type extent struct{ size, align uint64 }

func (r *Reflection) evaluator(constants map[uint32]uint32) *evaluator {
	return &evaluator{
		r: r, spec: constants, known: map[uint32]value{}, open: map[uint32]bool{},
		layouts: map[uint32]extent{}, sizing: map[uint32]bool{},
	}
}

var errConstant = errors.New("malformed constant")

// maxDepth bounds how deep constants and types nest; ours stay under 20.
const maxDepth = 256

// scalar computes a constant with one component.
func (e *evaluator) scalar(id uint32) (uint64, error) {
	v, err := e.value(id)
	if err != nil {
		return 0, err
	}
	if len(v) != 1 {
		return 0, fmt.Errorf("constant %d is no scalar", id)
	}
	return v[0], nil
}

func (e *evaluator) value(id uint32) (value, error) {
	if v, ok := e.known[id]; ok {
		return v, nil
	}
	i, ok := e.r.constants[id]
	if !ok {
		return nil, fmt.Errorf("%d is no constant", id)
	}
	if e.open[id] || len(e.open) > maxDepth {
		return nil, fmt.Errorf("constant %d depends on itself or nests too deep", id)
	}
	e.open[id] = true
	defer delete(e.open, id)
	v, err := e.compute(i)
	if err != nil {
		return nil, err
	}
	e.known[id] = v
	return v, nil
}

func (e *evaluator) compute(i instruction) (value, error) {
	o := i.operands
	typ, id := o[0], o[1]
	var specialized uint32
	specID, isSpecialized := e.r.decoration(id, decorationSpecID)
	if isSpecialized {
		specialized, isSpecialized = e.spec[specID]
	}
	switch i.op {
	case opConstantTrue, opSpecTrue, opConstantFalse, opSpecFalse:
		b := i.op == opConstantTrue || i.op == opSpecTrue
		if isSpecialized && (i.op == opSpecTrue || i.op == opSpecFalse) {
			b = specialized != 0
		}
		return truth(b), nil
	case opConstantNull:
		return value{0}, nil
	case opConstant, opSpecConstant:
		if isSpecialized && i.op == opSpecConstant {
			return e.wrap(typ, uint64(specialized))
		}
		v := uint64(o[2])
		if len(o) > 3 {
			v |= uint64(o[3]) << 32
		}
		return e.wrap(typ, v)
	case opConstantComp, opSpecComposite:
		var all value
		for _, part := range o[2:] {
			v, err := e.scalar(part) // vectors of scalars are all that sizes need
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		return all, nil
	case opSpecConstantOp:
		return e.operation(typ, o[2], o[3:])
	}
	return nil, errConstant
}

// width is the number of bits of an integer or boolean type.
func (e *evaluator) width(typ uint32) (uint, error) {
	switch t := e.r.types[typ]; t.op {
	case opTypeInt, opTypeFloat:
		if w := t.operands[1]; w >= 8 && w <= 64 {
			return uint(w), nil
		}
	case opTypeBool:
		return 1, nil
	}
	return 0, fmt.Errorf("type %d is no scalar", typ)
}

// wrap cuts v to the type's width.
func (e *evaluator) wrap(typ uint32, v uint64) (value, error) {
	w, err := e.width(typ)
	if err != nil {
		return nil, err
	}
	return value{v << (64 - w) >> (64 - w)}, nil
}

func truth(b bool) value {
	if b {
		return value{1}
	}
	return value{0}
}

// signed extends the sign of an operand, whose type is its constant's.
func (e *evaluator) signed(id uint32, v uint64) (int64, error) {
	w, err := e.width(e.r.constants[id].operands[0])
	if err != nil {
		return 0, err
	}
	return int64(v<<(64-w)) >> (64 - w), nil
}

// operation computes an OpSpecConstantOp.
func (e *evaluator) operation(typ, op uint32, operands []uint32) (value, error) {
	if op == 81 { // CompositeExtract of a vector: its second operand is a literal
		if len(operands) != 2 {
			return nil, errConstant
		}
		v, err := e.value(operands[0])
		if err != nil {
			return nil, err
		}
		if int64(operands[1]) >= int64(len(v)) {
			return nil, errConstant
		}
		return value{v[operands[1]]}, nil
	}
	if len(operands) == 0 || len(operands) > 3 {
		return nil, errConstant
	}
	var u [3]uint64
	var s [3]int64
	for n, id := range operands {
		v, err := e.scalar(id)
		if err != nil {
			return nil, err
		}
		u[n] = v
		if s[n], err = e.signed(id, v); err != nil {
			return nil, err
		}
	}
	switch len(operands) {
	case 1:
		switch op {
		case 113: // UConvert
			return e.wrap(typ, u[0])
		case 114: // SConvert
			return e.wrap(typ, uint64(s[0]))
		case 126: // SNegate
			return e.wrap(typ, -u[0])
		case 168: // LogicalNot
			return truth(u[0] == 0), nil
		case 200: // Not
			return e.wrap(typ, ^u[0])
		}
	case 2:
		return e.binary(typ, op, u[0], u[1], s[0], s[1])
	case 3:
		if op == 169 { // Select
			if u[0] != 0 {
				return e.wrap(typ, u[1])
			}
			return e.wrap(typ, u[2])
		}
	}
	return nil, fmt.Errorf("specialization operation %d of %d operands is not known", op, len(operands))
}

func (e *evaluator) binary(typ, op uint32, a, b uint64, sa, sb int64) (value, error) {
	switch op {
	case 128: // IAdd
		return e.wrap(typ, a+b)
	case 130: // ISub
		return e.wrap(typ, a-b)
	case 132: // IMul
		return e.wrap(typ, a*b)
	case 134, 135, 137, 138, 139: // UDiv, SDiv, UMod, SRem, SMod
		if b == 0 {
			return nil, errors.New("a specialization divides by zero")
		}
		switch op {
		case 134:
			return e.wrap(typ, a/b)
		case 135:
			return e.wrap(typ, uint64(sa/sb))
		case 137:
			return e.wrap(typ, a%b)
		case 138:
			return e.wrap(typ, uint64(sa%sb))
		}
		m := sa % sb
		if m != 0 && (m < 0) != (sb < 0) {
			m += sb
		}
		return e.wrap(typ, uint64(m))
	case 194: // ShiftRightLogical
		return e.wrap(typ, a>>b)
	case 195: // ShiftRightArithmetic
		return e.wrap(typ, uint64(sa>>b))
	case 196: // ShiftLeftLogical
		return e.wrap(typ, a<<b)
	case 197: // BitwiseOr
		return e.wrap(typ, a|b)
	case 198: // BitwiseXor
		return e.wrap(typ, a^b)
	case 199: // BitwiseAnd
		return e.wrap(typ, a&b)
	case 164, 170: // LogicalEqual, IEqual
		return truth(a == b), nil
	case 165, 171: // LogicalNotEqual, INotEqual
		return truth(a != b), nil
	case 166: // LogicalOr
		return truth(a|b != 0), nil
	case 167: // LogicalAnd
		return truth(a&b != 0), nil
	case 172: // UGreaterThan
		return truth(a > b), nil
	case 173: // SGreaterThan
		return truth(sa > sb), nil
	case 174: // UGreaterThanEqual
		return truth(a >= b), nil
	case 175: // SGreaterThanEqual
		return truth(sa >= sb), nil
	case 176: // ULessThan
		return truth(a < b), nil
	case 177: // SLessThan
		return truth(sa < sb), nil
	case 178: // ULessThanEqual
		return truth(a <= b), nil
	case 179: // SLessThanEqual
		return truth(sa <= sb), nil
	}
	return nil, fmt.Errorf("specialization operation %d is not known", op)
}
