package score

// Row has the variables of some slots of a row.
type Row interface {
	// Number returns a variable that is the same for all keys.
	Number(v Variable) float64
	// Load sets dst to a variable of each slot.
	Load(dst []float64, v Variable)
}

// Evaluator evaluates an expression row by row. It serves one goroutine.
type Evaluator struct {
	e     Expr
	round func(float64) float64
	free  [][]float64
	n     int // slots of the row
	row   Row
}

// NewEvaluator returns an evaluator. round, if any, rounds the result of each operation: with the
// rounding to float32 the result is the one of float32 arithmetic, since float64 holds the
// operands exactly and more than twice their digits.
func NewEvaluator(e Expr, round func(float64) float64) *Evaluator {
	return &Evaluator{e: e, round: round}
}

// Float32 rounds to float32.
func Float32(x float64) float64 { return float64(float32(x)) }

// Eval sets dst to the expression at each slot of a row. dst may be what Load reads.
func (w *Evaluator) Eval(dst []float64, row Row) {
	w.n, w.row = len(dst), row
	x, v := w.eval(w.e.n)
	if v == nil {
		for i := range dst {
			dst[i] = x
		}
		return
	}
	copy(dst, v)
	w.free = append(w.free, v)
}

// eval returns a number for all slots, or a slice that the caller gives back.
func (w *Evaluator) eval(n *node) (x float64, v []float64) {
	switch n.op {
	case constant:
		return n.x, nil
	case variable:
		if !variables[n.v].ofKeys {
			return w.row.Number(n.v), nil
		}
		v = w.slice()
		w.row.Load(v, n.v)
		return 0, v
	}
	x, v = w.eval(n.args[0].n)
	if n.op.one != nil {
		if v == nil {
			return w.rounded(n.op.one(x)), nil
		}
		for i, x := range v {
			v[i] = n.op.one(x)
		}
		return 0, w.roundAll(v)
	}
	y, u := w.eval(n.args[1].n)
	f := n.op.two
	switch {
	case v == nil && u == nil:
		return w.rounded(f(x, y)), nil
	case u == nil:
		for i, x := range v {
			v[i] = f(x, y)
		}
	case v == nil:
		v, u = u, nil
		for i, y := range v {
			v[i] = f(x, y)
		}
	default:
		for i, x := range v {
			v[i] = f(x, u[i])
		}
		w.free = append(w.free, u)
	}
	return 0, w.roundAll(v)
}

func (w *Evaluator) rounded(x float64) float64 {
	if w.round == nil {
		return x
	}
	return w.round(x)
}

func (w *Evaluator) roundAll(v []float64) []float64 {
	if w.round != nil {
		for i, x := range v {
			v[i] = w.round(x)
		}
	}
	return v
}

// slice returns scratch memory for a number of each slot.
func (w *Evaluator) slice() []float64 {
	if last := len(w.free) - 1; last >= 0 {
		v := w.free[last]
		w.free = w.free[:last]
		if cap(v) >= w.n {
			return v[:w.n]
		}
	}
	return make([]float64, w.n, 2*w.n)
}
