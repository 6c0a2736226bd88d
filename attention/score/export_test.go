package score

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

// AnswerOf is what Tiles says of a tile: rows and heads from `at` to the ends, keys from j to jLast.
func AnswerOf(answer Expr, at *Slots, j, iLast, jLast, rowLast, headLast int) int {
	e := substitution{J: Int(j), iEnd: Int(iLast), jEnd: Int(jLast), rowEnd: Int(rowLast), headEnd: Int(headLast)}.of(answer)
	x := []float64{0}
	NewEvaluator(e, nil).Eval(x, at)
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
