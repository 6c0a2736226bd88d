package score

import "math"

// A mask as a question about tiles: does it exclude every slot of a tile, or none? The answer is an expression of the first
// and the last positions of the tile, by interval arithmetic as in bounds.go, but of expressions in place of numbers. What
// positions do not bound, such as the values of a table, is a side of the tile if rows alone or keys alone decide it: the answer
// takes its least and its largest value over the rows or the keys.

// Variables of tiles. I, J, Row and Head are the first ones of a tile, these are the last; and the bounds of its sides.
var (
	iEnd      = number("iEnd", TypeInt)
	jEnd      = number("jEnd", TypeInt)
	rowEnd    = number("rowEnd", TypeInt)
	headEnd   = number("hEnd", TypeInt)
	sideLeast = [MaxSides]Expr{number("least0", TypeInt), number("least1", TypeInt), number("least2", TypeInt), number("least3", TypeInt)}
	sideMost  = [MaxSides]Expr{number("most0", TypeInt), number("most1", TypeInt), number("most2", TypeInt), number("most3", TypeInt)}
)

// Answers of a TileQuestion.
const (
	TileEmpty   = iota // the mask excludes every slot
	TileUnknown        // its slots have to be asked
	TileFull           // the mask excludes none
	TilePartial        // it excludes some, or perhaps all or none
)

// MaxSides is the most sides of a TileQuestion, of rows and of keys together.
const MaxSides = 4

// MaxTilePosition bounds the positions, rows and keys that Tiles holds for.
const MaxTilePosition = 1 << 29

// A TileQuestion says of a tile what a mask leaves of it.
type TileQuestion struct {
	Answer Expr // int: TileEmpty and so on
	Known  bool // it is never TileUnknown
	// Side is an int expression: number [Slots].Read of the sides. Sides has a bit for each: the first two are of rows, whatever
	// the key, the others of keys.
	Side  Expr
	Sides uint32
}

// Tiles is the question whether the mask e excludes all of a tile, or nothing.
func (e Expr) Tiles() TileQuestion {
	t := newTiler(map[Expr]uint8{})
	t.takesSides = true
	b := t.truth(e)
	q := TileQuestion{Known: !t.failed, Side: Int(0)}
	for i, side := range t.sides {
		if side.Given() {
			q.Sides |= 1 << i
			q.Known = false
			q.Side = Select(Eq(read, Int(i)), side, q.Side)
		}
	}
	rest := Int(TileUnknown)
	if q.Known {
		rest = Int(TilePartial)
	}
	q.Answer = Select(b[1], Int(TileFull), Select(b[0], rest, Int(TileEmpty)))
	if q.Answer.Err() != nil || q.Side.Err() != nil {
		return TileQuestion{Answer: Int(TileUnknown), Side: Int(0)}
	}
	return q
}

// Reads reports whether e reads a variable, such as Head.
func (e Expr) Reads(variable Expr) bool { return e.reads(variable) }

type tiler struct {
	ranges     bounder
	depends    map[Expr]uint8   // on onRows and so on
	ints       map[Expr][2]Expr // the least and the largest value; zero: unknown
	bools      map[Expr][2]Expr // whether e may hold somewhere in the tile, and whether it holds everywhere
	failed     bool
	takesSides bool
	sides      [MaxSides]Expr // ints
}

// What an expression may depend on that differs between the slots of a tile.
const (
	onRows = 1 << iota
	onKeys
	onScore
)

func newTiler(depends map[Expr]uint8) *tiler {
	return &tiler{ranges: bounder{Tile{-MaxTilePosition, MaxTilePosition, 0, MaxTilePosition}, MaxTilePosition, map[Expr]Interval{}},
		depends: depends, ints: map[Expr][2]Expr{}, bools: map[Expr][2]Expr{}}
}

// oneSided reports whether rows alone or keys alone decide e.
func (t *tiler) oneSided(e Expr) (rows, ok bool) {
	on := t.of(e)
	return on == onRows, on == onRows || on == onKeys
}

// side makes an int, or a bool as 0 and 1, a side: the least and the largest value, zero if there are too many.
func (t *tiler) side(e Expr, rows bool) (bounds [2]Expr) {
	if e.Type() == TypeBool {
		e = Select(e, Int(1), Int(0))
	}
	first := MaxSides / 2
	if rows {
		first = 0
	}
	for i := first; i < first+MaxSides/2; i++ {
		if !t.sides[i].Given() {
			t.sides[i] = e
		}
		if t.sides[i] == e {
			return [2]Expr{sideLeast[i], sideMost[i]}
		}
	}
	return bounds
}

var always, never = Eq(Int(0), Int(0)), Ne(Int(0), Int(0))

// fixed reports whether an expression has one value in a tile.
func (t *tiler) fixed(e Expr) bool { return t.of(e) == 0 }

// of is what an expression depends on.
func (t *tiler) of(e Expr) (on uint8) {
	if on, ok := t.depends[e]; ok {
		return on
	}
	switch e {
	case I, Row, Head:
		on = onRows
	case J:
		on = onKeys
	case S:
		on = onScore
	}
	n := e.node()
	for _, a := range n.operands() {
		on |= t.of(a)
	}
	t.depends[e] = on
	return on
}

func (t *tiler) truth(e Expr) [2]Expr {
	b, done := t.bools[e]
	if !done {
		b = t.truthOf(e)
		t.bools[e] = b
	}
	return b
}

// truthOf is truth by positions, or else by a side.
func (t *tiler) truthOf(e Expr) [2]Expr {
	if rows, ok := t.oneSided(e); ok && t.takesSides {
		bare := newTiler(t.depends)
		if b := bare.truth(e); !bare.failed {
			return b
		}
		if s := t.side(e, rows); s[0].Given() {
			return [2]Expr{Ne(s[1], Int(0)), Ne(s[0], Int(0))}
		}
	}
	return t.boolOf(e)
}

func (t *tiler) boolOf(e Expr) [2]Expr {
	if t.fixed(e) {
		return [2]Expr{e, e}
	}
	n := e.node()
	switch n.op {
	case and:
		x, y := t.truth(n.args[0]), t.truth(n.args[1])
		return [2]Expr{both(x[0], y[0]), both(x[1], y[1])}
	case or:
		x, y := t.truth(n.args[0]), t.truth(n.args[1])
		return [2]Expr{either(x[0], y[0]), either(x[1], y[1])}
	case not:
		x := t.truth(n.args[0])
		return [2]Expr{opposite(x[1]), opposite(x[0])}
	case choose:
		c, x, y := t.truth(n.args[0]), t.truth(n.args[1]), t.truth(n.args[2])
		return [2]Expr{either(both(c[0], x[0]), both(opposite(c[1]), y[0])),
			either(both(x[1], y[1]), either(both(c[1], x[1]), both(opposite(c[0]), y[1])))}
	case lt, le, eq, ne:
		if n.args[0].Type() == TypeInt {
			return t.comparison(&n)
		}
	}
	t.failed = true
	return [2]Expr{always, never}
}

func (t *tiler) comparison(n *node) [2]Expr {
	x, y := t.span(n.args[0]), t.span(n.args[1])
	if !x[0].Given() || !y[0].Given() {
		t.failed = true
		return [2]Expr{always, never}
	}
	switch n.op {
	case lt:
		return [2]Expr{Lt(x[0], y[1]), Lt(x[1], y[0])}
	case le:
		return [2]Expr{Le(x[0], y[1]), Le(x[1], y[0])}
	}
	meet := And(Le(x[0], y[1]), Le(y[0], x[1]))
	same := And(Eq(x[0], x[1]), And(Eq(y[0], y[1]), Eq(x[0], y[0])))
	if n.op == eq {
		return [2]Expr{meet, same}
	}
	return [2]Expr{Not(same), Not(meet)}
}

// both, either and opposite are And, Or and Not, but for what always or never holds.
func both(x, y Expr) Expr {
	switch {
	case x == always, y == never:
		return y
	case y == always, x == never:
		return x
	}
	return And(x, y)
}

func either(x, y Expr) Expr {
	switch {
	case x == never, y == always:
		return y
	case y == never, x == always:
		return x
	}
	return Or(x, y)
}

func opposite(x Expr) Expr {
	switch x {
	case always:
		return never
	case never:
		return always
	}
	return Not(x)
}

func (t *tiler) span(e Expr) [2]Expr {
	s, done := t.ints[e]
	if !done {
		s = t.boundsOf(e)
		t.ints[e] = s
	}
	return s
}

// boundsOf is span by positions, or else by a side.
func (t *tiler) boundsOf(e Expr) [2]Expr {
	if rows, ok := t.oneSided(e); ok && t.takesSides && e.Type() == TypeInt {
		bare := newTiler(t.depends)
		if s := bare.span(e); s[0].Given() && !bare.failed {
			return s
		}
		if s := t.side(e, rows); s[0].Given() {
			return s
		}
	}
	return t.spanOf(e)
}

// spanOf returns no expressions for operations that may wrap, and for those that are not monotonic.
func (t *tiler) spanOf(e Expr) (unknown [2]Expr) {
	switch {
	case t.fixed(e):
		return [2]Expr{e, e}
	case e == I:
		return [2]Expr{I, iEnd}
	case e == J:
		return [2]Expr{J, jEnd}
	case e == Row:
		return [2]Expr{Row, rowEnd}
	case e == Head:
		return [2]Expr{Head, headEnd}
	}
	n := e.node()
	if n.op == table || n.typ != TypeInt {
		return unknown
	}
	if n.op == choose {
		c, x, y := t.truth(n.args[0]), t.span(n.args[1]), t.span(n.args[2])
		if !x[0].Given() || !y[0].Given() {
			return unknown
		}
		return [2]Expr{Select(c[1], x[0], Select(c[0], Min(x[0], y[0]), y[0])), Select(c[1], x[1], Select(c[0], Max(x[1], y[1]), y[1]))}
	}
	var x, y [2]Expr
	if x = t.span(n.args[0]); !x[0].Given() {
		return unknown
	}
	y = x
	if n.args[1].Given() {
		if y = t.span(n.args[1]); !y[0].Given() {
			return unknown
		}
	}
	wraps := t.ranges.of(e) == anyInt
	c, value, isConstant := n.args[1], int32(0), false
	if m := c.node(); m.op == constant {
		value, isConstant = int32(m.bits), true
	}
	switch n.op {
	case least:
		return [2]Expr{Min(x[0], y[0]), Min(x[1], y[1])}
	case most:
		return [2]Expr{Max(x[0], y[0]), Max(x[1], y[1])}
	case shr:
		if isConstant {
			return [2]Expr{Shr(x[0], c), Shr(x[1], c)}
		}
	case div:
		if isConstant && value > 0 {
			return [2]Expr{Div(x[0], c), Div(x[1], c)}
		}
	case mod:
		if isConstant && value > 0 {
			one := Eq(Div(x[0], c), Div(x[1], c)) // no multiple of c is between them
			return [2]Expr{Select(one, Mod(x[0], c), Int(0)), Select(one, Mod(x[1], c), Int(int(value)-1))}
		}
	}
	if wraps {
		return unknown
	}
	switch n.op {
	case add:
		return [2]Expr{Add(x[0], y[0]), Add(x[1], y[1])}
	case sub:
		return [2]Expr{Sub(x[0], y[1]), Sub(x[1], y[0])}
	case neg:
		return [2]Expr{Neg(x[1]), Neg(x[0])}
	case abs:
		if t.ranges.of(n.args[0]).Lo == math.MinInt32 {
			return unknown
		}
		return [2]Expr{Max(Max(x[0], Neg(x[1])), Int(0)), Max(x[1], Neg(x[0]))}
	case shl:
		if isConstant {
			return [2]Expr{Shl(x[0], c), Shl(x[1], c)}
		}
	case mul:
		if f := n.args[0].node(); f.op == constant {
			x, c, value, isConstant = y, n.args[0], int32(f.bits), true
		}
		switch {
		case isConstant && value >= 0:
			return [2]Expr{Mul(x[0], c), Mul(x[1], c)}
		case isConstant:
			return [2]Expr{Mul(x[1], c), Mul(x[0], c)}
		}
	}
	return unknown
}
