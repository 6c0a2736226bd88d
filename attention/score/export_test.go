package score

import "math"

// ops are the operations by name.
func ops() map[string]*op {
	return map[string]*op{"add": add, "sub": sub, "mul": mul, "div": div, "abs": abs, "sign": sign, "tanh": tanh, "sech2": sech2}
}

// Fault is an operation that is wrong: its value, or its derivative. Nil: it is right.
type Fault struct {
	Op   string
	One  func(x float64) float64
	Two  func(x, y float64) float64
	Diff func(e Expr, d []Expr) Expr
}

// Plant makes an operation wrong until undo is called.
func (f Fault) Plant() (undo func()) {
	o := ops()[f.Op]
	right := *o
	if f.One != nil || f.Two != nil {
		o.n = nil
	}
	if f.One != nil {
		o.f = func(x, _ float64) float64 { return f.One(x) }
	}
	if f.Two != nil {
		o.f = f.Two
	}
	if f.Diff != nil {
		o.diff = f.Diff
	}
	return func() { *o = right }
}

// AnswerOf is what a question says of a tile of rows and heads from `at` on and keys from j on.
func AnswerOf(q TileQuestion, at *Slots, rows, heads, j, keys int) int {
	last := substitution{J: Int(j), iEnd: Int(at.I + rows - 1), jEnd: Int(j + keys - 1), rowEnd: Int(at.Row + rows - 1), headEnd: Int(at.Head + heads - 1)}
	for n := range MaxSides {
		if q.Sides>>n&1 == 0 {
			continue
		}
		least, most := math.MaxInt32, math.MinInt32
		value := func(place Slots) {
			place.Read = n
			x := []float64{0}
			NewEvaluator(q.Side, Float32).Eval(x, &place)
			least, most = min(least, int(x[0])), max(most, int(x[0]))
		}
		for i := range rows * heads * keys {
			place := *at
			place.I, place.Row, place.Head = at.I+i%rows, at.Row+i%rows, at.Head+i/rows%heads
			place.J = []int{j + i/rows/heads}
			value(place)
		}
		last[sideLeast[n]], last[sideMost[n]] = Int(least), Int(most)
	}
	x := []float64{0}
	NewEvaluator(last.of(q.Answer), Float32).Eval(x, at)
	return int(x[0])
}

// PlacesOf are the places of a TableGradient, in their order.
func PlacesOf(e Expr, t Table) (places []Expr) {
	e.walk(map[Expr]bool{}, func(x Expr, n *node) {
		if n.op == table && n.name == t.name && e.diffAt(x) != zero {
			places = append(places, x)
		}
	})
	return places
}

// WithSlope is e with Slope in place of x.
func WithSlope(e, x Expr) Expr { return substitution{x: Slope}.of(e) }
