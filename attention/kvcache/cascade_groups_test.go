package kvcache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The groups save as many keys as those of the best of all divisions.
func TestPrefixGroupsSaveMost(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 300 {
		shared := make([]int, 1+r.IntN(9))
		for i := range shared[1:] {
			shared[i+1] = max(0, r.IntN(6)-1)
		}
		savedBy := func(first, end int) int {
			pages := 1 << 20
			for i := first + 1; i < end; i++ {
				pages = min(pages, shared[i])
			}
			return (end - first - 1) * pages * 16
		}
		most := 0
		for cuts := range 1 << (len(shared) - 1) { // bit i: a group ends before sequence i+1
			all, first := 0, 0
			for end := 1; end <= len(shared); end++ {
				if end == len(shared) || cuts>>(end-1)&1 == 1 {
					all, first = all+savedBy(first, end), end
				}
			}
			most = max(most, all)
		}
		groups, saved := prefixGroups(shared, 16)
		require.Equal(t, most, saved, "%v", shared)
		all, next := 0, len(shared)
		for _, g := range groups {
			require.Equal(t, next, g.end)
			next = g.first
			all += savedBy(g.first, g.end)
			if g.end-g.first > 1 {
				require.Equal(t, savedBy(g.first, g.end), (g.end-g.first-1)*g.pages*16)
			}
		}
		require.Zero(t, next)
		require.Equal(t, saved, all)
	}
}
