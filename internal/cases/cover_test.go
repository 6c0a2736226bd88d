package cases

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every pair occurs, rows are within the limit where that is possible, and the
// rows do not change from run to run.
func TestCover(t *testing.T) {
	factors := []int{7, 5, 3, 2, 2}
	all := func(p pair) (pair, bool) { return p, true }
	cost := func(row []int) int64 { return int64(row[0] * row[1]) }
	rows := cover(factors, all, cost, 8)
	require.Equal(t, rows, cover(factors, all, cost, 8))
	seen := map[pair]bool{}
	for _, row := range rows {
		for b := range row {
			for a := range b {
				seen[pair{a, row[a], b, row[b]}] = true
			}
		}
		require.True(t, cost(row) <= 8 || row[0]*row[1] > 8, fmt.Sprint(row))
	}
	want := 0
	for b := range factors {
		for a := range b {
			want += factors[a] * factors[b]
		}
	}
	require.Len(t, seen, want)
	require.Less(t, len(rows), 60, "35 are needed at least, of %d", 7*5*3*2*2)
}
