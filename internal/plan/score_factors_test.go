package plan

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// Whatever scale and softcap a Config has, kernels get finite numbers that no device flushes,
// or the scale is refused.
func TestFactorsAreNormalNumbers(t *testing.T) {
	normal := func(x float32) bool { return math.Abs(float64(x)) >= leastNormal && !math.IsInf(float64(x), 0) }
	for e := -149; e < 128; e++ {
		for _, m := range []float64{1, 1.3, 1.5, 2 - 0x1p-23} {
			x := float32(math.Ldexp(m, e))
			for _, scale := range []float32{x, -x} {
				c := problem.Config{HeadDim: 64, Scale: problem.ScaleOf(scale), Softcap: x}
				require.NoError(t, c.Validate())
				if float64(x)*math.Log2E > math.MaxFloat32 {
					err := CheckScale(&c)
					var shape *problem.ShapeError
					require.ErrorAs(t, err, &shape)
					require.Equal(t, "Scale", shape.Field)
					require.ErrorIs(t, err, problem.ErrUnsupported)
					continue
				}
				require.NoError(t, CheckScale(&c))
				f := FactorsOf(c)
				for _, f := range []factors{f.Products, f.Natural} {
					require.True(t, f.Scale == 0 || normal(f.Scale), "%v", c)
					require.True(t, normal(f.Softcap), "%v", c)
					require.True(t, normal(f.UnitHigh), "%v", c)
				}
				require.True(t, normal(f.Products.Scale))
				require.Equal(t, math.Signbit(float64(scale)), math.Signbit(float64(f.Products.Scale)))
				require.False(t, math.IsInf(7.5/math.Abs(float64(f.Products.Scale)), 0))
			}
		}
	}
}
