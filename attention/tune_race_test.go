package attention

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// track is a race of candidates with known times.
type track struct {
	times []time.Duration
	noise float64
	fails map[int]error
	runs  []int
	order []int
	spent time.Duration
	limit time.Duration
}

func (k *track) race() *race {
	random := rand.New(rand.NewPCG(1, 1))
	k.runs = make([]int, len(k.times))
	return &race{
		run: func(ctx context.Context, i, n int) ([]time.Duration, error) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := k.fails[i]; err != nil {
				return nil, err
			}
			k.order = append(k.order, i)
			out := make([]time.Duration, n)
			for j := range out {
				out[j] = time.Duration(float64(k.times[i]) * (1 + k.noise*random.Float64()))
				k.spent += out[j]
			}
			k.runs[i] += n
			return out, nil
		},
		over: func() bool { return k.limit > 0 && k.spent > k.limit },
	}
}

func ms(n ...float64) (out []time.Duration) {
	for _, x := range n {
		out = append(out, time.Duration(x*float64(time.Millisecond)))
	}
	return out
}

func TestTheFastestWins(t *testing.T) {
	k := &track{times: ms(5, 7, 3, 4, 9, 3.2, 20, 6, 8, 3.1), noise: 0.02}
	all, winner, err := k.race().hold(context.Background(), len(k.times))
	require.NoError(t, err)
	require.Equal(t, 2, winner)
	require.True(t, all[0].final, "the heuristic's tile is timed to the end")
	require.Greater(t, k.runs[2], k.runs[7])
	require.Less(t, k.runs[6], k.runs[7], "out after its first turn")
	require.False(t, all[4].final)
	require.Equal(t, []int{0, 1, 2, 3}, k.order[:4], "they take turns")
	require.InDelta(t, 3, float64(all[2].median)/1e6, 0.1)
}

// No finalist always runs behind the same one, or always first.
func TestFinalistsTakeTurnsInBalancedOrder(t *testing.T) {
	k := &track{times: ms(5, 7, 3, 4, 9, 3.2, 20, 6, 8, 3.1), noise: 0.02}
	_, _, err := k.race().hold(context.Background(), len(k.times))
	require.NoError(t, err)
	final := k.order[len(k.order)-finalTurns*finalists:]
	first, follows := map[int]int{}, map[[2]int]int{}
	for at, i := range final {
		if at%finalists == 0 {
			first[i]++
		} else {
			follows[[2]int{final[at-1], i}]++
		}
	}
	require.Len(t, first, finalists, "%v", final)
	for i, n := range first {
		require.Equal(t, finalTurns/finalists, n, "candidate %d begins: %v", i, final)
	}
	require.Len(t, follows, finalists*(finalists-1), "%v", final)
	for pair, n := range follows {
		require.Equal(t, finalTurns/finalists, n, "%v: %v", pair, final)
	}
}

// Within the noise the heuristic's tile, which needs no cache, wins.
func TestTheHeuristicStaysUnlessBeaten(t *testing.T) {
	for _, c := range []struct {
		other float64
		want  int
	}{{0.995, 0}, {0.98, 1}, {1.2, 0}} {
		k := &track{times: ms(1, c.other)}
		_, winner, err := k.race().hold(context.Background(), 2)
		require.NoError(t, err)
		require.Equal(t, c.want, winner, "%v", c.other)
	}
	k := &track{times: ms(1)}
	_, winner, err := k.race().hold(context.Background(), 1)
	require.NoError(t, err)
	require.Zero(t, winner)
}

func TestOutOfTimeTheBestSoFarWins(t *testing.T) {
	k := &track{times: ms(50, 40, 30, 20, 10), limit: 100 * time.Millisecond}
	all, winner, err := k.race().hold(context.Background(), 5)
	require.NoError(t, err)
	require.Equal(t, 2, winner)
	require.Zero(t, all[4].median, "never timed")
	require.Zero(t, all[4].runs)
	require.Less(t, k.spent, 200*time.Millisecond)
	// The heuristic's tile is timed even if there is no time at all.
	k = &track{times: ms(50, 40), limit: 1}
	k.spent = 2
	all, winner, err = k.race().hold(context.Background(), 2)
	require.NoError(t, err)
	require.Zero(t, winner)
	require.NotZero(t, all[0].median)
}

func TestACandidateThatFailsIsOut(t *testing.T) {
	k := &track{times: ms(5, 1, 4), fails: map[int]error{1: errors.New("no")}}
	all, winner, err := k.race().hold(context.Background(), 3)
	require.NoError(t, err)
	require.Equal(t, 2, winner)
	require.EqualError(t, all[1].err, "no")
	// A failure of the heuristic's tile too.
	k = &track{times: ms(5, 6, 7), fails: map[int]error{0: errors.New("no")}}
	_, winner, err = k.race().hold(context.Background(), 3)
	require.NoError(t, err)
	require.Equal(t, 1, winner)
	k = &track{times: ms(5), fails: map[int]error{0: errors.New("no")}}
	_, _, err = k.race().hold(context.Background(), 1)
	require.EqualError(t, err, "no")
}

func TestALostDeviceEndsTheRace(t *testing.T) {
	k := &track{times: ms(5, 1), fails: map[int]error{1: fmt.Errorf("wait: %w", vk.ErrDeviceLost)}}
	_, _, err := k.race().hold(context.Background(), 2)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k = &track{times: ms(5, 1)}
	_, _, err = k.race().hold(ctx, 2)
	require.ErrorIs(t, err, context.Canceled)
}
