package score

import "math"

// Expressions as instructions of SPIR-V: what an operation of ops.go is in a kernel.

// emit writes an instruction with a result.
func (w *writer) emit(op uint32, t Type, operands ...uint32) uint32 {
	typ, id := w.typeOf(t), w.id()
	w.body = append(w.body, words(op, append([]uint32{typ, id}, operands...)...)...)
	return id
}

// std writes an instruction of GLSL.std.450.
func (w *writer) std(which uint32, t Type, operands ...uint32) uint32 {
	return w.emit(opExtInst, t, append([]uint32{w.ids["GLSL.std.450"], which}, operands...)...)
}

// write returns the id of an expression's value. Each operation is written once, however often the expression has it.
func (w *writer) write(e Expr) uint32 {
	if id, done := w.values[e]; done {
		return id
	}
	n := e.node()
	var args [MaxRank]uint32
	for i, a := range n.operands() {
		args[i] = w.write(a)
	}
	var id uint32
	switch x, y := args[0], args[1]; {
	case n.op == constant:
		id = w.constant(n.typ, n.bits)
	case n.op == table:
		id = w.element(&n, args[:])
	case n.op == choose:
		id = w.emit(opSelect, n.typ, w.ordered(&n, x), y, args[2])
	case n.args[0].Type() == TypeBool:
		id = w.emit(map[*op]uint32{and: opLogicalAnd, or: opLogicalOr, not: opLogicalNot, eq: 164, ne: 165}[n.op], TypeBool, pair(&n, x, y)...)
	case n.args[0].Type() == TypeInt:
		id = w.ints(&n, x, y)
	default:
		id = w.floats(&n, x, y)
	}
	w.values[e] = id
	return id
}

// pair are the operands of an operation of one or two arguments.
func pair(n *node, x, y uint32) []uint32 { return []uint32{x, y}[:len(n.operands())] }

var intOps = map[*op]uint32{add: opIAdd, sub: opISub, mul: opIMul, neg: 126, bitAnd: opBitwiseAnd, bitOr: 197, xor: opBitwiseXor,
	bitNot: 200, eq: opIEqual, ne: opINotEqual, lt: opSLess, le: 179, toFloat: opConvertSToF}

// ints writes an operation on ints.
func (w *writer) ints(n *node, x, y uint32) uint32 {
	switch n.op {
	case div, mod:
		return w.divide(n, x, y)
	case shl, shr:
		return w.emit(map[*op]uint32{shl: 196, shr: 195}[n.op], TypeInt, x, w.emit(opBitwiseAnd, TypeInt, y, w.int(31)))
	case least:
		return w.std(stdSMin, TypeInt, x, y)
	case most:
		return w.std(stdSMax, TypeInt, x, y)
	case abs:
		return w.std(stdSAbs, TypeInt, x)
	case sign:
		return w.std(stdSSign, TypeInt, x)
	}
	return w.emit(intOps[n.op], n.typ, pair(n, x, y)...)
}

// divide writes x / y or x % y, rounded down, and 0 where y is 0. SPIR-V leaves a division by 0, and of -1 << 31 by -1,
// undefined: those divide by 1 in its place, which is right for the second.
func (w *writer) divide(n *node, x, y uint32) uint32 {
	by, isZero := y, uint32(0)
	if c := n.args[1].node(); c.op != constant || int32(c.bits) == 0 || int32(c.bits) == -1 {
		isZero = w.emit(opIEqual, TypeBool, y, w.int(0))
		isMinusOne := w.emit(opIEqual, TypeBool, y, w.int(-1))
		overflow := w.emit(opLogicalAnd, TypeBool, isMinusOne, w.emit(opIEqual, TypeBool, x, w.int(math.MinInt32)))
		by = w.emit(opSelect, TypeInt, w.emit(opLogicalOr, TypeBool, isZero, overflow), w.int(1), y)
	}
	q := w.emit(opSDiv, TypeInt, x, by)
	rest := w.emit(opISub, TypeInt, x, w.emit(opIMul, TypeInt, q, by))
	signs := w.emit(opSLess, TypeBool, w.emit(opBitwiseXor, TypeInt, rest, by), w.int(0))
	below := w.emit(opLogicalAnd, TypeBool, signs, w.emit(opINotEqual, TypeBool, rest, w.int(0)))
	result := w.emit(opSelect, TypeInt, below, w.emit(opISub, TypeInt, q, w.int(1)), q)
	if n.op == mod {
		result = w.emit(opSelect, TypeInt, below, w.emit(opIAdd, TypeInt, rest, by), rest)
	}
	if isZero != 0 {
		result = w.emit(opSelect, TypeInt, isZero, w.int(0), result)
	}
	return result
}

var floatOps = map[*op]uint32{add: opFAdd, sub: opFSub, mul: opFMul, div: opFDiv, neg: 127, eq: 180, ne: 183, lt: opFOrdLess, le: 188}

// floats writes an operation on floats. Functions of GLSL.std.450 need not keep a NaN.
func (w *writer) floats(n *node, x, y uint32) uint32 {
	f := func(op uint32, operands ...uint32) uint32 { return w.emit(op, TypeFloat, operands...) }
	keep := func(y uint32) uint32 { return f(opSelect, w.isNaN(x), x, y) }
	switch n.op {
	case least:
		return keep(f(opSelect, w.isNaN(y), y, w.std(stdFMin, TypeFloat, x, y)))
	case most:
		return keep(f(opSelect, w.isNaN(y), y, w.std(stdFMax, TypeFloat, x, y)))
	case abs:
		return w.std(stdFAbs, TypeFloat, x)
	case floor:
		return keep(w.std(stdFloor, TypeFloat, x))
	case sign:
		positive := f(opSelect, w.emit(opFOrdLess, TypeBool, w.float(0), x), w.float(1), x)
		return f(opSelect, w.emit(opFOrdLess, TypeBool, x, w.float(0)), w.float(-1), positive)
	case exp:
		return keep(w.std(stdExp, TypeFloat, x))
	case log:
		return keep(w.std(stdLog, TypeFloat, x))
	case sqrt:
		return keep(w.std(stdSqrt, TypeFloat, x))
	case sin:
		r := w.turn(x)
		a := w.std(stdFAbs, TypeFloat, r)
		y := w.wave(w.std(stdFMin, TypeFloat, a, f(opFSub, w.float(math.Pi), a)))
		return keep(f(opSelect, w.emit(opFOrdLess, TypeBool, r, w.float(0)), w.emit(127, TypeFloat, y), y))
	case cos:
		return keep(w.wave(f(opFSub, w.float(math.Pi/2), w.std(stdFAbs, TypeFloat, w.turn(x)))))
	case tanh: // 1 - 2 / (exp(2x) + 1), near 0 a polynomial, as that cancels there
		power := w.std(stdExp, TypeFloat, f(opFAdd, x, x))
		far := f(opFSub, w.float(1), f(opFDiv, w.float(2), f(opFAdd, power, w.float(1))))
		z := f(opFMul, x, x)
		tail := f(opFMul, z, f(opFSub, w.float(1.0/3), f(opFMul, z, w.float(2.0/15))))
		near := f(opFMul, x, f(opFSub, w.float(1), tail))
		return keep(f(opSelect, w.emit(opFOrdLess, TypeBool, w.std(stdFAbs, TypeFloat, x), w.float(0.05)), near, far))
	case sech2: // 4 e / (1 + e)², where e = exp(-2 |x|)
		e := w.std(stdExp, TypeFloat, f(opFMul, w.float(-2), w.std(stdFAbs, TypeFloat, x)))
		sum := f(opFAdd, w.float(1), e)
		return keep(f(opFDiv, f(opFMul, w.float(4), e), f(opFMul, sum, sum)))
	}
	return w.emit(floatOps[n.op], n.typ, pair(n, x, y)...)
}

// ordered returns the condition of a choice. NVIDIA's compiler takes a < b ? a : b for the least of both, which is not NaN
// where only one of them is. So a choice between what its condition compares also asks whether one is NaN.
func (w *writer) ordered(n *node, condition uint32) uint32 {
	c, negated := n.args[0].node(), false
	for c.op == not {
		c, negated = c.args[0].node(), !negated
	}
	a, b := c.args[0], c.args[1]
	compares := (c.op == lt || c.op == le) && a.Type() == TypeFloat
	if !compares || (n.args[1] != a || n.args[2] != b) && (n.args[1] != b || n.args[2] != a) {
		return condition
	}
	unordered := w.emit(opLogicalOr, TypeBool, w.isNaN(w.write(a)), w.isNaN(w.write(b)))
	if negated {
		return w.emit(opLogicalOr, TypeBool, unordered, condition)
	}
	return w.emit(opLogicalAnd, TypeBool, w.emit(opLogicalNot, TypeBool, unordered), condition)
}

// isNaN tests the bits: compilers may take x != x for false.
func (w *writer) isNaN(x uint32) uint32 {
	bits := w.emit(opBitwiseAnd, TypeInt, w.emit(opBitcast, TypeInt, x), w.int(math.MaxInt32))
	return w.emit(opSGreaterThan, TypeBool, bits, w.int(0x7f800000))
}

// wave is the sine of an angle in [-pi/2, pi/2] by its series. Vulkan lets the one of GLSL.std.450 be off by 2^-11, and
// SwiftShader's is off by 2^-12.
func (w *writer) wave(x uint32) uint32 {
	z := w.emit(opFMul, TypeFloat, x, x)
	y := w.float(-1.0 / 39916800)
	for _, c := range []float64{1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6} {
		y = w.std(stdFma, TypeFloat, y, z, w.float(c))
	}
	return w.std(stdFma, TypeFloat, w.emit(opFMul, TypeFloat, x, z), y, x)
}

// turn moves an angle into [-pi, pi]. 2 pi is a sum of two float32.
func (w *writer) turn(x uint32) uint32 {
	const high = 6.28125
	turns := w.std(stdFloor, TypeFloat, w.std(stdFma, TypeFloat, x, w.float(0.5/math.Pi), w.float(0.5)))
	turns = w.emit(127, TypeFloat, turns)
	return w.std(stdFma, TypeFloat, turns, w.float(2*math.Pi-high), w.std(stdFma, TypeFloat, turns, w.float(high), x))
}

// element reads a table. Indices are moved into their axes, so that none reaches beyond the table.
func (w *writer) element(n *node, indices []uint32) uint32 {
	var t tableVariable
	for _, x := range w.tables {
		if x.name == n.name {
			t = x
		}
	}
	pointer := w.global("pointer to an int", opTypePointer, storageBuffer, w.typeOf(TypeInt))
	load := func(base uint32, chain ...uint32) uint32 {
		at := w.id()
		w.body = append(w.body, words(opAccessChain, append([]uint32{pointer, at, base}, chain...)...)...)
		return w.emit(opLoad, TypeInt, at)
	}
	params, member, _ := w.params()
	number := func(i int) uint32 { return load(params, w.int(int32(member)), w.int(int32(t.number)), w.int(int32(i))) }
	at := w.int(0)
	for axis := range t.rank {
		size := number(1 + axis)
		last := w.emit(opISub, TypeInt, size, w.int(1))
		index := w.std(stdSMax, TypeInt, w.std(stdSMin, TypeInt, indices[axis], last), w.int(0))
		at = w.emit(opIAdd, TypeInt, w.emit(opIMul, TypeInt, at, size), index)
	}
	value := load(t.variable, w.int(0), w.emit(opIAdd, TypeInt, at, number(0)))
	if t.typ == TypeFloat {
		return w.emit(opBitcast, TypeFloat, value)
	}
	return value
}
