package score

import "math"

// Band is what one comparison of a mask leaves to a row: the keys from Left before its position to Right behind it, or
// those in the chunk of Chunk keys that its position is in. -1, and Chunk 0, is no limit.
type Band struct{ Left, Right, Chunk int }

// TakeBands takes bounds of J by I out of a mask. A mask is comparisons that all have to hold. take gets each that is a
// Band for the rows and keys of every call, of up to 2^30 rows and keys, and returns whether to take it out. The rest is
// what is left, no expression if nothing is.
func (e Expr) TakeBands(take func(Band) bool) (rest Expr) {
	n := e.node()
	if take == nil {
		return e
	}
	if n.op == and {
		x, y := n.args[0].TakeBands(take), n.args[1].TakeBands(take)
		switch {
		case !x.Given():
			return y
		case !y.Given():
			return x
		case x == n.args[0] && y == n.args[1]:
			return e
		}
		return And(x, y)
	}
	bands, ok := n.bands()
	for _, b := range bands {
		ok = ok && take(b)
	}
	if ok {
		return Expr{}
	}
	return e
}

// bands are the bounds that a comparison stands for.
func (n *node) bands() (list []Band, ok bool) {
	x, y := n.args[0], n.args[1]
	if n.op == not {
		m := x.node()
		switch m.op { // of ints, which have no NaN
		case lt:
			m = node{op: le, typ: TypeBool, args: [MaxRank]Expr{m.args[1], m.args[0]}}
		case le:
			m = node{op: lt, typ: TypeBool, args: [MaxRank]Expr{m.args[1], m.args[0]}}
		default:
			return nil, false
		}
		return m.bands()
	}
	if !x.Given() || !y.Given() || x.Type() != TypeInt || y.Type() != TypeInt {
		return nil, false
	}
	p, pOK := linearOf(x)
	q, qOK := linearOf(y)
	below := int64(0)
	if n.op == lt {
		below = 1
	}
	switch near := x.node(); {
	case n.op == eq && chunkOf(x, I) > 0 && chunkOf(x, I) == chunkOf(y, J):
		return []Band{{-1, -1, chunkOf(x, I)}}, true
	case n.op == eq && chunkOf(x, J) > 0 && chunkOf(x, J) == chunkOf(y, I):
		return []Band{{-1, -1, chunkOf(x, J)}}, true
	case (n.op == le || n.op == lt) && near.op == abs && qOK && q.i == 0 && q.j == 0: // |p| <= c
		p, pOK = linearOf(near.args[0])
		high, first := p.minus(q, below).band()
		low, last := (linear{-p.i, -p.j, -p.c}).minus(q, below).band()
		return []Band{high, low}, pOK && first && last
	case !pOK || !qOK:
		return nil, false
	case n.op == le || n.op == lt:
		b, ok := p.minus(q, below).band()
		return []Band{b}, ok
	case n.op == eq:
		high, first := p.minus(q, 0).band()
		low, last := q.minus(p, 0).band()
		return []Band{high, low}, first && last
	}
	return nil, false
}

// chunkOf is the divisor of v / c, where c is a constant above 0; else 0.
func chunkOf(e, v Expr) int {
	n := e.node()
	if n.op == div && n.typ == TypeInt && n.args[0] == v {
		if c := n.args[1].node(); c.op == constant && int32(c.bits) > 0 {
			return int(c.bits)
		}
	}
	return 0
}

// linear is i*I + j*J + c.
type linear struct{ i, j, c int64 }

func (x linear) plus(y linear, sign int64) linear {
	return linear{x.i + sign*y.i, x.j + sign*y.j, x.c + sign*y.c}
}

// minus is x - y + below, which is not above 0 where x <= y, or x < y with below 1.
func (x linear) minus(y linear, below int64) linear {
	r := x.plus(y, -1)
	r.c += below
	return r
}

// wraps reports whether x may be beyond int32. I and J are between -2^30 and 2^30, and so is I - J: the last row is at
// most 2^30 keys behind a key.
func (x linear) wraps() bool {
	const most = 1 << 30
	size := func(n int64) int64 { return max(n, -n) }
	reach := size(x.i) + size(x.j)
	if x.i == -x.j {
		reach = size(x.i)
	}
	return reach > 4 || reach*most+size(x.c) > math.MaxInt32
}

// linearOf reads an int expression; ok is false for others, and for those of which an operation may wrap.
func linearOf(e Expr) (x linear, ok bool) {
	n := e.node()
	switch {
	case n.typ != TypeInt:
		return x, false
	case e == I:
		return linear{i: 1}, true
	case e == J:
		return linear{j: 1}, true
	case n.op == constant:
		return linear{c: int64(int32(n.bits))}, true
	case n.op != add && n.op != sub && n.op != neg && n.op != mul:
		return x, false
	}
	x, ok = linearOf(n.args[0])
	if !ok {
		return x, false
	}
	y := linear{}
	if n.args[1].Given() {
		if y, ok = linearOf(n.args[1]); !ok {
			return x, false
		}
	}
	switch n.op {
	case add:
		x = x.plus(y, 1)
	case sub:
		x = x.plus(y, -1)
	case neg:
		x = y.plus(x, -1)
	case mul:
		if x.i == 0 && x.j == 0 {
			x, y = y, x
		}
		if y.i != 0 || y.j != 0 {
			return x, false
		}
		x = linear{x.i * y.c, x.j * y.c, x.c * y.c}
	}
	return x, !x.wraps()
}

// band is the bound that x <= 0 is.
func (x linear) band() (b Band, ok bool) {
	b = Band{-1, -1, 0}
	limit := func(k int64) int { // of what k times it and x.c are at most 0
		return int(math.Floor(float64(-x.c) / float64(k)))
	}
	switch {
	case x.i == 0 && x.j == 0:
		return b, x.c <= 0
	case x.i != -x.j:
		return b, false
	case x.i > 0: // I - J is at most that
		b.Left = limit(x.i)
		return b, b.Left >= 0
	}
	b.Right = limit(x.j)
	return b, b.Right >= 0
}
