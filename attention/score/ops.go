package score

import (
	"math"
	"slices"
)

// op is an operation: its text, value, derivative and bounds. A new operation is a row here, a function below and, if it
// is none of GLSL.std.450, a case of spirv.go.
type op struct {
	text  string // of a function or an operator
	level int    // how tightly an operator binds; 0: a function
	// The value of one argument (y is 0) or two. Bools are 0 and 1, and ints are exact in a float64. n has the value of
	// ints where f has not.
	f func(x, y float64) float64
	n func(x, y int32) int32
	// The derivative from those of the arguments; nil: 0.
	diff func(e Expr, d []Expr) Expr
	// The range of values from those of the arguments; nil: it follows from the values at their ends, as the operation
	// is monotonic in each argument.
	bounds func(n *node, x, y Interval) Interval
}

// Levels of operators, as in C.
const (
	levelSelect = 1 + iota
	levelOr
	levelAnd
	levelBitOr
	levelXor
	levelBitAnd
	levelEqual
	levelLess
	levelShift
	levelAdd
	levelMul
	levelUnary
)

// Nodes that are no operations.
var (
	failure  = &op{text: "error"}
	constant = &op{text: "constant"}
	variable = &op{text: "variable"}
	table    = &op{text: "table"}
	entry    = &op{text: "entry"} // the number of an element of a table, see TableGradient
)

var (
	choose = &op{text: "?:", level: levelSelect}
	or     = &op{text: "||", level: levelOr, f: math.Max}
	and    = &op{text: "&&", level: levelAnd, f: math.Min}
	bitOr  = &op{text: "|", level: levelBitOr, n: func(x, y int32) int32 { return x | y }, bounds: bitBounds}
	xor    = &op{text: "^", level: levelXor, n: func(x, y int32) int32 { return x ^ y }, bounds: bitBounds}
	bitAnd = &op{text: "&", level: levelBitAnd, n: func(x, y int32) int32 { return x & y }, bounds: bitBounds}
	eq     = &op{text: "==", level: levelEqual, f: func(x, y float64) float64 { return truth(x == y) }, bounds: equalBounds}
	ne     = &op{text: "!=", level: levelEqual, f: func(x, y float64) float64 { return truth(x != y) }, bounds: unequalBounds}
	lt     = &op{text: "<", level: levelLess, f: func(x, y float64) float64 { return truth(x < y) }, bounds: lessBounds}
	le     = &op{text: "<=", level: levelLess, f: func(x, y float64) float64 { return truth(x <= y) }, bounds: lessBounds}
	shl    = &op{text: "<<", level: levelShift, n: func(x, y int32) int32 { return x << (y & 31) }, bounds: shiftBounds}
	shr    = &op{text: ">>", level: levelShift, n: func(x, y int32) int32 { return x >> (y & 31) }, bounds: shiftBounds}
	add    = &op{text: "+", level: levelAdd, f: func(x, y float64) float64 { return x + y }, n: func(x, y int32) int32 { return x + y }}
	sub    = &op{text: "-", level: levelAdd, f: func(x, y float64) float64 { return x - y }, n: func(x, y int32) int32 { return x - y }}
	mul    = &op{text: "*", level: levelMul, f: func(x, y float64) float64 { return x * y }, n: func(x, y int32) int32 { return x * y }, bounds: mulBounds}
	div    = &op{text: "/", level: levelMul, f: func(x, y float64) float64 { return x / y }, n: floorDiv, bounds: divBounds}
	mod    = &op{text: "%", level: levelMul, n: floorMod, bounds: modBounds}
	neg    = &op{text: "-", level: levelUnary, f: func(x, _ float64) float64 { return -x }, n: func(x, _ int32) int32 { return -x }}
	not    = &op{text: "!", level: levelUnary, f: func(x, _ float64) float64 { return 1 - x }}
	bitNot = &op{text: "~", level: levelUnary, n: func(x, _ int32) int32 { return ^x }}

	least   = &op{text: "min", f: func(x, y float64) float64 { return pick(x < y, x, y) }}
	most    = &op{text: "max", f: func(x, y float64) float64 { return pick(x > y, x, y) }}
	abs     = &op{text: "abs", f: func(x, _ float64) float64 { return math.Abs(x) }, n: func(x, _ int32) int32 { return max(x, -x) | x&math.MinInt32&-x }, bounds: absBounds}
	exp     = &op{text: "exp", f: func(x, _ float64) float64 { return math.Exp(x) }}
	log     = &op{text: "log", f: func(x, _ float64) float64 { return math.Log(x) }, bounds: fromZero}
	tanh    = &op{text: "tanh", f: func(x, _ float64) float64 { return math.Tanh(x) }}
	sin     = &op{text: "sin", f: func(x, _ float64) float64 { return math.Sin(x) }, bounds: waveBounds}
	cos     = &op{text: "cos", f: func(x, _ float64) float64 { return math.Cos(x) }, bounds: waveBounds}
	sqrt    = &op{text: "sqrt", f: func(x, _ float64) float64 { return math.Sqrt(x) }, bounds: fromZero}
	floor   = &op{text: "floor", f: func(x, _ float64) float64 { return math.Floor(x) }}
	toFloat = &op{text: "float", f: func(x, _ float64) float64 { return x }}
	sign    = &op{text: "sign", f: func(x, _ float64) float64 {
		if x == 0 || math.IsNaN(x) {
			return x
		}
		return math.Copysign(1, x)
	}}
	// sech2 is 1 - tanh², which derivatives have, without the cancellation of that form.
	sech2 = &op{text: "sech2", bounds: sech2Bounds, f: func(x, _ float64) float64 {
		cosh := math.Cosh(x) // Inf for large x
		return 1 / (cosh * cosh)
	}}
)

// functions are the names of operations with one argument, or two.
var functions = map[string]func(args ...Expr) Expr{}

func init() { // derivatives and functions name operations
	for _, o := range []*op{exp, log, tanh, sin, cos, sqrt, floor, sech2} {
		functions[o.text] = func(x ...Expr) Expr { return numeric(o, true, x...) }
	}
	for _, o := range []*op{least, most, abs, sign} {
		functions[o.text] = func(x ...Expr) Expr { return numeric(o, false, x...) }
	}
	functions["float"] = func(x ...Expr) Expr { return Float(x[0]) }

	add.diff = func(_ Expr, d []Expr) Expr { return plus(d[0], d[1]) }
	sub.diff = func(_ Expr, d []Expr) Expr { return minus(d[0], d[1]) }
	mul.diff = func(e Expr, d []Expr) Expr { return plus(times(d[0], e.arg(1)), times(e.arg(0), d[1])) }
	div.diff = func(e Expr, d []Expr) Expr {
		return minus(over(d[0], e.arg(1)), over(times(e, d[1]), e.arg(1)))
	}
	neg.diff = func(_ Expr, d []Expr) Expr { return minus(zero, d[0]) }
	choose.diff = func(e Expr, d []Expr) Expr { return Select(e.arg(0), d[1], d[2]) }
	least.diff = func(e Expr, d []Expr) Expr { return Select(Lt(e.arg(0), e.arg(1)), d[0], d[1]) }
	most.diff = func(e Expr, d []Expr) Expr { return Select(Lt(e.arg(1), e.arg(0)), d[0], d[1]) }
	abs.diff = func(e Expr, d []Expr) Expr { return times(Sign(e.arg(0)), d[0]) }
	exp.diff = func(e Expr, d []Expr) Expr { return times(e, d[0]) }
	log.diff = func(e Expr, d []Expr) Expr { return over(d[0], e.arg(0)) }
	sin.diff = func(e Expr, d []Expr) Expr { return times(Cos(e.arg(0)), d[0]) }
	cos.diff = func(e Expr, d []Expr) Expr { return minus(zero, times(Sin(e.arg(0)), d[0])) }
	sqrt.diff = func(e Expr, d []Expr) Expr { return over(d[0], Mul(Num(2), e)) }
	tanh.diff = func(e Expr, d []Expr) Expr { return times(numeric(sech2, true, e.arg(0)), d[0]) }
	sech2.diff = func(e Expr, d []Expr) Expr { return times(Mul(Num(-2), Mul(e, Tanh(e.arg(0)))), d[0]) }
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// pick is x if yes, else y; NaN if one of them is.
func pick(yes bool, x, y float64) float64 {
	if yes || math.IsNaN(x) {
		return x
	}
	return y
}

func floorDiv(x, y int32) int32 {
	switch {
	case y == 0:
		return 0
	case y == -1:
		return -x // -1 << 31 wraps
	}
	q := x / y
	if x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q
}

func floorMod(x, y int32) int32 {
	if y == 0 {
		return 0
	}
	return x - floorDiv(x, y)*y
}

// Add is x + y, Sub x - y, Mul x * y and Div x / y of numbers. Mod is the modulo of ints. Neg is -x.
func Add(x, y Expr) Expr { return numeric(add, false, x, y) }
func Sub(x, y Expr) Expr { return numeric(sub, false, x, y) }
func Mul(x, y Expr) Expr { return numeric(mul, false, x, y) }
func Div(x, y Expr) Expr { return numeric(div, false, x, y) }
func Mod(x, y Expr) Expr { return exactly(mod, TypeInt, x, y) }
func Neg(x Expr) Expr {
	if n := x.node(); n.op == constant && n.typ == TypeFloat {
		return Num(-n.value())
	} else if n.op == constant {
		return Int(int(-int32(n.bits)))
	}
	return numeric(neg, false, x)
}

// And is x && y of bools, and the bits that both have of ints.
func And(x, y Expr) Expr { return logic(and, bitAnd, x, y) }

// Or is x || y of bools, and the bits that one of them has of ints.
func Or(x, y Expr) Expr { return logic(or, bitOr, x, y) }

// Not is !x of a bool, and the other bits of an int.
func Not(x Expr) Expr { return logic(not, bitNot, x) }

func logic(bools, ints *op, args ...Expr) Expr {
	if args[0].Type() == TypeInt {
		return exactly(ints, TypeInt, args...)
	}
	return exactly(bools, TypeBool, args...)
}

// Xor has the bits that one of two ints has. Shl and Shr shift the bits of x.
func Xor(x, y Expr) Expr { return exactly(xor, TypeInt, x, y) }
func Shl(x, n Expr) Expr { return exactly(shl, TypeInt, x, n) }
func Shr(x, n Expr) Expr { return exactly(shr, TypeInt, x, n) }

// Eq and Ne compare numbers, or bools. Lt, Le, Gt and Ge compare numbers.
func Eq(x, y Expr) Expr { return equal(eq, x, y) }
func Ne(x, y Expr) Expr { return equal(ne, x, y) }
func Lt(x, y Expr) Expr { return numeric(lt, false, x, y) }
func Le(x, y Expr) Expr { return numeric(le, false, x, y) }
func Gt(x, y Expr) Expr { return numeric(lt, false, y, x) }
func Ge(x, y Expr) Expr { return numeric(le, false, y, x) }

func equal(o *op, x, y Expr) Expr {
	if x.Type() == TypeBool && y.Type() == TypeBool {
		return of(o, TypeBool, x, y)
	}
	return numeric(o, false, x, y)
}

// Select is x where c holds, else y.
func Select(c, x, y Expr) Expr {
	if e, bad := failed(c, x, y); bad {
		return e
	}
	if x.Type() != y.Type() && x.Type() != TypeBool && y.Type() != TypeBool {
		x, y = Float(x), Float(y)
	}
	if c.Type() != TypeBool || x.Type() != y.Type() {
		return refuse(choose, "a bool and two of one type", c, x, y)
	}
	return of(choose, x.Type(), c, x, y)
}

// Min, Max and Abs are of numbers.
func Min(x, y Expr) Expr { return numeric(least, false, x, y) }
func Max(x, y Expr) Expr { return numeric(most, false, x, y) }
func Abs(x Expr) Expr    { return numeric(abs, false, x) }

// Clamp moves x into [low, high].
func Clamp(x, low, high Expr) Expr { return Min(Max(x, low), high) }

// Sign is -1, 0 or 1.
func Sign(x Expr) Expr { return numeric(sign, false, x) }

// Exp, Log, Tanh, Sin, Cos, Sqrt and Floor are floats. Devices lose digits of Sin and Cos of angles beyond 10^4.
func Exp(x Expr) Expr   { return numeric(exp, true, x) }
func Log(x Expr) Expr   { return numeric(log, true, x) }
func Tanh(x Expr) Expr  { return numeric(tanh, true, x) }
func Sin(x Expr) Expr   { return numeric(sin, true, x) }
func Cos(x Expr) Expr   { return numeric(cos, true, x) }
func Sqrt(x Expr) Expr  { return numeric(sqrt, true, x) }
func Floor(x Expr) Expr { return numeric(floor, true, x) }

// Float is the float next to an int, and a float itself.
func Float(x Expr) Expr {
	switch n := x.node(); {
	case n.op == failure || n.typ == TypeFloat:
		return x
	case n.typ == TypeBool:
		return refuse(toFloat, "numbers", x)
	case n.op == constant:
		return Num(n.value())
	}
	return of(toFloat, TypeFloat, x)
}

// -- derivatives ----------------------------------------------------------------------------------

var zero, one = Num(0), Num(1)

func (e Expr) arg(i int) Expr { return e.node().args[i] }

// Diff is the derivative of a float with respect to S, at S. Where e is not differentiable, it is that of one side; the
// derivative of a floor, a comparison and an int is 0.
func (e Expr) Diff() Expr { return e.diffAt(S) }

// diffAt is the derivative with respect to S or to an element of a table.
func (e Expr) diffAt(x Expr) Expr { return differ{x: one}.of(e) }

// Steps are the operations of e that make steps of S and of the elements of tables: a floor, a sign or a comparison of one. Diff
// and TableGradient take their derivatives for 0, which they are not at a step.
func (e Expr) Steps(tables ...Table) (names []string) {
	moves := map[Expr]bool{} // with S or an element
	e.walk(map[Expr]bool{}, func(x Expr, n *node) {
		is := x == S || n.op == table && slices.ContainsFunc(tables, func(t Table) bool { return t.name == n.name })
		moves[x] = is || slices.ContainsFunc(n.operands(), func(a Expr) bool { return moves[a] })
		if moves[x] && !is && n.op.diff == nil && n.args[0].Type() == TypeFloat && !slices.Contains(names, n.op.text) {
			names = append(names, n.op.text)
		}
	})
	slices.Sort(names)
	return names
}

// differ remembers derivatives: an expression may have an operation many times.
type differ map[Expr]Expr

func (m differ) of(e Expr) Expr {
	if d, known := m[e]; known {
		return d
	}
	n, d := e.node(), zero
	switch {
	case n.op == failure:
		d = e
	case n.typ == TypeFloat && n.op.diff != nil:
		args, moves := make([]Expr, len(n.operands())), false
		for i, a := range n.operands() {
			if args[i] = zero; a.Type() == TypeFloat {
				args[i] = m.of(a)
			}
			moves = moves || args[i] != zero
		}
		if moves {
			d = n.op.diff(e, args)
		}
	}
	m[e] = d
	return d
}

// plus, minus, times and over are Add, Sub, Mul and Div of derivatives, where terms of 0 and factors of 0 and 1 vanish.
func plus(x, y Expr) Expr {
	switch {
	case x.is(0):
		return y
	case y.is(0):
		return x
	}
	return Add(x, y)
}

func minus(x, y Expr) Expr {
	switch {
	case y.is(0):
		return x
	case x.is(0):
		return Neg(y)
	}
	return Sub(x, y)
}

func times(x, y Expr) Expr {
	n := y.node()
	switch {
	case x.is(0), y.is(1):
		return x
	case y.is(0), x.is(1):
		return y
	case n.op == div && n.args[0].is(1): // x * (1 / y), and y * (x / y)
		return over(x, n.args[1])
	case n.op == div && n.args[1] == x:
		return n.args[0]
	}
	return Mul(x, y)
}

func over(x, y Expr) Expr {
	if x.is(0) || y.is(1) {
		return x
	}
	return Div(x, y)
}
