package oracle_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// The credit is for scores in the thousands: next to nothing where they are
// small, and none at all for types in which low rounds scores.
func TestNoiseIsForLargeScores(t *testing.T) {
	s := attention.Shape{B: 1, Hq: 2, Sq: 40, Sk: 60}
	const d = 32
	most := func(size float32) float64 {
		tensor := func(seq int, seed uint64, size float32) attention.Tensor {
			v := make([]float32, s.Hq*seq*d)
			b := inputs.New(int64(len(v)), attention.F32, inputs.Normal, seed)
			half.DecodeF32(v, b)
			for i := range v {
				v[i] *= size
			}
			half.EncodeF32(b, v)
			return attention.Tensor{Host: b}
		}
		cfg := attention.Config{DType: attention.F32, HeadDim: d}
		a := attention.Args{Shape: s, Q: tensor(s.Sq, 1, size), K: tensor(s.Sk, 2, size), V: tensor(s.Sk, 3, 1)}
		noise, lse, err := oracle.Noise(problem.Config(cfg), a, attention.AllRows(s))
		require.NoError(t, err)
		require.Len(t, noise, s.Hq*s.Sq*d)
		require.Len(t, lse, s.Hq*s.Sq)
		return slices.Max(noise)
	}
	require.Less(t, most(1), 2e-6)
	require.Greater(t, most(40), 1e-4)
	require.Less(t, most(40), 1e-2)
	none, _, err := oracle.Noise(problem.Config{HeadDim: d}, attention.Args{}, nil)
	require.NoError(t, err)
	require.Nil(t, none)
}
