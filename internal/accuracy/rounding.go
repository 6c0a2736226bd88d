package accuracy

import (
	"math"

	"vkattn/attention"
)

// RowError is what rounding makes likely in a row of a gradient: the sum of its elements' errors, each
// without its sign, the sum of their squares, and of how many independent draws they are made.
//
// It is that of a kernel that computes exactly and rounds P, dS, O and the result once, and P of 1 not at all. A rounding
// to nearest has a standard deviation of a unit in the last place over sqrt(12). The one of dS is a single draw for a
// whole row of dQ, which it moves by a multiple of a row of K. So where a row attends to one key, or one key takes nearly
// all of P, a block of thousands of elements may have one draw, and the draw of low says nothing
// about that of another kernel. Draws of different sizes count as (Σ size²)² / Σ size⁴.
type RowError struct{ Sum, Squares, Draws float64 }

// draws are independent roundings, each of which moves all elements of a row.
type draws struct {
	squares, fourths float64 // of the amounts by which they move the sum of the row
	elements         float64 // squares of the amounts by which they move its elements
}

// size is the sum of the magnitudes of a row, and of their squares.
type size struct{ sum, squares float64 }

func sizeOf(row []float32) (s size) {
	for _, x := range row {
		s.sum += math.Abs(float64(x))
		s.squares += float64(x) * float64(x)
	}
	return s
}

// round adds a rounding of x, by which factor times a row of this size is multiplied.
func (d *draws) round(stored attention.DType, x, factor float32, row size) {
	if x != 0 {
		d.move(float64(factor)*deviation(stored, float64(x)), row)
	}
}

// roundsToOne reports whether P, which has been rounded, is 1. Then its rounding is no draw of dV. The rounded P of
// a kernel is the number nearest to P, so that of plain attention, which comes from rounded scores, is no nearer. Where one key
// takes all of P, plain attention's own error of dV has therefore no luck that an allowance has to make up for.
func roundsToOne(p float32) bool { return p == 1 }

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

// row adds the roundings of the row itself, one for each element. low is about the row.
func (d draws) row(stored attention.DType, low []float32) RowError {
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
func deviation(stored attention.DType, x float64) float64 {
	if kind(x) != 0 {
		return math.Inf(1)
	}
	return halfUnit(stored, x) / math.Sqrt(3)
}

// likely is what rounding makes likely in a block of rows.
type likely struct{ sum, sumVariance, squares, squaresVariance float64 }

func (l *likely) add(r RowError) {
	if r.Draws > 0 {
		l.join(likely{r.Sum, r.Sum * r.Sum / r.Draws, r.Squares, 2 * r.Squares * r.Squares / r.Draws})
	}
}

func (l *likely) join(m likely) {
	l.sum += m.sum
	l.sumVariance += m.sumVariance
	l.squares += m.squares
	l.squaresVariance += m.squaresVariance
}

// most is the sum of errors that one kernel in about twenty exceeds, and the sum of their squares: two standard
// deviations above the mean.
func (l *likely) most() (sum, squares float64) {
	return l.sum + 2*math.Sqrt(l.sumVariance), l.squares + 2*math.Sqrt(l.squaresVariance)
}
