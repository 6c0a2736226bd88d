package oracle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// One rounding that moves a whole row is one draw. Many equal ones are as many, up to one for each element,
// and one among them that is much larger is one again.
func TestDrawsOfARow(t *testing.T) {
	row, none := sizeOf([]float32{1, -1, 1, -1}), []float32{0, 0, 0, 0}
	of := func(values ...float32) RowError {
		var d draws
		for _, x := range values {
			d.round(problem.BF16, x, 2, row)
		}
		return rowError(&d, problem.BF16, none)
	}
	unit := math.Ldexp(1, -8) / math.Sqrt(3) // of 1.5, half a unit in the last place
	one := of(1.5)
	require.InDelta(t, 1, one.Draws, 1e-9)
	require.InDelta(t, 4*2*unit, one.Sum, 1e-9)
	require.InDelta(t, 4*4*unit*unit, one.Squares, 1e-9)
	require.InDelta(t, 3, of(1.5, 1.2, -1.9).Draws, 1e-9)
	require.InDelta(t, 4, of(1.5, 1.2, -1.9, 1, 1.1, 1.3).Draws, 1e-9)
	require.InDelta(t, 1, of(1.5, 1e-3, 1e-3, 1e-3).Draws, 1e-2)
	require.Equal(t, one, of(1.5, 0, 0), "0 is not rounded")
	require.Equal(t, RowError{}, of(float32(math.Inf(1))))
	stored := rowError(&draws{}, problem.BF16, []float32{1.5, 1.5, -1.5, 1.5})
	require.InDelta(t, 4, stored.Draws, 1e-9)
	require.InDelta(t, 4*unit, stored.Sum, 1e-9)
}
