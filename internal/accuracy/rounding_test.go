package accuracy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/oracle"
)

// A block of many draws is credited with about their mean, a block of one with three times the
// deviation, which no rounding to nearest exceeds.
func TestLikelyErrorsOfABlock(t *testing.T) {
	var one, many likely
	one.add(oracle.RowError{Sum: 1, Squares: 1, Draws: 1})
	for range 1000 {
		many.add(oracle.RowError{Sum: 1, Squares: 1, Draws: 10})
	}
	sum, squares := one.most()
	require.InDelta(t, 3, sum, 1e-9)
	require.InDelta(t, 1+2*math.Sqrt2, squares, 1e-9)
	sum, squares = many.most()
	require.InDelta(t, 1000, sum, 21)
	require.InDelta(t, 1000, squares, 29)
}

// Rule 2 and rule 3 take the larger of low's error and what rounding makes likely. In blocks whose
// errors are those of many roundings low's is the larger one, so that Rows changes nothing. Rule 1 takes the larger of
// low's error and √3 deviations of an element.
func TestRowsOfLimits(t *testing.T) {
	const width, rows = 64, 64
	r := rand.New(rand.NewPCG(1, 2))
	x, low, ref, errors := make([]float32, width*rows), make([]float32, width*rows), make([]float64, width*rows), []oracle.RowError(nil)
	for i := range ref {
		ref[i] = r.NormFloat64()
		x[i], low[i] = float32(ref[i]*(1+0.01*r.NormFloat64())), float32(ref[i]*(1+0.01*r.NormFloat64()))
	}
	for i := range rows {
		own := oracle.RowError{Draws: width}
		for _, x := range low[i*width:][:width] {
			e := oracle.HalfUnit(attention.BF16, float64(x)) / math.Sqrt(3)
			own.Sum, own.Squares = own.Sum+e, own.Squares+e*e
		}
		errors = append(errors, own)
	}
	limits := Gradient(attention.BF16)
	plain := Judge(limits, width, x, ref, low)
	limits.Rows = errors
	require.True(t, plain.Pass())
	require.Equal(t, plain, Judge(limits, width, x, ref, low))
	for i := range errors {
		errors[i] = oracle.RowError{Sum: 10, Squares: 10, Draws: 1e9}
	}
	credited := Judge(limits, width, x, ref, low)
	require.InDelta(t, 1.5*10.0/width, credited.Whole.LimMean, 1e-2)
	require.Greater(t, credited.Whole.LimNMSE, plain.Whole.LimNMSE)
	require.InDelta(t, 3*math.Sqrt(3*10.0/width), credited.Whole.LimMax, 1e-3)
	limits.Rows = errors[1:]
	require.Equal(t, "Limits.Rows has 63 rows, ref 64", Judge(limits, width, x, ref, low).Unjudged)
}
