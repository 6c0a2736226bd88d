package score

import "math"

// Tile is the rows at positions I0 to I1 and the keys J0 to J1, inclusive. Other variables may have any value.
type Tile struct{ I0, I1, J0, J1 int }

// Interval holds all values of an expression: each is at least Lo and at most Hi or, if NaN is set, may be NaN. Bools are
// 0 and 1, so a mask with Hi 0 excludes every slot of a tile, and one with Lo 1 excludes none.
type Interval struct {
	Lo, Hi float64
	NaN    bool
}

var (
	anyFloat = Interval{math.Inf(-1), math.Inf(1), true}
	anyInt   = Interval{math.MinInt32, math.MaxInt32, false}
)

// Bounds returns the values that e has in a tile, by interval arithmetic. The interval may be larger than the values. It
// holds for float64, for float32, and for devices, whose functions are off by less than 2^-15 of their value.
func (e Expr) Bounds(over Tile) Interval {
	return bounder{over, math.MaxInt32, map[Expr]Interval{}}.of(e)
}

type bounder struct {
	tile Tile
	most float64 // of other variables
	have map[Expr]Interval
}

func (m bounder) of(e Expr) Interval {
	if r, known := m.have[e]; known {
		return r
	}
	n := e.node()
	var x, y Interval
	if n.args[0].Given() {
		x = m.of(n.args[0])
	}
	if n.args[1].Given() {
		y = m.of(n.args[1])
	}
	r := anyFloat
	switch {
	case n.op == constant:
		r = Interval{n.value(), n.value(), false}
	case e == I:
		r = Interval{float64(m.tile.I0), float64(m.tile.I1), false}
	case e == J:
		r = Interval{float64(m.tile.J0), float64(m.tile.J1), false}
	case n.op == choose && x.Lo == 1:
		r = y
	case n.op == choose:
		if r = m.of(n.args[2]); x.Hi == 1 {
			r = Interval{min(y.Lo, r.Lo), max(y.Hi, r.Hi), y.NaN || r.NaN}
		}
	case n.op == variable && n.typ == TypeInt:
		r = Interval{0, m.most, false}
	case n.typ == TypeInt && (n.op == table || n.op == entry || n.op == failure):
		r = anyInt
	case n.op == variable || n.op == table || n.op == failure:
	case n.op.bounds != nil:
		r = n.op.bounds(&n, x, y)
	default:
		r = corners(&n, x, y)
	}
	m.have[e] = r
	return r
}

// corners are the bounds of an operation that is monotonic in each argument.
func corners(n *node, x, y Interval) Interval {
	r := Interval{math.Inf(1), math.Inf(-1), x.NaN || y.NaN}
	for i := range 4 {
		a, b := [2]float64{x.Lo, x.Hi}[i&1], [2]float64{y.Lo, y.Hi}[i>>1]
		var v float64
		if n.op.f == nil || n.op.text == "/" && n.typ == TypeInt {
			v = float64(n.op.n(int32(a), int32(b)))
		} else {
			v = n.op.f(a, b) // of ints too: it may be beyond int32
		}
		if math.IsNaN(v) {
			return anyFloat
		}
		r.Lo, r.Hi = min(r.Lo, v), max(r.Hi, v)
	}
	return r.within(n.typ)
}

// within is r as a result of a type: ints that wrap may have any value, and floats are rounded.
func (r Interval) within(typ Type) Interval {
	switch {
	case typ == TypeInt && (r.Lo < math.MinInt32 || r.Hi > math.MaxInt32):
		return anyInt
	case typ == TypeFloat:
		const error, least = 0x1p-15, 0x1p-120 // devices may flush subnormals
		r.Lo -= error*math.Abs(r.Lo) + least
		r.Hi += error*math.Abs(r.Hi) + least
		if r.Lo < -math.MaxFloat32 {
			r.Lo = math.Inf(-1)
		}
		if r.Hi > math.MaxFloat32 {
			r.Hi = math.Inf(1)
		}
		r.NaN = r.NaN || math.IsNaN(r.Lo) || math.IsNaN(r.Hi)
		if math.IsNaN(r.Lo) || math.IsNaN(r.Hi) {
			return anyFloat
		}
	}
	return r
}

func (r Interval) has(x float64) bool { return r.Lo <= x && x <= r.Hi }
func (r Interval) infinite() bool     { return math.IsInf(r.Lo, 0) || math.IsInf(r.Hi, 0) }

func mulBounds(n *node, x, y Interval) Interval {
	if x.infinite() && y.has(0) || y.infinite() && x.has(0) {
		return anyFloat
	}
	return corners(n, x, y)
}

func divBounds(n *node, x, y Interval) Interval {
	switch {
	case n.typ == TypeFloat && y.has(0):
		return anyFloat
	case n.typ == TypeInt && (y.has(0) || y.has(-1)):
		far := max(math.Abs(x.Lo), math.Abs(x.Hi))
		return Interval{-far, far, false}.within(TypeInt)
	}
	return corners(n, x, y)
}

// modBounds: the modulo has the sign of the divisor and is nearer to 0.
func modBounds(_ *node, x, y Interval) Interval {
	if c := y.Lo; c == y.Hi && c > 0 && math.Floor(x.Lo/c) == math.Floor(x.Hi/c) {
		start := math.Floor(x.Lo/c) * c
		return Interval{x.Lo - start, x.Hi - start, false}
	}
	return Interval{min(y.Lo+1, 0), max(y.Hi-1, 0), false}
}

// bitBounds are those of and, or and xor.
func bitBounds(n *node, x, y Interval) Interval {
	switch {
	case x.Lo == x.Hi && y.Lo == y.Hi:
		return corners(n, x, y)
	case n.op.text == "&" && x.Lo >= 0 && y.Lo >= 0:
		return Interval{0, min(x.Hi, y.Hi), false}
	case n.op.text == "&" && (x.Lo >= 0 || y.Lo >= 0):
		if x.Lo < 0 {
			x = y
		}
		return Interval{0, x.Hi, false}
	case x.Lo >= 0 && y.Lo >= 0:
		end := 1.0
		for end <= max(x.Hi, y.Hi) {
			end *= 2
		}
		return Interval{0, end - 1, false}
	}
	return anyInt
}

func shiftBounds(n *node, x, y Interval) Interval {
	if y.Lo != y.Hi {
		return anyInt
	}
	by := int32(y.Lo) & 31
	if n.op.text == "<<" {
		return Interval{math.Ldexp(x.Lo, int(by)), math.Ldexp(x.Hi, int(by)), false}.within(TypeInt)
	}
	return corners(n, x, y)
}

func lessBounds(n *node, x, y Interval) Interval {
	r := Interval{n.op.f(x.Hi, y.Lo), n.op.f(x.Lo, y.Hi), false}
	if x.NaN || y.NaN {
		r.Lo = 0
	}
	return r
}

func equalBounds(_ *node, x, y Interval) Interval {
	return Interval{
		truth(x.Lo == x.Hi && y.Lo == y.Hi && x.Lo == y.Lo && !x.NaN && !y.NaN),
		truth(x.Lo <= y.Hi && y.Lo <= x.Hi), false}
}

func unequalBounds(n *node, x, y Interval) Interval {
	r := equalBounds(n, x, y)
	return Interval{1 - r.Hi, 1 - r.Lo, false}
}

func absBounds(n *node, x, _ Interval) Interval {
	r := Interval{max(0, x.Lo, -x.Hi), max(x.Hi, -x.Lo), x.NaN}
	return r.within(n.typ)
}

// fromZero are the bounds of log and sqrt, which are NaN below 0.
func fromZero(n *node, x, y Interval) Interval {
	if x.Hi < 0 {
		return anyFloat
	}
	nan := x.NaN || x.Lo < 0
	r := corners(n, Interval{max(x.Lo, 0), x.Hi, false}, y)
	r.NaN = r.NaN || nan
	if n.op.text == "log" { // near 1 the error is absolute
		r.Lo, r.Hi = r.Lo-0x1p-15, r.Hi+0x1p-15
	}
	return r
}

func waveBounds(_ *node, x, _ Interval) Interval {
	return Interval{-1 - 0x1p-10, 1 + 0x1p-10, x.NaN || x.infinite()}
}

func sech2Bounds(_ *node, x, _ Interval) Interval { return Interval{0, 1 + 0x1p-15, x.NaN} }
