package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// inUnits is how far got is from want, in units of float32's last place.
func inUnits(got float32, want float64) float64 {
	unit := math.Ldexp(1, int(math.Floor(math.Log2(math.Abs(want))))-23)
	return math.Abs(float64(got)-want) / unit
}

func TestExpf(t *testing.T) {
	testlevel.OnceOnly(t)
	attention.EachKernelSet(t, func(t *testing.T, _ string) {
		worst := 0.0
		for b := math.Float32bits(-1e-30); b < math.Float32bits(-87.3); b += 97 {
			x := math.Float32frombits(b)
			worst = max(worst, inUnits(attention.Expf(x), math.Exp(float64(x))))
		}
		t.Logf("worst error %.3f units in the last place", worst)
		require.Less(t, worst, 2.0)
		require.Equal(t, float32(1), attention.Expf(0))
		require.Zero(t, attention.Expf(-88))
		require.Zero(t, attention.Expf(float32(math.Inf(-1))))
		nan := attention.Expf(float32(math.NaN()))
		require.True(t, nan != nan)
	})
}

func TestTanhf(t *testing.T) {
	testlevel.OnceOnly(t)
	attention.EachKernelSet(t, func(t *testing.T, _ string) {
		worst := 0.0
		for b := math.Float32bits(1e-30); b < math.Float32bits(100); b += 997 {
			x := math.Float32frombits(b)
			got := attention.Tanhf(x)
			require.Equal(t, -got, attention.Tanhf(-x))
			worst = max(worst, inUnits(got, math.Tanh(float64(x))))
		}
		t.Logf("worst error %.3f units in the last place", worst)
		require.Less(t, worst, 3.0)
		for _, x := range []float64{0, math.Copysign(0, -1), 1e-45, math.MaxFloat32, math.Inf(1), math.Inf(-1)} {
			require.Equal(t, float32(math.Tanh(x)), attention.Tanhf(float32(x)), "%v", x)
		}
		nan := attention.Tanhf(float32(math.NaN()))
		require.True(t, nan != nan)
	})
}
