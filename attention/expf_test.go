package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestExpf(t *testing.T) {
	worst := 0.0
	for b := math.Float32bits(-1e-30); b < math.Float32bits(-87.3); b += 97 {
		x := math.Float32frombits(b)
		want := math.Exp(float64(x))
		unit := math.Ldexp(1, int(math.Floor(math.Log2(want)))-23)
		worst = max(worst, math.Abs(float64(attention.Expf(x))-want)/unit)
	}
	t.Logf("worst error %.3f units in the last place", worst)
	require.Less(t, worst, 2.0)
	require.Equal(t, float32(1), attention.Expf(0))
	require.Zero(t, attention.Expf(-88))
	require.Zero(t, attention.Expf(float32(math.Inf(-1))))
	nan := attention.Expf(float32(math.NaN()))
	require.True(t, nan != nan)
}
