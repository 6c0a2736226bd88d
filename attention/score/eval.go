package score

import (
	"encoding/binary"
	"math"
)

// Slots are slots of one query row: the variables of an Expr. A number that a slice does not have is 0.
type Slots struct {
	S    []float64 // of each slot
	J    []int     // of each slot
	Bias []float32 // of each slot

	I, Row, Rows, Keys, B, Head, KVHead int
	Read                                int // of TableGradient
	Slope                               float64

	Tables []Memory
}

// Memory is a table in host memory. A table without memory, or with no elements, is 0 everywhere.
type Memory struct {
	Name string
	Dims [MaxRank]int // elements of each axis, the last axis fastest
	Data []byte       // little-endian int32 or float32
}

// Evaluator evaluates an expression row by row. It serves one goroutine.
type Evaluator struct {
	e     Expr
	round func(float64) float64
	free  [][]float64
	n     int // slots of the row
	at    *Slots
}

// NewEvaluator returns an evaluator. round, if any, rounds the result of each float operation: with Float32 the result is
// the one of float32 arithmetic, since float64 holds the operands exactly and more than twice their digits.
func NewEvaluator(e Expr, round func(float64) float64) *Evaluator {
	return &Evaluator{e: e, round: round}
}

// Float32 rounds to float32.
func Float32(x float64) float64 { return float64(float32(x)) }

// Eval sets dst to the expression at each slot of a row; bools are 0 and 1, and an expression with an error is NaN. dst may
// be at.S.
func (w *Evaluator) Eval(dst []float64, at *Slots) {
	if w == nil || at == nil {
		return
	}
	w.n, w.at = len(dst), at
	x, v := w.eval(w.e)
	w.at = nil
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
func (w *Evaluator) eval(e Expr) (x float64, v []float64) {
	n := e.node()
	switch n.op {
	case failure:
		return math.NaN(), nil
	case constant:
		return n.value(), nil
	case variable:
		return w.variable(e)
	case table, entry:
		return w.table(&n)
	case choose:
		return w.choose(&n)
	}
	f := n.op.f
	if n.op.n != nil && n.args[0].Type() == TypeInt {
		whole := n.op.n
		f = func(x, y float64) float64 { return float64(whole(int32(x), int32(y))) }
	}
	x, v = w.eval(n.args[0])
	var y float64
	var u []float64
	if n.args[1].Given() {
		y, u = w.eval(n.args[1])
	}
	switch {
	case v == nil && u == nil:
		return w.rounded(f(x, y), n.typ), nil
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
	if w.round != nil && n.typ == TypeFloat {
		for i, x := range v {
			v[i] = w.round(x)
		}
	}
	return 0, v
}

func (w *Evaluator) variable(e Expr) (x float64, v []float64) {
	switch e {
	case S:
		return 0, widened(w.slice(), w.at.S)
	case J:
		return 0, widened(w.slice(), w.at.J)
	case Bias:
		return 0, widened(w.slice(), w.at.Bias)
	case Slope:
		return w.at.Slope, nil
	case I:
		return float64(w.at.I), nil
	case Row:
		return float64(w.at.Row), nil
	case Rows:
		return float64(w.at.Rows), nil
	case Keys:
		return float64(w.at.Keys), nil
	case B:
		return float64(w.at.B), nil
	case Head:
		return float64(w.at.Head), nil
	case read:
		return float64(w.at.Read), nil
	}
	return float64(w.at.KVHead), nil
}

// widened sets dst to numbers, and to 0 behind them.
func widened[T int | float32 | float64](dst []float64, src []T) []float64 {
	for i, x := range src[:min(len(src), len(dst))] {
		dst[i] = float64(x)
	}
	clear(dst[min(len(src), len(dst)):])
	return dst
}

// choose takes a number of one of two expressions for each slot.
func (w *Evaluator) choose(n *node) (x float64, v []float64) {
	c, which := w.eval(n.args[0])
	if which == nil {
		return w.eval(n.args[1+int(1-c)])
	}
	x, v = w.eval(n.args[1])
	y, u := w.eval(n.args[2])
	for i, c := range which {
		switch {
		case c != 0 && v != nil:
			which[i] = v[i]
		case c != 0:
			which[i] = x
		case u != nil:
			which[i] = u[i]
		default:
			which[i] = y
		}
	}
	for _, s := range [][]float64{v, u} {
		if s != nil {
			w.free = append(w.free, s)
		}
	}
	return 0, which
}

// table reads an element for each slot, or finds its number.
func (w *Evaluator) table(n *node) (x float64, v []float64) {
	var memory Memory
	for _, m := range w.at.Tables {
		if m.Name == n.name {
			memory = m
		}
	}
	first := int(n.bits)                    // of an entry; 0 of an element
	for axis, index := range n.operands() { // the element's number, axis by axis
		size := float64(memory.Dims[first+axis])
		y, u := w.eval(index)
		if u != nil && v == nil {
			v = w.slice()
			for i := range v {
				v[i] = x
			}
		}
		for i := range v {
			if u != nil {
				y = u[i]
			}
			v[i] = v[i]*size + max(min(y, size-1), 0)
		}
		x = x*size + max(min(y, size-1), 0)
		if u != nil {
			w.free = append(w.free, u)
		}
	}
	if n.op == entry {
		return x, v
	}
	for i, at := range v {
		v[i] = memory.element(int(at), n.typ)
	}
	return memory.element(int(x), n.typ), v
}

func (m *Memory) element(at int, typ Type) float64 {
	if at < 0 || at >= len(m.Data)/4 {
		return 0
	}
	bits := binary.LittleEndian.Uint32(m.Data[4*at:])
	if typ == TypeInt {
		return float64(int32(bits))
	}
	return float64(math.Float32frombits(bits))
}

func (w *Evaluator) rounded(x float64, typ Type) float64 {
	if w.round == nil || typ != TypeFloat {
		return x
	}
	return w.round(x)
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
