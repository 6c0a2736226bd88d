package par

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachRunsEveryPieceOnce(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 1000} {
		hits := make([]atomic.Int32, n)
		Each(n, func() func(int64) {
			return func(i int64) { hits[i].Add(1) }
		})
		for i := range hits {
			require.EqualValues(t, 1, hits[i].Load(), "piece %d of %d", i, n)
		}
	}
}

func TestPiecesCoverEveryElementInOrder(t *testing.T) {
	lengths := []int{5, 0, 3, 8}
	for size := 1; size < 10; size++ {
		at := 0
		for _, p := range Pieces(lengths, size) {
			require.Equal(t, at, p.At)
			require.Positive(t, p.Hi-p.Lo)
			require.LessOrEqual(t, p.Hi-p.Lo, size)
			require.LessOrEqual(t, p.Hi, lengths[p.List])
			at += p.Hi - p.Lo
		}
		require.Equal(t, 16, at)
	}
}
