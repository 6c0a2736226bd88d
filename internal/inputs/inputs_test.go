package inputs_test

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
)

func TestSameBytesOnAnyNumberOfCPUs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, dt := range attention.DTypes() {
		runtime.GOMAXPROCS(1)
		one := inputs.New(100_003, dt, inputs.Normal, 5)
		runtime.GOMAXPROCS(7)
		require.True(t, bytes.Equal(one, inputs.New(100_003, dt, inputs.Normal, 5)), "%v", dt)
		require.False(t, bytes.Equal(one, inputs.New(100_003, dt, inputs.Normal, 6)), "%v: another seed", dt)
		require.True(t, bytes.Equal(one[:50_000], inputs.New(100_003, dt, inputs.Normal, 5)[:50_000]))
	}
}

func TestDistributionsHaveTheirMoments(t *testing.T) {
	const n = 1 << 20
	for _, c := range []struct {
		d        inputs.Distribution
		variance float64
		bound    float64
	}{{inputs.Normal, 1, 8}, {inputs.Uniform, 1.0 / 3, 1}} {
		v := make([]float32, n)
		half.DecodeF32(v, inputs.New(n, attention.F32, c.d, 1))
		var sum, sq, most float64
		for _, f := range v {
			sum += float64(f)
			sq += float64(f) * float64(f)
			most = max(most, math.Abs(float64(f)))
		}
		require.InDelta(t, 0, sum/n, 5/math.Sqrt(n))
		require.InDelta(t, c.variance, sq/n, 0.01)
		require.LessOrEqual(t, most, c.bound)
	}
}

func BenchmarkFill(b *testing.B) {
	dst := make([]byte, 2<<22)
	for b.Loop() {
		inputs.Fill(dst, attention.F16, inputs.Normal, 1)
	}
	b.ReportMetric(float64(len(dst)/2)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}
