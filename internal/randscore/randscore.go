// Package randscore draws random expressions of package score for tests.
package randscore

import (
	"math"
	"math/rand/v2"

	"vkattn/attention/score"
)

// Draw returns an expression of a type with operations up to a depth. It reads the tables that are given, and S if s is
// set. It has no error.
func Draw(r *rand.Rand, typ score.Type, depth int, s bool, tables ...score.Table) score.Expr {
	return drawer{r, s, false, tables}.draw(typ, depth)
}

// DrawSmooth is Draw without steps that the rounding of an operation might cross: comparisons, floors and signs of floats
// take numbers that no operation has rounded.
func DrawSmooth(r *rand.Rand, typ score.Type, depth int, s bool, tables ...score.Table) score.Expr {
	return drawer{r, s, true, tables}.draw(typ, depth)
}

type drawer struct {
	*rand.Rand
	s, smooth bool
	tables    []score.Table
}

// exact returns x, or with smooth a number that is not rounded.
func (d drawer) exact(typ score.Type, depth int) score.Expr {
	if d.smooth && typ == score.TypeFloat {
		depth = 0
	}
	return d.draw(typ, depth)
}

var (
	ints = []score.Expr{score.I, score.J, score.I, score.J, score.Row, score.Rows, score.Keys, score.Head, score.KVHead, score.B}

	intPairs = []func(x, y score.Expr) score.Expr{score.Add, score.Sub, score.Mul, score.Div, score.Mod, score.Min, score.Max,
		score.And, score.Or, score.Xor, score.Shl, score.Shr}
	intOnes    = []func(x score.Expr) score.Expr{score.Neg, score.Not, score.Abs, score.Sign}
	floatPairs = []func(x, y score.Expr) score.Expr{score.Add, score.Sub, score.Mul, score.Div, score.Min, score.Max}
	steps      = []func(x score.Expr) score.Expr{score.Sign, score.Floor}
	floatOnes  = []func(x score.Expr) score.Expr{score.Neg, score.Abs, score.Tanh, score.Tanh, score.Sin, score.Cos, func(x score.Expr) score.Expr { return score.Sqrt(score.Abs(x)) },
		func(x score.Expr) score.Expr { return score.Exp(score.Min(x, score.Num(4))) },
		func(x score.Expr) score.Expr { return score.Log(score.Add(score.Abs(x), score.Num(0.5))) }}
	compares = []func(x, y score.Expr) score.Expr{score.Eq, score.Ne, score.Lt, score.Le, score.Gt, score.Ge}
)

func of[T any](d drawer, list []T) T { return list[d.IntN(len(list))] }

func (d drawer) draw(typ score.Type, depth int) score.Expr {
	if depth > 0 && d.IntN(6) == 0 {
		return score.Select(d.draw(score.TypeBool, depth-1), d.draw(typ, depth-1), d.draw(typ, depth-1))
	}
	if depth > 0 && d.IntN(5) == 0 {
		for _, at := range d.Perm(len(d.tables)) {
			if t := d.tables[at]; t.Type() == typ {
				var indices []score.Expr
				for range t.Rank() {
					indices = append(indices, d.draw(score.TypeInt, depth-1))
				}
				return t.At(indices...)
			}
		}
	}
	switch {
	case typ == score.TypeBool && (depth <= 0 || d.IntN(2) == 0):
		of := of(d, []score.Type{score.TypeInt, score.TypeInt, score.TypeFloat})
		return compare(d, d.exact(of, depth-1), d.exact(of, depth-1))
	case typ == score.TypeBool && d.IntN(4) == 0:
		return score.Not(d.draw(typ, depth-1))
	case typ == score.TypeBool:
		pair := of(d, []func(x, y score.Expr) score.Expr{score.And, score.Or, score.Eq, score.Ne})
		return pair(d.draw(typ, depth-1), d.draw(typ, depth-1))
	case typ == score.TypeInt && (depth <= 0 || d.IntN(5) == 0):
		if d.IntN(3) > 0 {
			return of(d, ints)
		}
		return score.Int(of(d, []int{0, 1, 2, 3, 5, 8, 31, 32, 64, -1, -2, -7, 100, 1 << 20, -1 << 31, 1<<31 - 1}))
	case typ == score.TypeInt && d.IntN(4) == 0:
		return of(d, intOnes)(d.draw(typ, depth-1))
	case typ == score.TypeInt:
		return of(d, intPairs)(d.draw(typ, depth-1), d.draw(typ, depth-1))
	case depth <= 0 || d.IntN(5) == 0:
		switch {
		case d.s && d.IntN(2) == 0:
			return score.S
		case d.IntN(2) == 0:
			return score.Float(of(d, ints))
		}
		return score.Num(of(d, []float64{0, 0.5, 1, -1, 0.1, 3, -0.25, 1e-3, 20}))
	case d.IntN(8) == 0:
		return of(d, steps)(d.exact(typ, depth-1))
	case d.IntN(2) == 0:
		return of(d, floatOnes)(d.draw(typ, depth-1))
	}
	return of(d, floatPairs)(d.draw(typ, depth-1), d.draw(typ, depth-1))
}

func compare(d drawer, x, y score.Expr) score.Expr { return of(d, compares)(x, y) }

// DrawExact returns an int or a bool that no rounding changes, of variables but the sequence of the batch, and of tables
// of ints.
func DrawExact(r *rand.Rand, typ score.Type, depth int, tables ...score.Table) score.Expr {
	return drawer{r, false, true, tables}.whole(typ, depth)
}

func (d drawer) whole(typ score.Type, depth int) score.Expr {
	some := func() score.Expr { return d.whole(score.TypeInt, depth-1) }
	switch {
	case typ == score.TypeBool && depth > 0 && d.IntN(3) == 0:
		pair := of(d, []func(x, y score.Expr) score.Expr{score.And, score.Or, score.Or, score.Ne})
		return pair(d.whole(typ, depth-1), d.whole(typ, depth-1))
	case typ == score.TypeBool:
		return of(d, compares)(some(), some())
	case depth <= 0 || d.IntN(5) == 0:
		if d.IntN(3) > 0 {
			return of(d, ints[:len(ints)-1])
		}
		return score.Int(of(d, []int{0, 1, 2, 3, 5, 8, 31, 32, 64, 100, -1, -7, 1<<31 - 1}))
	case d.IntN(5) == 0:
		for _, t := range d.tables {
			if t.Type() == score.TypeInt && t.Rank() == 1 {
				return t.At(some())
			}
		}
		return score.Select(d.whole(score.TypeBool, depth-1), some(), some())
	case d.IntN(4) == 0:
		return of(d, intOnes)(some())
	}
	return of(d, intPairs)(some(), some())
}

// DrawGentle returns a score modifier that rounding changes little: its slope is below 2, and what it adds is below 20.
func DrawGentle(r *rand.Rand, depth int, tables ...score.Table) score.Expr {
	d := drawer{r, false, true, tables}
	x := d.gentle(depth)
	switch d.IntN(5) {
	case 0:
		return score.Mul(score.S, score.Add(score.Num(1), score.Mul(score.Num(0.5), score.Tanh(x))))
	case 1:
		return score.Softcap(score.Add(score.S, x), 8)
	case 2:
		return score.Select(d.whole(score.TypeBool, depth), score.S, score.Add(score.S, x))
	case 3:
		return score.Select(score.Or(d.whole(score.TypeBool, depth), score.Lt(score.J, score.Int(5))), score.Max(score.S, x), score.Num(math.Inf(-1)))
	}
	return score.Add(score.S, x)
}

// gentle is a float between -8 and 8 whose operations lose few digits.
func (d drawer) gentle(depth int) score.Expr {
	bounded := func(x score.Expr) score.Expr { return score.Clamp(x, score.Num(-8), score.Num(8)) }
	switch {
	case depth <= 0 || d.IntN(4) == 0:
		for _, t := range d.tables {
			if t.Type() == score.TypeFloat && t.Rank() == 2 && d.IntN(2) == 0 {
				return t.At(d.whole(score.TypeInt, 1), d.whole(score.TypeInt, 1))
			}
		}
		if d.IntN(3) == 0 {
			return score.Num(of(d, []float64{0, 0.5, 1, -1, 0.1, 3, -0.25}))
		}
		return score.Div(score.Float(score.Clamp(d.whole(score.TypeInt, 2), score.Int(-64), score.Int(64))), score.Num(16))
	case d.IntN(3) == 0:
		return score.Select(d.whole(score.TypeBool, depth-1), d.gentle(depth-1), d.gentle(depth-1))
	case d.IntN(2) == 0:
		one := of(d, []func(x score.Expr) score.Expr{score.Neg, score.Abs, score.Tanh, score.Sin, score.Cos,
			func(x score.Expr) score.Expr { return score.Exp(score.Min(x, score.Num(1))) },
			func(x score.Expr) score.Expr { return score.Log(score.Add(score.Abs(x), score.Num(1))) },
			func(x score.Expr) score.Expr { return score.Sqrt(score.Add(score.Abs(x), score.Num(1))) }})
		return one(d.gentle(depth - 1))
	}
	pair := of(d, []func(x, y score.Expr) score.Expr{score.Add, score.Sub, score.Mul, score.Min, score.Max})
	return bounded(pair(d.gentle(depth-1), d.gentle(depth-1)))
}
