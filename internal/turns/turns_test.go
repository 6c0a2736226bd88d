package turns

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A round has every row once. Over n rounds, or 2n, each row follows each other one equally often, and
// each is first equally often.
func TestOrderIsBalanced(t *testing.T) {
	require.Empty(t, Order(0, 0))
	for n := 1; n <= 9; n++ {
		rounds := n * (1 + n%2)
		follows, first := map[[2]int]int{}, map[int]int{}
		for round := range rounds {
			order := Order(n, round)
			sorted := slices.Sorted(slices.Values(order))
			for i, x := range sorted {
				require.Equal(t, i, x, "n %d, round %d: %v", n, round, order)
			}
			first[order[0]]++
			for i := 1; i < n; i++ {
				follows[[2]int{order[i-1], order[i]}]++
			}
		}
		require.Len(t, follows, n*(n-1), "n %d", n)
		for pair, times := range follows {
			require.Equal(t, 1+n%2, times, "n %d: %v", n, pair)
		}
		for row, times := range first {
			require.Equal(t, rounds/n, times, "n %d: row %d", n, row)
		}
	}
}
