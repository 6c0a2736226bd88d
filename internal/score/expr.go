// Package score has the formula of a score, once: what softcap, bias and ALiBi make of a scaled
// product of Q and K, as an expression. The float64 reference evaluates it, and the computation in
// the storage type evaluates the same expression with a rounding behind each operation. Its
// derivative gives the gradients. The CPU tier and the kernels have forms of their own, which are
// checked against it.
package score

import (
	"fmt"
	"math"
	"strconv"
)

// Expr is an expression of a slot: of its score, its place and tables. An Expr is never changed.
// The zero Expr is none.
type Expr struct{ n *node }

type node struct {
	op   *op
	x    float64  // of a constant
	v    Variable // of a variable
	args []Expr
}

// Variable is what an expression reads.
type Variable int

const (
	S     Variable = iota // the product of a row of Q and a key, times the scale
	I                     // the position of the row among the keys
	J                     // the position of the key
	Bias                  // the bias of the slot
	Slope                 // the ALiBi slope of the head
)

var variables = [...]struct {
	text   string
	ofKeys bool // it differs from key to key
}{S: {"S", true}, I: {"I", false}, J: {"J", true}, Bias: {"bias", true}, Slope: {"slope", false}}

func (v Variable) String() string { return variables[v].text }

// op is an operation: its value, and its derivative from those of its arguments.
type op struct {
	text  string // of a function, or of an operator between two arguments
	level int    // how tightly an operator binds; 0: a function
	one   func(x float64) float64
	two   func(x, y float64) float64
	diff  func(e Expr, d []Expr) Expr
}

var constant, variable = &op{}, &op{}

var add, sub, mul, div, abs, tanh, sech2, sign *op

func init() { // derivatives name operations
	add = &op{text: " + ", level: 1, two: func(x, y float64) float64 { return x + y },
		diff: func(_ Expr, d []Expr) Expr { return Add(d[0], d[1]) }}
	sub = &op{text: " - ", level: 1, two: func(x, y float64) float64 { return x - y },
		diff: func(_ Expr, d []Expr) Expr { return Sub(d[0], d[1]) }}
	mul = &op{text: " * ", level: 2, two: func(x, y float64) float64 { return x * y },
		diff: func(e Expr, d []Expr) Expr { return Add(Mul(d[0], e.arg(1)), Mul(e.arg(0), d[1])) }}
	div = &op{text: " / ", level: 2, two: func(x, y float64) float64 { return x / y },
		diff: func(e Expr, d []Expr) Expr {
			return Sub(Div(d[0], e.arg(1)), Div(Mul(e, d[1]), e.arg(1)))
		}}
	abs = &op{text: "abs", one: math.Abs, diff: func(e Expr, d []Expr) Expr { return Mul(of(sign, e.arg(0)), d[0]) }}
	sign = &op{text: "sign", one: func(x float64) float64 {
		if x == 0 || math.IsNaN(x) {
			return x
		}
		return math.Copysign(1, x)
	}, diff: func(Expr, []Expr) Expr { return Const(0) }}
	tanh = &op{text: "tanh", one: math.Tanh, diff: func(e Expr, d []Expr) Expr { return Mul(of(sech2, e.arg(0)), d[0]) }}
	// 1 - tanh², without the cancellation of that form.
	sech2 = &op{text: "sech2", one: func(x float64) float64 {
		cosh := math.Cosh(x) // Inf for large x
		return 1 / (cosh * cosh)
	}, diff: func(e Expr, d []Expr) Expr {
		return Mul(Mul(Const(-2), Mul(e, of(tanh, e.arg(0)))), d[0])
	}}
}

func of(o *op, args ...Expr) Expr { return Expr{&node{op: o, args: args}} }

func (e Expr) arg(i int) Expr { return e.n.args[i] }

// Given reports whether e is an expression.
func (e Expr) Given() bool { return e.n != nil }

// Const is a number.
func Const(x float64) Expr { return Expr{&node{op: constant, x: x}} }

// Var is a variable.
func Var(v Variable) Expr { return Expr{&node{op: variable, v: v}} }

// Is reports whether e is the number x.
func (e Expr) Is(x float64) bool { return e.n != nil && e.n.op == constant && e.n.x == x }

// Add is x + y, Sub x - y, Mul x * y and Div x / y. Terms of 0 and factors of 0 and 1 vanish.
func Add(x, y Expr) Expr {
	switch {
	case x.Is(0):
		return y
	case y.Is(0):
		return x
	}
	return of(add, x, y)
}

func Sub(x, y Expr) Expr {
	if y.Is(0) {
		return x
	}
	return of(sub, x, y)
}

func Mul(x, y Expr) Expr {
	switch {
	case x.Is(0), y.Is(1):
		return x
	case y.Is(0), x.Is(1):
		return y
	case y.n.op == div && y.arg(0).Is(1): // derivatives have x * (1 / y), and y * (x / y)
		return Div(x, y.arg(1))
	case y.n.op == div && y.arg(1) == x:
		return y.arg(0)
	}
	return of(mul, x, y)
}

func Div(x, y Expr) Expr {
	if x.Is(0) || y.Is(1) {
		return x
	}
	return of(div, x, y)
}

// Abs is |x|, Tanh the hyperbolic tangent.
func Abs(x Expr) Expr  { return of(abs, x) }
func Tanh(x Expr) Expr { return of(tanh, x) }

// Diff is the derivative of e with respect to the score, at the score.
func (e Expr) Diff() Expr {
	switch e.n.op {
	case constant:
		return Const(0)
	case variable:
		if e.n.v == S {
			return Const(1)
		}
		return Const(0)
	}
	d := make([]Expr, len(e.n.args))
	moves := false
	for i, a := range e.n.args {
		d[i] = a.Diff()
		moves = moves || !d[i].Is(0)
	}
	if !moves {
		return Const(0)
	}
	return e.n.op.diff(e, d)
}

// String is the canonical text of e: equal expressions have equal texts.
func (e Expr) String() string {
	if e.n == nil {
		return "none"
	}
	return e.n.text(0)
}

// text is in parentheses within operators that bind more tightly.
func (n *node) text(within int) string {
	switch {
	case n.op == constant:
		s := strconv.FormatFloat(n.x, 'g', -1, 64)
		if n.x < 0 && within > 0 {
			return "(" + s + ")"
		}
		return s
	case n.op == variable:
		return n.v.String()
	case n.op.level == 0:
		return fmt.Sprintf("%s(%s)", n.op.text, n.args[0].n.text(0))
	}
	level := n.op.level
	s := n.args[0].n.text(level) + n.op.text + n.args[1].n.text(level+1)
	if level < within {
		return "(" + s + ")"
	}
	return s
}
