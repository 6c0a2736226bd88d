package oracle

import (
	"math"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// What rounding makes likely in gradients. The results of LowBackward have one draw of each
// rounding, which is often small in a row or a key that matters.

// Gradient is what a gradient, or some of its rows, are judged by.
//
// Noise has an error for each element: the least that the error of low counts as. For f32 it is the error to expect because float32 cannot hold large scores better, as [Noise] is
// for O. To first order a score's error e moves its P by e P (1 - P), and delta by the sum of
// e P |dP - delta|. A dP and delta, a dot product with a rounded O, are off by as much of their
// size as scores are, and differ by less than that where one key takes most of P. The errors of n
// dP with equal P add up to sqrt(n) times one.
//
// For the 16-bit types it is what rounding O does. With r the amounts by which the elements of O
// are rounded, of either sign, delta of a row has a standard deviation of sqrt(Σ (dO r)²). It is
// one draw for all keys of the row. So its error e counts as twice that deviation, and the error of
// dX as P e. It moves dQ by e |scale Σ P K|, and the draws of rows add up in dK, dBias and dSinks
// to the root of the sum of their squares.
type Gradient struct {
	Ref    []float64 // the reference
	Low    []float32
	Noise  []float64  // nil: none
	Errors []RowError // of the rows of dQ, dK and dV, for the 16-bit types the same in each row; nil for f32
}

// RowError is what rounding makes likely in a row of O or of a gradient: the sum of its elements' errors, each
// without its sign, the sum of their squares, and of how many independent draws they are made.
//
// It is the error of a kernel that computes exactly and rounds P, dS, O and the result once, and P of 1 not at all.
// A rounding to nearest has a standard deviation of a unit in the last place over sqrt(12). The one of dS is a
// single draw for a whole row of dQ, which it moves by a multiple of a row of K. So where a row attends to one key,
// or one key takes nearly all of P, a block of thousands of elements may have one draw, and the draw of low says
// nothing about that of another kernel. Draws of different sizes count as (Σ size²)² / Σ size⁴.
type RowError struct{ Sum, Squares, Draws float64 }

// roundings adds up what rounding makes likely while a backward call is computed. A slice is nil
// where nobody asks for it.
type roundings struct {
	cfg   *problem.Config
	noisy bool // scores and dP are: float32
	scale float32
	noise struct{ DQ, DK, DV, DBias, DSinks []float64 } // sums of squares in the 16-bit types, but for DQ
	sinks []float64                                     // [B, Hq]: what each sequence adds to DSinks

	dQ, dK, dV []draws // of the rows; nil in float32
}

// newRoundings has room for all results of a call. whole: float32 has noise.
func newRoundings[T number](c *backward[T], whole bool) *roundings {
	cfg := c.Cfg
	r := &roundings{cfg: cfg, noisy: whole && cfg.DType == problem.F32, scale: cfg.ScaleValue()}
	r.noise.DQ, r.noise.DK, r.noise.DV = make([]float64, len(c.dQ)), make([]float64, len(c.dK)), make([]float64, len(c.dV))
	r.noise.DBias, r.noise.DSinks = make([]float64, len(c.dBias)), make([]float64, len(c.dSinks))
	for i := range c.tables {
		c.tables[i].noise = make([]float64, len(c.tables[i].sums))
	}
	r.sinks = make([]float64, len(c.sinks))
	if cfg.DType != problem.F32 {
		r.dQ, r.dK, r.dV = make([]draws, len(c.dQ)/cfg.HeadDim), make([]draws, len(c.dK)/cfg.HeadDim), make([]draws, len(c.dV)/cfg.ValueDim())
	}
	return r
}

// rowRoundings are the roundings of a row.
type rowRoundings struct {
	scoreError float64   // 0 where it does not count
	deltaError float64   // of delta, in the 16-bit types
	spread     float64   // of delta, for scores that are off by 1
	noise      []float64 // of dS; nil: none
	meanKey    []float64 // Σ P K, with slopes
	sizeQ      size      // of the row of Q
	sizeDO     size      // of the row of dO
}

// beginRow reads a row's sizes.
func beginRow[T number](r *row[T], scoreError float64) {
	r.rowRoundings = rowRoundings{sizeQ: sizeOf(r.q), sizeDO: sizeOf(r.dO)}
	if scoreError > leastNoise {
		r.scoreError = scoreError
	}
}

// addValue adds a slot's part in dV of a key, the number of whose row is at. Where P is 1 as stored,
// its rounding is no draw: the rounded P of a kernel is the number nearest to P, and plain
// attention's, which comes from rounded scores, is no nearer. Where one key takes all of P, plain
// attention's own error of dV has therefore no luck that an allowance has to make up for.
func addValue[T number](g *roundings, r *row[T], at int, one bool, p, keep, dropped float32) {
	if len(g.dV) > 0 && !one {
		g.dV[at].round(g.cfg.DType, dropped, 1, r.sizeDO)
	}
	if g.noisy && r.scoreError > 0 {
		dv := len(r.dO)
		addSizes(g.noise.DV[at*dv:][:dv], r.scoreError*float64(keep*p*(1-p)), r.dO)
	}
}

// addScores computes the noise of dX of a row, which holds dP.
func addScores[T number](g *roundings, r *row[T]) {
	if !g.noisy {
		return
	}
	r.noise = make([]float64, len(r.dS))
	var most, squares float64 // the largest |dP|, and the sum of P²
	for i, p := range r.scores {
		if p != 0 {
			r.spread += float64(p) * math.Abs(float64(r.dS[i]-r.delta))
			most, squares = max(most, math.Abs(float64(r.dS[i]))), squares+float64(p)*float64(p)
		}
	}
	dP := math.Ldexp(most, -24) * math.Sqrt(float64(g.cfg.ValueDim())*squares) / 2
	for i, p := range r.scores {
		if p != 0 {
			r.noise[i] = float64(p) * (r.scoreError*(float64(1-p)*math.Abs(float64(r.dS[i]-r.delta+r.dLSE))+r.spread) + dP)
		}
	}
}

// addBias adds a slot's part in dBias; slope is the derivative of its score with respect to the bias.
func (g *roundings) addBias(at int, r *rowRoundings, entry int, p, slope float64) {
	if r.noise != nil {
		g.noise.DBias[at] += r.noise[entry] * math.Abs(slope)
	}
	e := r.deltaError * p * slope
	g.noise.DBias[at] += e * e
}

// addSink adds a row's part in dSinks; size is |delta - dLSE|.
func (g *roundings) addSink(at int, r *rowRoundings, p, size float64) {
	e := r.deltaError * p
	g.sinks[at] += e * e
	if r.noise != nil {
		g.sinks[at] += r.scoreError * p * (float64(1-float32(p))*size + r.spread)
	}
}

// addProduct adds a slot's part in dQ of its row and dK of a key, the number of whose row is at.
func addProduct[T number](g *roundings, r *row[T], at, entry int, p T, k []T) {
	d, q := len(k), r.q
	if r.noise != nil {
		e := math.Abs(float64(g.scale)) * r.noise[entry]
		if len(g.noise.DQ) > 0 {
			addSizes(g.noise.DQ[r.dQ*d:][:d], e, k)
		}
		if len(g.noise.DK) > 0 {
			addSizes(g.noise.DK[at*d:][:d], e, q)
		}
	}
	dS := float32(r.dS[entry])
	if len(g.dQ) > 0 {
		g.dQ[r.dQ].round(g.cfg.DType, dS, g.scale, sizeOf(k))
	}
	if len(g.dK) > 0 {
		g.dK[at].round(g.cfg.DType, dS, g.scale, r.sizeQ)
	}
	if r.deltaError == 0 || p == 0 || g.noisy {
		return
	}
	weight := float64(p)
	if len(r.slopes) > 0 {
		weight *= float64(r.slopes[entry])
	}
	if len(g.dQ) > 0 {
		if r.meanKey == nil {
			r.meanKey = make([]float64, d)
		}
		for j, x := range k {
			r.meanKey[j] += weight * float64(x)
		}
	}
	if len(g.dK) > 0 {
		e := float64(g.scale) * r.deltaError * weight
		g.dK[at].move(e/2, r.sizeQ)
		for j, x := range q {
			g.noise.DK[at*d+j] += e * e * float64(x) * float64(x)
		}
	}
}

// endRow adds what the error of delta does to a row of dQ.
func (g *roundings) endRow(at int, r *rowRoundings) {
	if r.meanKey == nil {
		return
	}
	g.dQ[at].moveDelta(float64(g.scale)*r.deltaError, r.meanKey)
	copy(g.noise.DQ[at*len(r.meanKey):], r.meanKey)
}

// likely turns the sums into what is likely.
func (g *roundings) likely(c *backward[float32]) map[string]Gradient {
	for i, x := range g.sinks {
		g.noise.DSinks[i%c.args.Hq] += x
	}
	all := map[string]Gradient{
		"dQ":     {Low: c.dQ, Noise: g.noise.DQ, Errors: g.rows(g.dQ, c.dQ)},
		"dK":     {Low: c.dK, Noise: g.noise.DK, Errors: g.rows(g.dK, c.dK)},
		"dV":     {Low: c.dV, Noise: g.noise.DV, Errors: g.rows(g.dV, c.dV)},
		"dBias":  {Low: c.dBias, Noise: g.noise.DBias},
		"dSinks": {Low: c.dSinks, Noise: g.noise.DSinks},
	}
	for i := range c.tables {
		t := &c.tables[i]
		noise := make([]float64, t.heads*t.entries)
		addHeads(noise, t.noise, c.args.Hq, t.heads, t.entries)
		all["dTables["+tensors.Tables(c.Cfg)[t.table].Name()+"]"] = Gradient{Low: c.dTables[t.table], Noise: noise}
	}
	for name, x := range all {
		for i := range x.Noise {
			if g.noisy {
				break
			}
			if name != "dQ" { // a sum of squares
				x.Noise[i] = math.Sqrt(x.Noise[i])
			}
			if !(x.Noise[i] < math.MaxFloat32) { // where inputs are not finite
				x.Noise[i] = 0
			}
		}
	}
	return all
}

// rows turns the draws of rows into their errors. low is about the rows.
func (g *roundings) rows(list []draws, low []float32) []RowError {
	if list == nil {
		return nil
	}
	errors := make([]RowError, len(list))
	for i, d := range list {
		dim := len(low) / len(list)
		errors[i] = rowError(&d, g.cfg.GradientType(), low[i*dim:][:dim])
	}
	return errors
}

// draws are independent roundings, each of which moves all elements of a row.
type draws struct {
	squares, fourths float64 // of the amounts by which they move the sum of the row
	elements         float64 // squares of the amounts by which they move its elements
}

// size is the sum of the magnitudes of a row, and of their squares.
type size struct{ sum, squares float64 }

func sizeOf[T number](row []T) (s size) {
	for _, x := range row {
		s.sum += math.Abs(float64(x))
		s.squares += float64(x) * float64(x)
	}
	return s
}

// round adds a rounding of x, by which factor times a row of this size is multiplied.
func (d *draws) round(stored problem.DType, x, factor float32, row size) {
	if x != 0 {
		d.move(float64(factor)*deviation(stored, float64(x)), row)
	}
}

// move adds a draw with a standard deviation of e.
func (d *draws) move(e float64, row size) {
	e *= e
	sum := e * row.sum * row.sum
	d.squares += sum
	d.fourths += sum * sum
	d.elements += e * row.squares
}

// moveDelta adds the draw that moves delta of a row of dQ by `twice`, twice its standard deviation times the
// scale, and turns meanKey, Σ P K of the row, into what that does to the row's elements.
func (d *draws) moveDelta(twice float64, meanKey []float64) {
	var moved size
	for j, x := range meanKey {
		e := math.Abs(twice * x)
		meanKey[j] = e
		moved.sum += e / 2
		moved.squares += e * e / 4
	}
	d.move(1, moved)
}

// rowError adds the roundings of the row itself, one for each element. low is about the row.
func rowError[T number](d *draws, stored problem.DType, low []T) RowError {
	var own size
	for _, x := range low {
		e := deviation(stored, float64(x))
		own.sum += e
		own.squares += e * e
	}
	all := d.squares + own.sum*own.sum
	// The variance of a sum of n equal draws is 1 / n of its square. A row has no more than one for each element.
	variance := max(d.fourths, d.squares*d.squares/float64(len(low))) + own.sum*own.sum*own.squares
	r := RowError{math.Sqrt(all), d.elements + own.squares, all * all / variance}
	if !(r.Squares < math.MaxFloat64 && r.Draws < math.MaxFloat64 && all < math.MaxFloat64) {
		return RowError{} // inputs are not finite
	}
	return r
}

// deviation is the standard deviation of rounding a number of the size of x.
func deviation(stored problem.DType, x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.Inf(1)
	}
	return HalfUnit(stored, x) / math.Sqrt(3)
}

// HalfUnit is half the distance between neighbours of |v| in a storage type.
func HalfUnit(t problem.DType, v float64) float64 {
	// Bits after the leading one, and the exponent of the smallest normal.
	fraction, least := 23, -126
	switch t {
	case problem.F16:
		fraction, least = 10, -14
	case problem.BF16:
		fraction = 7
	}
	exp := int(math.Float64bits(v)>>52&0x7ff) - 1023 // |v| in [2^exp, 2^(exp+1))
	return math.Float64frombits(uint64(max(exp, least)-fraction-1+1023) << 52)
}

// addSizes adds x times the magnitudes of src to dst.
func addSizes[T number](dst []float64, x float64, src []T) {
	if x == 0 {
		return
	}
	for i, y := range src {
		dst[i] += x * math.Abs(float64(y))
	}
}
