// Package score has expressions of attention scores and masks as data: what a score becomes, or which slots a row
// attends to, as a function of the score, of its row and key and of tables in memory.
//
// Functions build an [Expr], and [Parse] reads one from its text. An Expr is a comparable value: two are equal exactly
// if their texts are. It is evaluated in float64 or float32 ([Evaluator]), differentiated with respect to the score
// (Diff), bounded over a tile of rows and keys (Bounds) and written into SPIR-V ([Rewrite]). The formula of softcap,
// bias and ALiBi is an Expr too, which the float64 reference evaluates.
//
// # Types and arithmetic
//
// An Expr is a float, an int or a bool. Floats are float32 on devices. Ints are int32, which wrap. Division and modulo of
// ints round down, and are 0 if the divisor is 0. A shift takes the low 5 bits of its count; >> keeps the sign. Ints
// become floats where the other operand is one. A comparison with NaN is false, except !=. Min, Max, Abs and Sign keep NaN.
//
// # Errors
//
// A function that gets arguments of a wrong type returns an Expr that holds the error: Err returns it, and so does Err of
// every Expr built of it. CheckScore and CheckMask refuse what is no modifier.
package score

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unique"
)

// Expr is an expression of a slot: of its score, its place and tables. It is comparable, and never changed. The zero Expr
// is none.
type Expr struct{ h unique.Handle[node] }

// Type is the type of an Expr.
type Type uint8

// Types. An Expr with an error has none of them.
const (
	TypeFloat Type = 1 + iota
	TypeInt
	TypeBool
)

// String is "float", "int" or "bool".
func (t Type) String() string {
	if t < TypeFloat || t > TypeBool {
		return "none"
	}
	return [...]string{"float", "int", "bool"}[t-TypeFloat]
}

// Limits of a modifier.
const (
	MaxSize   = 1024 // variables, constants and operations of its text
	MaxTables = 4    // tables that it reads
	MaxRank   = 3    // axes of a table
)

// Limits of every Expr: a derivative, and a modifier of the formula of other options, may be larger than a modifier.
const (
	maxSize  = 1 << 17
	maxDepth = 256
)

// node is what an Expr stands for. Package unique keeps one copy of equal ones.
type node struct {
	op          *op
	typ         Type
	bits        uint32 // of a constant: the int32 or the float32; of an entry the table's first axis that counts
	name        string // of a variable, a table or an entry; of a failure its message
	args        [MaxRank]Expr
	size, depth int
}

// node returns what e stands for; a failure for the zero Expr.
func (e Expr) node() node {
	if e == (Expr{}) {
		return node{op: failure, name: "no expression"}
	}
	return e.h.Value()
}

// Given reports whether e is an expression.
func (e Expr) Given() bool { return e != Expr{} }

// Type is the type of e.
func (e Expr) Type() Type { return e.node().typ }

// Err is the error of an Expr whose arguments do not fit, nil of others. The message has the expression. The zero Expr
// has an error too.
func (e Expr) Err() error {
	if n := e.node(); n.op == failure {
		return errors.New("score: " + n.name)
	}
	return nil
}

func fail(format string, args ...any) Expr {
	return Expr{unique.Make(node{op: failure, name: fmt.Sprintf(format, args...)})}
}

// of is an operation of a type. It does not check the types of the arguments.
func of(o *op, typ Type, args ...Expr) Expr {
	n := node{op: o, typ: typ, size: 1}
	for i, a := range args {
		m := a.node()
		if m.op == failure {
			return fail("%s", m.name)
		}
		n.args[i], n.size, n.depth = a, n.size+m.size, max(n.depth, m.depth+1)
	}
	if n.size > maxSize || n.depth > maxDepth {
		return fail("more than %d operations, or more than %d within each other", maxSize, maxDepth)
	}
	return Expr{unique.Make(n)}
}

// refuse says that an operation does not take its arguments.
func refuse(o *op, takes string, args ...Expr) Expr {
	n := node{op: o}
	var types []string
	for i, a := range args {
		n.args[i] = a
		types = append(types, a.Type().String())
	}
	return fail("%s takes %s, not %s: %s", o.text, takes, strings.Join(types, " and "), shorten(n.text()))
}

// shorten cuts a text for a message.
func shorten(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// failed returns the first argument with an error.
func failed(args ...Expr) (Expr, bool) {
	for _, a := range args {
		if n := a.node(); n.op == failure {
			return fail("%s", n.name), true
		}
	}
	return Expr{}, false
}

// numeric is an operation of numbers. An int becomes a float if another operand is one, and all do if floats is set.
func numeric(o *op, floats bool, args ...Expr) Expr {
	if e, bad := failed(args...); bad {
		return e
	}
	for _, a := range args {
		switch a.Type() {
		case TypeBool:
			return refuse(o, "numbers", args...)
		case TypeFloat:
			floats = true
		}
	}
	typ := TypeInt
	if floats {
		typ, args = TypeFloat, slices.Clone(args)
		for i := range args {
			args[i] = Float(args[i])
		}
	}
	if o.level == levelLess || o.level == levelEqual {
		typ = TypeBool
	}
	return of(o, typ, args...)
}

// exactly is an operation of arguments of one type.
func exactly(o *op, typ Type, args ...Expr) Expr {
	if e, bad := failed(args...); bad {
		return e
	}
	for _, a := range args {
		if a.Type() != typ {
			return refuse(o, typ.String()+"s", args...)
		}
	}
	return of(o, typ, args...)
}

// Variables.
var (
	S      = number("s", TypeFloat)     // the score: the product of a row of Q and a key times the scale, with softcap, ALiBi and bias
	B      = number("b", TypeInt)       // the sequence of the batch
	Head   = number("h", TypeInt)       // the query head
	KVHead = number("hkv", TypeInt)     // the head of K and V
	I      = number("i", TypeInt)       // the position of the row among the keys, as the causal mask counts it
	J      = number("j", TypeInt)       // the key, counted from the start of its sequence
	Row    = number("row", TypeInt)     // the row, counted from the start of its sequence
	Rows   = number("sq", TypeInt)      // rows of the sequence
	Keys   = number("sk", TypeInt)      // keys of the sequence
	Bias   = number("bias", TypeFloat)  // Args.Bias of the slot; the reference's own formula alone reads it
	Slope  = number("slope", TypeFloat) // Args.ALiBi of the head; likewise
)

var infinity = Num(math.Inf(1))

// formula has the size of the formula of softcap, bias and ALiBi, which a score modifier changes.
var formula = Sub(Add(Mul(Num(1), Tanh(Div(S, Num(2)))), Bias), Mul(Slope, Float(Abs(Sub(I, J)))))

// variables are those that a modifier reads.
var variables = map[string]Expr{"s": S, "b": B, "h": Head, "hkv": KVHead, "i": I, "j": J, "row": Row, "sq": Rows, "sk": Keys}

func number(name string, typ Type) Expr {
	return Expr{unique.Make(node{op: variable, typ: typ, name: name, size: 1})}
}

// Num is a float constant, rounded to float32. It may be an infinity. NaN and finite numbers that float32 does not hold
// are errors.
func Num(x float64) Expr {
	y := float32(x)
	if math.IsNaN(x) || math.IsInf(float64(y), 0) && !math.IsInf(x, 0) {
		return fail("%v is no float32 constant", x)
	}
	return Expr{unique.Make(node{op: constant, typ: TypeFloat, bits: math.Float32bits(y), size: 1})}
}

// Int is an int constant. One beyond int32 is an error.
func Int(n int) Expr {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return fail("%d is no int32 constant", n)
	}
	return Expr{unique.Make(node{op: constant, typ: TypeInt, bits: uint32(int32(n)), size: 1})}
}

// value is the number of a constant.
func (n *node) value() float64 {
	if n.typ == TypeInt {
		return float64(int32(n.bits))
	}
	return float64(math.Float32frombits(n.bits))
}

// is reports whether e is the float constant x.
func (e Expr) is(x float64) bool {
	n := e.node()
	return n.op == constant && n.typ == TypeFloat && n.value() == x
}

// A Table is an array of ints or floats in memory that an Expr reads, declared by its name, type and number of axes.
// [attention.Args].Tables binds its memory and its sizes. An index beyond the ends of its axis is moved to the end.
type Table struct {
	name string
	typ  Type
	rank int
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)

// IntTable is a table of int32 with 1 to MaxRank axes. A name has up to 32 letters, digits and underscores.
func IntTable(name string, rank int) Table { return Table{name, TypeInt, rank} }

// FloatTable is a table of float32.
func FloatTable(name string, rank int) Table { return Table{name, TypeFloat, rank} }

// Name is the table's name, Type the type of its elements, and Rank its number of axes.
func (t Table) Name() string { return t.name }
func (t Table) Type() Type   { return t.typ }
func (t Table) Rank() int    { return t.rank }

// At is the element at the ints that indices are, one for each axis.
func (t Table) At(indices ...Expr) Expr {
	switch _, taken := functions[t.name]; {
	case !tableName.MatchString(t.name) || taken || t.name == "inf" || t.name == "float" || t.name == "clamp":
		return fail("%q is no name of a table", t.name)
	case t.rank < 1 || t.rank > MaxRank || len(indices) != t.rank:
		return fail("table %s has %d axes (1 to %d are possible) and %d indices", t.name, t.rank, MaxRank, len(indices))
	}
	if e, bad := failed(indices...); bad {
		return e
	}
	for _, x := range indices {
		if x.Type() != TypeInt {
			return fail("an index of table %s is %v, not int: %s", t.name, x.Type(), shorten(x.String()))
		}
	}
	return of(table, t.typ, indices...).named(t.name, 0)
}

// named is e, an operation of a table, with the table's name.
func (e Expr) named(name string, bits uint32) Expr {
	n := e.node()
	if n.op == failure {
		return e
	}
	n.name, n.bits = name, bits
	return Expr{unique.Make(n)}
}

// walk visits each different node of e once, arguments first.
func (e Expr) walk(seen map[Expr]bool, visit func(Expr, *node)) {
	if seen[e] || !e.Given() {
		return
	}
	seen[e] = true
	n := e.node()
	for _, a := range n.operands() {
		a.walk(seen, visit)
	}
	visit(e, &n)
}

// reads reports whether e reads a variable.
func (e Expr) reads(v Expr) (yes bool) {
	e.walk(map[Expr]bool{}, func(x Expr, _ *node) { yes = yes || x == v })
	return yes
}

// Of is e with x, a float, in place of S.
func (e Expr) Of(x Expr) Expr { return substitution{S: x}.of(e) }

type substitution map[Expr]Expr

func (m substitution) of(e Expr) Expr {
	if x, known := m[e]; known {
		return x
	}
	n := e.node()
	args := make([]Expr, len(n.operands()))
	for i, a := range n.operands() {
		args[i] = m.of(a)
	}
	x := e
	if len(args) > 0 && !slices.Equal(args, n.operands()) {
		if x = of(n.op, n.typ, args...); n.op == table || n.op == entry {
			x = x.named(n.name, n.bits)
		}
	}
	m[e] = x
	return x
}

// operands are the arguments of n.
func (n *node) operands() []Expr {
	for i, a := range n.args {
		if !a.Given() {
			return n.args[:i]
		}
	}
	return n.args[:]
}

// CheckScore reports why e cannot be a score modifier: it has to be a float, and may not read Bias and Slope.
func (e Expr) CheckScore() error { return e.check(TypeFloat, Bias, Slope) }

// CheckMask reports why e cannot be a mask modifier: it has to be a bool, and may not read S, Bias and Slope.
func (e Expr) CheckMask() error { return e.check(TypeBool, S, Bias, Slope) }

func (e Expr) check(typ Type, not ...Expr) error {
	if err := e.Err(); err != nil {
		return err
	}
	if e.Type() != typ {
		return fmt.Errorf("score: the expression is %v, not %v: %s", e.Type(), typ, shorten(e.String()))
	}
	switch d := e.Of(formula).Diff().Err(); {
	case e.node().size > MaxSize:
		return fmt.Errorf("score: %d operations, at most %d are possible: %s", e.node().size, MaxSize, shorten(e.String()))
	case d != nil:
		return fmt.Errorf("score: the derivative has %s: %s", strings.TrimPrefix(d.Error(), "score: "), shorten(e.String()))
	}
	for _, v := range not {
		if e.reads(v) {
			return fmt.Errorf("score: the expression reads %v: %s", v, shorten(e.String()))
		}
	}
	_, err := TablesOf(e)
	return err
}

// TablesOf lists the tables that expressions read, by name. Different tables of one name, and more than MaxTables, are an
// error.
func TablesOf(all ...Expr) (list []Table, err error) {
	seen := map[Expr]bool{}
	for _, e := range all {
		e.walk(seen, func(_ Expr, n *node) {
			if n.op == table {
				list = append(list, Table{n.name, n.typ, len(n.operands())})
			}
		})
	}
	slices.SortFunc(list, func(a, b Table) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.typ, b.typ), cmp.Compare(a.rank, b.rank))
	})
	list = slices.Compact(list)
	for i := 1; i < len(list); i++ {
		if list[i].name == list[i-1].name {
			return nil, fmt.Errorf("score: two different tables are named %s", list[i].name)
		}
	}
	if len(list) > MaxTables {
		return nil, fmt.Errorf("score: %d tables, at most %d are possible", len(list), MaxTables)
	}
	return list, nil
}
