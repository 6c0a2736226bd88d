package score

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// A kernel's GLSL calls functions that it leaves to modifiers:
//
//	float scoreExpr(s, b, h, hkv, i, j, row, sq, sk)
//	bool maskExpr(b, h, hkv, i, j, row, sq, sk)
//	float slopeExpr(b, h, hkv, i, j, row, sq, sk, s)   the derivative of scoreExpr, in backward kernels alone
//
// and the kernel of tile maps in place of the first one
//
//	int tileExpr(b, h, hkv, i, j, row, sq, sk, hEnd, iEnd, jEnd, rowEnd, least0, most0, least1, most1, least2, most2, least3, most3)
//	int sideExpr(side, b, h, hkv, i, j, row, sq, sk)
//
// and the kernel of the gradients of tables also, where read numbers the places of a table in scoreExpr
//
//	int entryExpr(read, s, b, h, hkv, i, j, row, sq, sk)
//	float entrySlopeExpr(read, s, b, h, hkv, i, j, row, sq, sk)
//
// The compiler is told not to optimize, so the module has them and their calls. Rewrite finds each by its type, which no
// other function has, and writes an expression in place of its body.

// Modifiers are what Rewrite writes into a module: the body of scoreExpr, of maskExpr, or of both. A module with
// slopeExpr gets the derivative of Score. With Tiles the module is the kernel of tile maps: tileExpr and sideExpr become Mask.Tiles, and
// Score is not written, but its tables have their numbers. With Gradient the module is the kernel of the gradients of tables:
// entryExpr and entrySlopeExpr become the TableGradient of Score.
type Modifiers struct {
	Score, Mask Expr
	Tiles       bool
	Gradient    Table // the zero Table: none
}

// TableLayout is where the module's parameters have, for each table in the order of TablesOf, the number of its first
// element in its binding and the sizes of its axes, as four int32. A module without descriptors has no such parameters: it gets them
// as a buffer of their own (NumbersAlone), at offset 0.
type TableLayout struct {
	ParamsBinding, ParamsOffset uint32
	FirstBinding                uint32 // of the first table; the others follow
	NumbersAlone                bool
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
	if at.NumbersAlone && len(tables) > 0 { // also where no expression of this module reads a table: bindings are the same for all
		w.numbers()
	}
	slot := []Expr{B, Head, KVHead, I, J, Row, Rows, Keys}
	if m.Tiles && m.Mask.Given() {
		q, bounds := m.Mask.Tiles(), []Expr{headEnd, iEnd, jEnd, rowEnd}
		for i := range sideLeast {
			bounds = append(bounds, sideLeast[i], sideMost[i])
		}
		if err := w.function(q.Answer, slices.Concat(slot, bounds)); err != nil {
			return nil, err
		}
		if err := w.function(q.Side, slices.Concat([]Expr{read}, slot)); err != nil {
			return nil, err
		}
	}
	if m.Score.Given() && !m.Tiles {
		if err := w.function(m.Score, slices.Concat([]Expr{S}, slot)); err != nil {
			return nil, err
		}
		if err := w.function(m.Score.Diff(), slices.Concat(slot, []Expr{S})); err != nil && !errors.Is(err, errNoFunction) {
			return nil, err
		}
	}
	if m.Gradient != (Table{}) {
		g := m.Score.TableGradient(m.Gradient)
		for _, x := range []Expr{g.Entry, g.Slope} {
			if err := w.function(x, slices.Concat([]Expr{read, S}, slot)); err != nil {
				return nil, err
			}
		}
	}
	if m.Mask.Given() {
		if err := w.function(m.Mask, slot); err != nil {
			return nil, err
		}
	}
	return w.module()
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
	opStore           = 62
	opAccessChain     = 65
	opDecorate        = 71
	opMemberDecorate  = 72
	opConvertSToF     = 111
	opBitcast         = 124
	opFOrdLess        = 184
	opFUnordLess      = 185
	opLogicalOr       = 166
	opLogicalAnd      = 167
	opLogicalNot      = 168
	opSelect          = 169
	opIEqual          = 170
	opINotEqual       = 171
	opSGreaterThan    = 173
	opSLess           = 177
	opShiftRight      = 195 // keeps the sign
	opBitwiseOr       = 197
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
	private           = 6
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
	stdFAbs, stdSAbs, stdSSign, stdFloor = 4, 5, 7, 8
	stdExp, stdLog, stdExp2, stdSqrt     = 27, 28, 29, 31
	stdFMin, stdFMax, stdSMin, stdSMax   = 37, 40, 39, 42
	stdFma                               = 50
)

// writer reads a module and writes it again.
type writer struct {
	header               []uint32
	words                []uint32          // behind the header
	firstType, firstFunc int               // where those begin
	entryPoints          []int             // where they are
	ids                  map[string]uint32 // of types, constants and imports, by what they are
	functions            []instruction     // types of functions
	bindings             map[uint32]uint32 // of variables
	pointees             map[uint32]uint32
	offsets              map[[2]uint32]uint32 // struct and offset -> member
	variables            map[uint32]uint32    // to their pointer types
	decorations, globals []uint32
	layout               TableLayout
	tables               []tableVariable
	buffers              []uint32        // variables of tables, and of their numbers
	main                 []uint32        // what main does first
	variablesOfMain      []uint32        // that this sets
	values               map[Expr]uint32 // of the function that is written
	steps                bool            // it has a step of a float, see Expr.hasSteps
	body                 []uint32
	edits                []edit
}

// instruction is one of a module, with its opcode's word.
type instruction []uint32

func (i instruction) op() uint32 { return i[0] & 0xffff }

// edit puts words in place of those from at to end.
type edit struct {
	at, end int
	words   []uint32
}

type tableVariable struct {
	Table
	variable uint32
	number   int
}

var (
	errModule     = errors.New("score: not a SPIR-V module that can be rewritten")
	errNoFunction = errors.New("score: the module has no function")
)

func (w *writer) read(code []byte) error {
	all := make([]uint32, len(code)/4)
	for i := range all {
		all[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if len(all) < headerWords || all[0] != 0x07230203 {
		return errModule
	}
	w.header, w.words = all[:headerWords], all[headerWords:]
	w.bindings, w.pointees, w.offsets, w.variables = map[uint32]uint32{}, map[uint32]uint32{}, map[[2]uint32]uint32{}, map[uint32]uint32{}
	w.firstType, w.firstFunc = -1, -1
	for at := 0; at < len(w.words) && w.firstFunc < 0; {
		i := w.at(at)
		if i == nil {
			return errModule
		}
		w.declare(at, i)
		at += len(i)
	}
	if w.firstType < 0 || w.firstFunc < 0 {
		return errModule
	}
	return nil
}

// at is the instruction at a word, nil if there is none.
func (w *writer) at(at int) instruction {
	if at >= len(w.words) {
		return nil
	}
	n := int(w.words[at] >> 16)
	if n == 0 || at+n > len(w.words) {
		return nil
	}
	return w.words[at : at+n : at+n]
}

// declare takes note of an instruction in front of the functions.
func (w *writer) declare(at int, i instruction) {
	op := i.op()
	if w.firstType < 0 && op >= opTypeBool-1 && op <= opTypeFunction {
		w.firstType = at
	}
	switch {
	case op == opFunction:
		w.firstFunc = at
	case op == opEntryPoint && len(i) > 3:
		w.entryPoints = append(w.entryPoints, at)
	case op == opExtInstImport && len(i) > 2:
		w.ids[literal(i[2:])] = i[1]
	case op == opDecorate && len(i) > 3 && i[2] == decorationBinding:
		w.bindings[i[1]] = i[3]
	case op == opMemberDecorate && len(i) > 4 && i[3] == decorationOffset:
		w.offsets[[2]uint32{i[1], i[4]}] = i[2]
	case op == opVariable && len(i) > 3:
		w.variables[i[2]] = i[1]
	case op == opTypePointer && len(i) > 3:
		w.pointees[i[1]] = i[3]
	case op == opTypeFunction && len(i) > 2:
		w.functions = append(w.functions, i)
	case (op == opTypeBool || op == opTypeInt || op == opTypeFloat) && len(i) > 1:
		w.ids[fmt.Sprint(op, i[2:])] = i[1]
	}
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
	if _, _, ok := w.params(); !ok && !w.layout.NumbersAlone {
		return fmt.Errorf("score: the module has no parameters for table %s", t.name)
	}
	w.tables = append(w.tables, tableVariable{t, w.buffer(fmt.Sprint("table ", number), w.layout.FirstBinding+uint32(number)), number})
	return nil
}

// buffer declares a buffer of ints that nothing writes.
func (w *writer) buffer(name string, binding uint32) uint32 {
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
	return w.once(name, func() uint32 {
		v := w.id()
		w.globals = append(w.globals, words(opVariable, pointer, v, storageBuffer)...)
		w.decorations = append(w.decorations, words(opDecorate, v, decorationSet, 0)...)
		w.decorations = append(w.decorations, words(opDecorate, v, decorationBinding, binding)...)
		w.buffers = append(w.buffers, v)
		return v
	})
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

// tableNumber is a variable with a number of a table: its first element, or the size of an axis. main copies it from the parameters. In
// place it would be loaded for every slot that is asked: parameters are not readonly (shaders/interface.glsl), and an element waits for it.
func (w *writer) tableNumber(t tableVariable, i int) uint32 {
	return w.once(fmt.Sprint("number ", i, " of table ", t.number), func() uint32 {
		v := w.global(fmt.Sprint("number ", i, " of table ", t.number, " in main"), opVariable, w.pointerToInt(private), private)
		from, x := w.id(), w.id()
		chain := []uint32{w.pointerToInt(storageBuffer), from}
		if w.layout.NumbersAlone {
			chain = append(chain, w.numbers(), w.int(0), w.int(int32(4*t.number+i)))
		} else {
			params, member, _ := w.params()
			chain = append(chain, params, w.int(int32(member)), w.int(int32(t.number)), w.int(int32(i)))
		}
		w.main = slices.Concat(w.main, words(opAccessChain, chain...), words(opLoad, w.typeOf(TypeInt), x, from), words(opStore, v, x))
		w.variablesOfMain = append(w.variablesOfMain, v)
		return v
	})
}

// numbers is the buffer of the numbers of tables in a module whose parameters have none.
func (w *writer) numbers() uint32 { return w.buffer("numbers", w.layout.ParamsBinding) }

func (w *writer) pointerToInt(class uint32) uint32 {
	return w.global(fmt.Sprint("pointer to an int of ", class), opTypePointer, class, w.typeOf(TypeInt))
}

// startOf is the place behind the variables of a function.
func (w *writer) startOf(function uint32) (int, error) {
	inside := false
	for at := w.firstFunc; ; {
		i := w.at(at)
		switch {
		case i == nil:
			return 0, errModule
		case i.op() == opFunction:
			inside = len(i) > 2 && i[2] == function
		case inside && i.op() != opLabel && i.op() != opVariable:
			return at, nil
		}
		at += len(i)
	}
}

// function replaces the body of the function with these parameters by an expression.
func (w *writer) function(e Expr, args []Expr) error {
	signature := []uint32{w.typeOf(e.Type())}
	for _, a := range args {
		signature = append(signature, w.typeOf(a.Type()))
	}
	var typ uint32
	for _, i := range w.functions {
		if slices.Equal(i[2:], signature) {
			typ = i[1]
		}
	}
	for at := w.firstFunc; ; {
		i := w.at(at)
		if i == nil {
			return fmt.Errorf("%w for %s", errNoFunction, shorten(e.String()))
		}
		if at += len(i); i.op() == opFunction && len(i) == 5 && i[4] == typ {
			return w.replace(at, e, args)
		}
	}
}

// replace replaces the body of the function whose parameters begin at a word.
func (w *writer) replace(at int, e Expr, args []Expr) error {
	w.values, w.steps, w.body = map[Expr]uint32{}, e.hasSteps(), words(opLabel, w.id())
	for _, a := range args {
		i := w.at(at)
		if len(i) != 3 {
			return errModule
		}
		w.values[a] = i[2]
		at += len(i)
	}
	end := at
	for i := w.at(end); ; i = w.at(end) {
		if i == nil {
			return errModule
		}
		if i.op() == opFunctionEnd {
			break
		}
		end += len(i)
	}
	result := w.write(e)
	w.edits = append(w.edits, edit{at, end, append(w.body, words(opReturnValue, result)...)})
	return nil
}

// module is the module as bytes.
func (w *writer) module() ([]byte, error) {
	edits := append(w.edits, edit{w.firstType, w.firstType, w.decorations}, edit{w.firstFunc, w.firstFunc, w.globals})
	for _, at := range w.entryPoints {
		i := w.at(at)
		if len(w.main) > 0 {
			start, err := w.startOf(i[2])
			if err != nil {
				return nil, err
			}
			edits = append(edits, edit{start, start, w.main})
		}
		if w.header[1] >= version14 && len(w.tables) > 0 {
			edits = append(edits, edit{at, at + len(i), words(opEntryPoint, slices.Concat(i[1:], w.variablesOfMain, w.buffers)...)})
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	out, at := slices.Clone(w.header), 0
	for _, e := range edits {
		out = append(append(out, w.words[at:e.at]...), e.words...)
		at = e.end
	}
	out = append(out, w.words[at:]...)
	code := make([]byte, 4*len(out))
	for i, x := range out {
		binary.LittleEndian.PutUint32(code[4*i:], x)
	}
	return code, nil
}
