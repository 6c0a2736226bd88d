package attention

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
)

func TestPlanCacheFindsPlansByRange(t *testing.T) {
	var c planCache
	at := func(b, sk int) plan.Request { return plan.Request{Shape: Shape{B: b, Hq: 8, Hkv: 8, Sq: 1, Sk: sk}} }
	require.Nil(t, c.of(at(1, 5)))
	short, long, other := &prepared{}, &prepared{splits: 1}, &prepared{splits: 2}
	splitting := plan.SplittingOf(1)
	c.add(at(1, 5), plan.KeyRange{From: 1, Below: 100}, splitting, short)
	c.add(at(1, 100), plan.KeyRange{From: 100, Below: math.MaxInt}, splitting, long)
	c.add(at(2, 7), plan.KeyRange{From: 7, Below: 8}, splitting, other)
	for sk, want := range map[int]*prepared{1: short, 99: short, 100: long, 1 << 20: long} {
		require.Same(t, want, c.of(at(1, sk)), "%d", sk)
	}
	require.Same(t, other, c.of(at(2, 7)))
	require.Nil(t, c.of(at(2, 8)))
	c.add(at(2, 7), plan.KeyRange{From: 7, Below: 8}, splitting, short)
	require.Same(t, short, c.of(at(2, 7)), "replaced")
	require.Equal(t, 3, c.size)
}

// A full cache drops a few plans, not all of them.
func TestPlanCacheEvicts(t *testing.T) {
	var c planCache
	for b := range 3 * maxPlans {
		r := plan.Request{Shape: Shape{B: b + 1, Sk: 1}}
		c.add(r, plan.KeyRange{From: 1, Below: 2}, plan.SplittingOf(1), &prepared{})
		require.NotNil(t, c.of(r))
		require.Equal(t, min(b+1, maxPlans), c.size)
	}
	require.Len(t, c.byRequest, maxPlans)
	c.clear()
	require.Zero(t, c.size)
}
