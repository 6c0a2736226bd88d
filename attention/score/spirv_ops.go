package score

import (
	"math"
	"math/bits"
)

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
	case n.op == table || n.op == entry:
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

var intOps = map[*op]uint32{add: opIAdd, sub: opISub, mul: opIMul, neg: 126, bitAnd: opBitwiseAnd, bitOr: opBitwiseOr, xor: opBitwiseXor,
	bitNot: 200, eq: opIEqual, ne: opINotEqual, lt: opSLess, le: 179, toFloat: opConvertSToF}

// ints writes an operation on ints.
func (w *writer) ints(n *node, x, y uint32) uint32 {
	switch n.op {
	case div, mod:
		return w.divide(n, x, y)
	case shl, shr:
		return w.emit(map[*op]uint32{shl: 196, shr: opShiftRight}[n.op], TypeInt, x, w.emit(opBitwiseAnd, TypeInt, y, w.int(31)))
	case least: // no SMin: NVIDIA's compiler (580.159) takes min(min(a, -b), c) for min(min(a, b), c), but not of choices
		return w.emit(opSelect, TypeInt, w.emit(opSLess, TypeBool, x, y), x, y)
	case most:
		return w.emit(opSelect, TypeInt, w.emit(opSLess, TypeBool, y, x), x, y)
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
	c := n.args[1].node()
	if c.op == constant && int32(c.bits) > 0 {
		return w.divideBy(n, x, int32(c.bits))
	}
	if c.op != constant || int32(c.bits) == 0 || int32(c.bits) == -1 {
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

// divideBy is divide by a number above 0: masks of documents and chunks have it for every slot.
func (w *writer) divideBy(n *node, x uint32, by int32) uint32 {
	isMod := n.op == mod
	if by&(by-1) == 0 {
		if isMod {
			return w.emit(opBitwiseAnd, TypeInt, x, w.int(by-1))
		}
		return w.emit(opShiftRight, TypeInt, x, w.int(int32(bits.TrailingZeros32(uint32(by)))))
	}
	q := w.emit(opSDiv, TypeInt, x, w.int(by))
	natural := n.args[0].natural()
	if !isMod && natural {
		return q
	}
	rest := w.emit(opISub, TypeInt, x, w.emit(opIMul, TypeInt, q, w.int(by)))
	if natural {
		return rest
	}
	below := w.emit(opShiftRight, TypeInt, rest, w.int(31)) // -1 where the rest is below 0
	if isMod {
		return w.emit(opIAdd, TypeInt, rest, w.emit(opBitwiseAnd, TypeInt, below, w.int(by)))
	}
	return w.emit(opIAdd, TypeInt, q, below)
}

// natural reports whether an int is known to be 0 or more.
func (e Expr) natural() bool {
	switch e {
	case J, Row, Rows, Keys, B, Head, KVHead:
		return true
	}
	switch n := e.node(); n.op {
	case constant:
		return int32(n.bits) >= 0
	case div, mod, least, most, bitAnd, shr:
		return n.args[0].natural() && (n.op == shr || n.args[1].natural())
	}
	return false
}

var floatOps = map[*op]uint32{add: opFAdd, sub: opFSub, mul: opFMul, div: opFDiv, neg: 127, eq: 180, ne: 183, lt: opFOrdLess, le: 188}

// floats writes an operation on floats. Functions of GLSL.std.450 need not keep a NaN.
func (w *writer) floats(n *node, x, y uint32) uint32 {
	f := func(op uint32, operands ...uint32) uint32 { return w.emit(op, TypeFloat, operands...) }
	keep := func(y uint32) uint32 { return f(opSelect, w.isNaN(x), x, y) }
	switch n.op {
	case div:
		if r, ok := n.args[1].reciprocal(w.steps); ok {
			return f(opFMul, x, w.float(r))
		}
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
	case tanh: // 2 / (1 + exp(-2 |x|)) - 1 with the sign of x; near 0, where that cancels, a polynomial, which also keeps a NaN
		far := w.std(stdFma, TypeFloat, w.float(2), w.logistic(x), w.float(-1))
		sign := w.emit(opBitwiseAnd, TypeInt, w.emit(opBitcast, TypeInt, x), w.int(math.MinInt32))
		far = f(opBitcast, w.emit(opBitwiseOr, TypeInt, w.emit(opBitcast, TypeInt, far), sign))
		z := f(opFMul, x, x)
		near := w.std(stdFma, TypeFloat, f(opFMul, x, z), w.std(stdFma, TypeFloat, z, w.float(2.0/15), w.float(-1.0/3)), x)
		return f(opSelect, w.emit(opFUnordLess, TypeBool, w.std(stdFAbs, TypeFloat, x), w.float(0.1)), near, far)
	case sech2: // 4 e / (1 + e)², where e = exp(-2 |x|): what tanh has too, so that compilers compute it once for both
		r := w.logistic(x)
		return keep(f(opFMul, f(opFMul, w.float(4), w.decay(x)), f(opFMul, r, r)))
	}
	return w.emit(floatOps[n.op], n.typ, pair(n, x, y)...)
}

// decay is exp(-2 |x|), logistic 1 / (1 + exp(-2 |x|)).
func (w *writer) decay(x uint32) uint32 {
	return w.std(stdExp2, TypeFloat, w.emit(opFMul, TypeFloat, w.std(stdFAbs, TypeFloat, x), w.float(-2*math.Log2E)))
}
func (w *writer) logistic(x uint32) uint32 {
	return w.emit(opFDiv, TypeFloat, w.float(1), w.emit(opFAdd, TypeFloat, w.float(1), w.decay(x)))
}

// reciprocal is 1 / e if a product with it may be in place of a division by e, a constant: exactly for powers of two, and
// else to 1.5 units in the last place, where Vulkan lets a division be off by 2.5. With a step of a float behind it, such
// as a floor, the quotient of a multiple of e has to be exact, as devices divide.
func (e Expr) reciprocal(steps bool) (r float64, ok bool) {
	n := e.node()
	if n.op != constant {
		return 0, false
	}
	x := n.value()
	fraction, _ := math.Frexp(x)
	r = 1 / x
	normal := func(x float64) bool { return math.Abs(x) >= 0x1p-126 && math.Abs(x) <= 0x1p126 }
	return r, normal(x) && normal(r) && (!steps || math.Abs(fraction) == 0.5)
}

// hasSteps reports whether e has a floor, a sign or a comparison of floats.
func (e Expr) hasSteps() (yes bool) {
	e.walk(map[Expr]bool{}, func(x Expr, n *node) {
		switch n.op {
		case floor, sign, lt, le, eq, ne:
			yes = yes || n.args[0].Type() == TypeFloat
		}
	})
	return yes
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

// element reads a table, or returns the number of an entry. Indices are moved into their axes, so that none reaches beyond
// the table.
func (w *writer) element(n *node, indices []uint32) uint32 {
	var t tableVariable
	for _, x := range w.tables {
		if x.name == n.name {
			t = x
		}
	}
	load := func(base uint32, chain ...uint32) uint32 {
		at := w.id()
		w.body = append(w.body, words(opAccessChain, append([]uint32{w.pointerToInt(storageBuffer), at, base}, chain...)...)...)
		return w.emit(opLoad, TypeInt, at)
	}
	number := func(i int) uint32 { return w.emit(opLoad, TypeInt, w.tableNumber(t, i)) }
	at := w.int(0)
	for axis := range n.operands() {
		size := number(1 + int(n.bits) + axis)
		last := w.emit(opISub, TypeInt, size, w.int(1))
		index := w.std(stdSMax, TypeInt, w.std(stdSMin, TypeInt, indices[axis], last), w.int(0))
		at = w.emit(opIAdd, TypeInt, w.emit(opIMul, TypeInt, at, size), index)
	}
	if n.op == entry {
		return at
	}
	value := load(t.variable, w.int(0), w.emit(opIAdd, TypeInt, at, number(0)))
	if t.typ == TypeFloat {
		return w.emit(opBitcast, TypeFloat, value)
	}
	return value
}
