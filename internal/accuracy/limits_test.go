package accuracy

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/oracle"
)

func TestHalfUnitInTheLastPlace(t *testing.T) {
	for _, c := range []struct {
		t    attention.DType
		v    float64
		want float64
	}{
		{attention.F16, 1, 0x1p-11},
		{attention.F16, -1.99, 0x1p-11},
		{attention.F16, 0.99, 0x1p-12},
		{attention.F16, 65504, 16},
		{attention.F16, 0x1p-14, 0x1p-25},
		{attention.F16, 0x1p-20, 0x1p-25},
		{attention.F16, 0, 0x1p-25},
		{attention.BF16, 1.5, 0x1p-8},
		{attention.BF16, 3, 0x1p-7},
		{attention.F32, -1, 0x1p-24},
		{attention.F32, 0, 0x1p-150},
	} {
		require.Equal(t, c.want, oracle.HalfUnit(c.t, c.v), "%v %v", c.t, c.v)
	}
}

func TestSlackFadesWithTheSampleSize(t *testing.T) {
	require.InDelta(t, 8.75, slack(1), 1e-12)
	require.Equal(t, 1.25, slack(256))
	require.Equal(t, 1.0, slack(1024))
	require.Equal(t, 1.0, slack(math.MaxInt32))
}

func TestLimitsAreThoseOfTheRules(t *testing.T) {
	require.Equal(t, Limits{Stored: attention.F16, MaxFactor: 2, MaxFloor: 1e-5, MeanFactor: 1.5, MeanFloor: 1e-6, NMSE: 1e-5, NMSEFactor: 4}, Forward(attention.F16))
	require.Equal(t, 1e-4, Forward(attention.BF16).NMSE)
	require.Equal(t, 1e-10, Forward(attention.F32).NMSE)
	require.Equal(t, Limits{Stored: attention.BF16, MaxFactor: 3, MaxFloor: 1e-4, MeanFactor: 1.5, MeanFloor: 1e-6, NMSE: 1e-4, NMSEFactor: 4}, Gradient(attention.BF16))
	require.Equal(t, attention.F32, ForwardLSE(attention.F16).Stored)
}
