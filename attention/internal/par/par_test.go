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
