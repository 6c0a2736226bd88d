package score

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// A kernel's GLSL calls two functions that it leaves to modifiers:
//
//	float scoreExpr(s, b, h, hkv, i, j, row, sq, sk)
//	bool maskExpr(b, h, hkv, i, j, row, sq, sk)
//
// The compiler is told not to optimize, so the module has them and their calls. Rewrite finds each by its type, which no
// other function has, and writes an expression in place of its body.

// Modifiers are what Rewrite writes into a module: the body of scoreExpr, of maskExpr, or of both.
type Modifiers struct{ Score, Mask Expr }

// TablesOffset is where the module's parameters have, for each table in the order of TablesOf, the number of its first
// element in its binding and the sizes of its axes, as four int32.
type TableLayout struct {
	ParamsBinding, ParamsOffset uint32
	FirstBinding                uint32 // of the first table; the others follow
}

// Rewrite returns a module with modifiers in place of its own. A module without the functions, or without parameters for
// the tables that the expressions read, is an error.
func Rewrite(code []byte, m Modifiers, at TableLayout) ([]byte, error) {
	tables, err := TablesOf(m.Score, m.Mask)
	if err != nil {
		return nil, err
	}
	w := &writer{layout: at, ids: map[string]uint32{}}
	if err := w.read(code); err != nil {
		return nil, err
	}
	for i, t := range tables {
		if err := w.declareTable(t, i); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		e    Expr
		args []Expr
	}{{m.Score, []Expr{S, B, Head, KVHead, I, J, Row, Rows, Keys}}, {m.Mask, []Expr{B, Head, KVHead, I, J, Row, Rows, Keys}}} {
		if !f.e.Given() {
			continue
		}
		if err := w.function(f.e, f.args); err != nil {
			return nil, err
		}
	}
	return w.module(), nil
}

// Opcodes.
const (
	opExtInstImport   = 11
	opExtInst         = 12
	opEntryPoint      = 15
	opTypeBool        = 20
	opTypeInt         = 21
	opTypeFloat       = 22
	opTypeRuntime     = 29
	opTypeStruct      = 30
	opTypePointer     = 32
	opTypeFunction    = 33
	opConstant        = 43
	opFunction        = 54
	opFunctionParam   = 55
	opFunctionEnd     = 56
	opVariable        = 59
	opLoad            = 61
	opAccessChain     = 65
	opDecorate        = 71
	opMemberDecorate  = 72
	opConvertSToF     = 111
	opBitcast         = 124
	opFOrdLess        = 184
	opLogicalOr       = 166
	opLogicalAnd      = 167
	opLogicalNot      = 168
	opSelect          = 169
	opIEqual          = 170
	opINotEqual       = 171
	opSGreaterThan    = 173
	opSLess           = 177
	opBitwiseXor      = 198
	opBitwiseAnd      = 199
	opIAdd            = 128
	opISub            = 130
	opIMul            = 132
	opSDiv            = 135
	opFAdd            = 129
	opFSub            = 131
	opFMul            = 133
	opFDiv            = 136
	opLabel           = 248
	opReturnValue     = 254
	storageBuffer     = 12
	decorationBlock   = 2
	decorationStride  = 6
	decorationNoWrite = 24
	decorationBinding = 33
	decorationSet     = 34
	decorationOffset  = 35
	headerWords       = 5
	version14         = 0x00010400 // from which on an entry point lists all variables
)

// Instructions of GLSL.std.450.
const (
	stdFAbs, stdSAbs, stdSSign, stdFloor       = 4, 5, 7, 8
	stdSin, stdCos, stdExp, stdLog, stdSqrt    = 13, 14, 27, 28, 31
	stdSMin, stdSMax, stdFma, stdFMin, stdFMax = 39, 42, 50, 37, 40
)

// instruction is one of a module, with its opcode's word.
type instruction []uint32

func (i instruction) op() uint32 { return i[0] & 0xffff }

// writer reads a module and writes it again.
type writer struct {
	header               []uint32
	code                 []instruction
	firstType, firstFunc int               // instructions where those begin
	ids                  map[string]uint32 // of types, constants and imports, by what they are
	bindings             map[uint32]uint32 // of variables
	pointees             map[uint32]uint32
	offsets              map[[2]uint32]uint32 // struct and offset -> member
	variables            map[uint32]uint32    // to their pointer types
	decorations, globals []uint32
	layout               TableLayout
	tables               []tableVariable
	values               map[Expr]uint32 // of the function that is written
	body                 []uint32
}

type tableVariable struct {
	Table
	variable uint32
	number   int
}

var errModule = errors.New("score: not a SPIR-V module that can be rewritten")

func (w *writer) read(code []byte) error {
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if len(words) < headerWords || words[0] != 0x07230203 {
		return errModule
	}
	w.header, words = words[:headerWords], words[headerWords:]
	w.bindings, w.pointees, w.offsets, w.variables = map[uint32]uint32{}, map[uint32]uint32{}, map[[2]uint32]uint32{}, map[uint32]uint32{}
	for len(words) > 0 {
		n := int(words[0] >> 16)
		if n == 0 || n > len(words) {
			return errModule
		}
		w.code, words = append(w.code, words[:n:n]), words[n:]
	}
	for at, i := range w.code {
		switch op := i.op(); {
		case op == opFunction && w.firstFunc == 0:
			w.firstFunc = at
		case w.firstFunc != 0:
		case op == opExtInstImport && len(i) > 2:
			w.ids[literal(i[2:])] = i[1]
		case op >= opTypeBool-1 && op <= opTypeFunction && w.firstType == 0:
			w.firstType = at
		case op == opDecorate && len(i) > 3 && i[2] == decorationBinding:
			w.bindings[i[1]] = i[3]
		case op == opMemberDecorate && len(i) > 4 && i[3] == decorationOffset:
			w.offsets[[2]uint32{i[1], i[4]}] = i[2]
		case op == opVariable && len(i) > 3:
			w.variables[i[2]] = i[1]
		case op == opTypePointer && len(i) > 3:
			w.pointees[i[1]] = i[3]
		}
		if op := i.op(); w.firstFunc == 0 && len(i) > 1 && (op == opTypeBool || op == opTypeInt || op == opTypeFloat) {
			w.ids[fmt.Sprint(op, i[2:])] = i[1]
		}
	}
	if w.firstType == 0 || w.firstFunc == 0 {
		return errModule
	}
	return nil
}

// literal is a string in a module.
func literal(words []uint32) string {
	var b []byte
	for _, x := range words {
		for range 4 {
			if byte(x) == 0 {
				return string(b)
			}
			b = append(b, byte(x))
			x >>= 8
		}
	}
	return string(b)
}

// id returns a new id.
func (w *writer) id() uint32 {
	w.header[3]++
	return w.header[3] - 1
}

func words(op uint32, operands ...uint32) []uint32 {
	return append([]uint32{uint32(len(operands)+1)<<16 | op}, operands...)
}

// typeOf is the id of a type. A module may not declare one of these a second time.
func (w *writer) typeOf(t Type) uint32 {
	op, operands := map[Type]uint32{TypeFloat: opTypeFloat, TypeInt: opTypeInt, TypeBool: opTypeBool}[t],
		map[Type][]uint32{TypeFloat: {32}, TypeInt: {32, 1}, TypeBool: {}}[t]
	return w.once(fmt.Sprint(op, operands), func() uint32 {
		id := w.id()
		w.globals = append(w.globals, words(op, append([]uint32{id}, operands...)...)...)
		return id
	})
}

// once returns the id of what a key names, and makes it the first time.
func (w *writer) once(key string, declare func() uint32) uint32 {
	id, ok := w.ids[key]
	if !ok {
		id = declare()
		w.ids[key] = id
	}
	return id
}

// global declares a type, a constant or a variable without a type operand in front.
func (w *writer) global(key string, op uint32, operands ...uint32) uint32 {
	return w.once(key, func() uint32 {
		id := w.id()
		at := 0 // the result's place: in front, or behind the type
		if op == opConstant || op == opVariable {
			at = 1
		}
		list := append(append(append([]uint32{}, operands[:at]...), id), operands[at:]...)
		w.globals = append(w.globals, words(op, list...)...)
		return id
	})
}

func (w *writer) constant(t Type, bits uint32) uint32 {
	return w.global(fmt.Sprint("constant ", t, bits), opConstant, w.typeOf(t), bits)
}

func (w *writer) int(n int32) uint32     { return w.constant(TypeInt, uint32(n)) }
func (w *writer) float(x float64) uint32 { return w.constant(TypeFloat, math.Float32bits(float32(x))) }

// declareTable declares the buffer of a table.
func (w *writer) declareTable(t Table, number int) error {
	if _, _, ok := w.params(); !ok {
		return fmt.Errorf("score: the module has no parameters for table %s", t.name)
	}
	block := w.once("block", func() uint32 {
		array := w.global("array", opTypeRuntime, w.typeOf(TypeInt))
		id := w.global("struct", opTypeStruct, array)
		for _, d := range [][]uint32{words(opDecorate, array, decorationStride, 4), words(opDecorate, id, decorationBlock),
			words(opMemberDecorate, id, 0, decorationOffset, 0), words(opMemberDecorate, id, 0, decorationNoWrite)} {
			w.decorations = append(w.decorations, d...)
		}
		return id
	})
	pointer := w.global("pointer to a block", opTypePointer, storageBuffer, block)
	v := w.global(fmt.Sprint("table ", number), opVariable, pointer, storageBuffer)
	w.decorations = append(w.decorations, words(opDecorate, v, decorationSet, 0)...)
	w.decorations = append(w.decorations, words(opDecorate, v, decorationBinding, w.layout.FirstBinding+uint32(number))...)
	w.tables = append(w.tables, tableVariable{t, v, number})
	return nil
}

// params finds the variable of the parameters and their member with the sizes of tables.
func (w *writer) params() (variable, member uint32, ok bool) {
	for v, binding := range w.bindings {
		if binding == w.layout.ParamsBinding {
			member, ok = w.offsets[[2]uint32{w.pointees[w.variables[v]], w.layout.ParamsOffset}]
			return v, member, ok
		}
	}
	return 0, 0, false
}

// function replaces the body of the function with these parameters by an expression.
func (w *writer) function(e Expr, args []Expr) error {
	signature := []uint32{w.typeOf(e.Type())}
	for _, a := range args {
		signature = append(signature, w.typeOf(a.Type()))
	}
	var typ uint32
	for _, i := range w.code[:w.firstFunc] {
		if i.op() == opTypeFunction && slices.Equal(i[2:], signature) {
			typ = i[1]
		}
	}
	for at := w.firstFunc; at < len(w.code); at++ {
		if i := w.code[at]; i.op() != opFunction || len(i) != 5 || i[4] != typ {
			continue
		}
		w.values, w.body = map[Expr]uint32{}, words(opLabel, w.id())
		first := at + 1 + len(args)
		end := first + slices.IndexFunc(w.code[min(first, len(w.code)):], func(i instruction) bool { return i.op() == opFunctionEnd })
		if end < first {
			return errModule
		}
		for n, parameter := range w.code[at+1 : first] {
			if len(parameter) != 3 {
				return errModule
			}
			w.values[args[n]] = parameter[2]
		}
		result := w.write(e)
		w.body = append(w.body, words(opReturnValue, result)...)
		w.code = slices.Replace(w.code, first, end, w.body)
		return nil
	}
	return fmt.Errorf("score: the module has no function for %s", shorten(e.String()))
}

// module is the module as bytes.
func (w *writer) module() []byte {
	out := append([]uint32{}, w.header...)
	for at, i := range w.code {
		switch {
		case at == w.firstType:
			out = append(out, w.decorations...)
		case at == w.firstFunc:
			out = append(out, w.globals...)
		case len(i) > 0 && i.op() == opEntryPoint && w.header[1] >= version14:
			all := append([]uint32{}, i[1:]...)
			for _, t := range w.tables {
				all = append(all, t.variable)
			}
			i = words(opEntryPoint, all...)
		}
		out = append(out, i...)
	}
	code := make([]byte, 4*len(out))
	for i, x := range out {
		binary.LittleEndian.PutUint32(code[4*i:], x)
	}
	return code
}

// -- expressions ----------------------------------------------------------------------------------

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
		id = w.emit(opSelect, n.typ, x, y, args[2])
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
		return f(opSelect, w.emit(opLogicalOr, TypeBool, w.isNaN(x), w.emit(opFOrdLess, TypeBool, x, y)), x, y)
	case most:
		return f(opSelect, w.emit(opLogicalOr, TypeBool, w.isNaN(x), w.emit(opFOrdLess, TypeBool, y, x)), x, y)
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
		return keep(w.std(stdSin, TypeFloat, w.turn(x)))
	case cos:
		return keep(w.std(stdCos, TypeFloat, w.turn(x)))
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

// isNaN tests the bits: compilers may take x != x for false.
func (w *writer) isNaN(x uint32) uint32 {
	bits := w.emit(opBitwiseAnd, TypeInt, w.emit(opBitcast, TypeInt, x), w.int(math.MaxInt32))
	return w.emit(opSGreaterThan, TypeBool, bits, w.int(0x7f800000))
}

// turn moves an angle into [-pi, pi], where Vulkan bounds the error of sin and cos. 2 pi is a sum of two float32.
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
