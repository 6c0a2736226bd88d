package accuracy

import (
	"slices"

	"vkattn/attention"
	"vkattn/internal/score"
)

// scoreOf is the expression of a call's scores.
func scoreOf(cfg *attention.Config, a *attention.Args) score.Expr {
	return score.Options{Softcap: float64(cfg.Softcap), Bias: a.Bias != nil, ALiBi: a.ALiBi.Given()}.Score()
}

// scorer evaluates scores of slots of a row, in float64 and in float32. It serves one goroutine.
type scorer struct {
	*call
	exact, low *score.Evaluator
	slope      *score.Evaluator // of the derivative; nil where it is 1

	b, h, row int
	keys      []int     // of the slots
	s         []float64 // their scaled products
}

func (c *call) scorer() *scorer {
	w := &scorer{call: c, exact: score.NewEvaluator(c.score, nil), low: score.NewEvaluator(c.score, score.Float32)}
	if c.sloped() {
		w.slope = score.NewEvaluator(c.slope, nil)
	}
	return w
}

// sloped reports whether the derivative of the score is not 1.
func (c *call) sloped() bool { return !c.slope.Is(1) }

// at names the row, and n slots whose keys the caller sets.
func (w *scorer) at(b, h, row, n int) (keys []int) {
	w.b, w.h, w.row = b, h, row
	w.keys, w.s = slices.Grow(w.keys[:0], n)[:n], slices.Grow(w.s[:0], n)[:n]
	return w.keys
}

func (w *scorer) Number(v score.Variable) float64 {
	if v == score.I {
		return float64(w.position(w.b, w.row))
	}
	return float64(floatAt(w.a.ALiBi, w.h))
}

func (w *scorer) Load(dst []float64, v score.Variable) {
	switch v {
	case score.S:
		copy(dst, w.s)
	case score.J:
		for i, key := range w.keys {
			dst[i] = float64(key)
		}
	case score.Bias:
		for i, key := range w.keys {
			dst[i] = float64(w.bias(w.b, w.h, w.row, key))
		}
	}
}

// store turns scaled products of the slots into scores in the storage type.
func (w *scorer) store(products []float32) {
	w.take(products)
	w.low.Eval(w.s, w)
	for i, x := range w.s {
		products[i] = w.stored(float32(x))
	}
}

// slopes turns scaled products of the slots into derivatives of their scores.
func (w *scorer) slopes(products []float32) {
	w.take(products)
	w.slope.Eval(w.s, w)
	for i, x := range w.s {
		products[i] = float32(x)
	}
}

func (w *scorer) take(products []float32) {
	for i, x := range products {
		w.s[i] = float64(x)
	}
}

// slot is a score and its derivative, in float64 and in the storage type.
type slot struct {
	score, slope       float64
	lowScore, lowSlope float32
}

// one evaluates one slot. exact and low are its scaled product.
func (w *scorer) one(exact float64, low float32, b, h, row, key int) slot {
	w.at(b, h, row, 1)[0] = key
	x := slot{1, 1, low, 1}
	if w.slope != nil {
		lowSlope := [1]float32{low}
		w.slopes(lowSlope[:])
		x.lowSlope = lowSlope[0]
		w.s[0] = exact
		w.slope.Eval(w.s, w)
		x.slope = w.s[0]
	}
	w.s[0] = exact
	w.exact.Eval(w.s, w)
	x.score = w.s[0]
	lowScore := [1]float32{low}
	w.store(lowScore[:])
	x.lowScore = lowScore[0]
	return x
}
