package grid

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// The parts of a grid have every head of every batch once, and none is larger than a dispatch
// or has parts of two groups.
func TestPartsCoverTheGrid(t *testing.T) {
	r := rand.New(rand.NewPCG(testlevel.Seed(t), 0))
	for range 2000 {
		p := Parts{Group: 1 + r.IntN(6), Batches: 1 + r.IntN(9), MostHeads: 1 + r.IntN(9), MostBatches: 1 + r.IntN(9)}
		p.Heads = p.Group * (1 + r.IntN(5))
		parts, seen := p, map[[2]int]bool{}
		n := 0
		for part, ok := parts.Next(); ok; part, ok = parts.Next() {
			n++
			require.LessOrEqual(t, part.Heads, p.MostHeads)
			require.LessOrEqual(t, part.Batches, p.MostBatches)
			whole := part.Head%p.Group == 0 && part.Heads%p.Group == 0
			require.True(t, whole || part.Head/p.Group == (part.Head+part.Heads-1)/p.Group, "%v of %v", part, p)
			for b := range part.Batches {
				for h := range part.Heads {
					at := [2]int{part.Batch + b, part.Head + h}
					require.False(t, seen[at])
					seen[at] = true
				}
			}
		}
		require.Len(t, seen, p.Heads*p.Batches)
		require.Equal(t, n, p.Count())
		require.Equal(t, n == 1, p.One() || n == 1 && p.Heads <= p.MostHeads)
	}
}
