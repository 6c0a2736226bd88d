package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/monitor"
)

// cappedGPU is at its power limit.
type cappedGPU struct{}

func (cappedGPU) Read() monitor.Reading {
	return monitor.Reading{SMMHz: 1500, MemoryMHz: 3201, PowerWatts: 699, LimitWatts: 700, Celsius: 60, Throttle: monitor.PowerCap}
}

func (cappedGPU) Close() {}

func TestThrottledRowsAreMarked(t *testing.T) {
	b := &Bench{Timing: Timing{Repeats: 2}, Monitor: monitor.Start(cappedGPU{}, nil, time.Hour)}
	defer b.Monitor.Close()
	timed := func(onCPU bool) *Row {
		g := &group{Bench: b}
		c := &candidate{row: &Row{}, onCPU: onCPU, run: func(_ context.Context, n int) ([]time.Duration, error) {
			times := make([]time.Duration, n)
			for i := range times {
				times[i] = time.Millisecond
			}
			return times, nil
		}}
		require.NoError(t, g.batch(t.Context(), c))
		g.finish(c)
		return c.row
	}
	row := timed(false)
	require.Equal(t, "power cap in 100 % of the readings", row.Unsteady)
	require.Equal(t, &Clock{SMMHz: 1500, MemoryMHz: 3201, PowerWatts: 699, Celsius: 60}, row.Clock)
	require.Equal(t, 1, row.GPU.During.Readings)
	row = timed(true)
	require.Empty(t, row.Unsteady)
	require.Nil(t, row.GPU, "the row does not use the GPU")
}
