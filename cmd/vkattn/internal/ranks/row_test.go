package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestComputeWithoutTransfers(t *testing.T) {
	x := &Timed{Ms: bench.Summary{Median: 10}}
	require.Empty(t, x.setCompute(9))
	require.Equal(t, []float64{9, 1}, []float64{x.ComputeMs, x.ExposedMs})
	x = &Timed{Ms: bench.Summary{Median: 10}}
	require.Contains(t, x.setCompute(5783.9), "without transfers a call took 5.78e+03 ms, with them 10")
	require.Zero(t, x.ComputeMs+x.ExposedMs)
}
