package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestDropoutIsAProbabilityBelowOne(t *testing.T) {
	for _, p := range []float32{1, 1.5, -0.1, float32(math.NaN()), float32(math.Inf(1))} {
		var wrong *attention.ShapeError
		require.ErrorAs(t, attention.Config{HeadDim: 8, Dropout: p}.Validate(), &wrong)
		require.Equal(t, "Dropout", wrong.Field)
	}
	require.NoError(t, attention.Config{HeadDim: 8, Dropout: 1 - 0x1p-24}.Validate())
}

func TestDropoutOfQuantizedKeysIsRefused(t *testing.T) {
	cfg := attention.Config{HeadDim: 32, KeyType: attention.KVQ8_0, ValueType: attention.KVQ8_0, Dropout: 0.5}
	host := attention.Tensor{Host: make([]byte, 64)}
	err := attention.CheckArgs(cfg, attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}, Q: host, K: host, V: host, O: attention.Tensor{Host: make([]byte, 64)}})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "Dropout")
}

func TestDropoutMaskWithoutDropoutIsOnes(t *testing.T) {
	mask, err := attention.DropoutMask(attention.Config{HeadDim: 8}, attention.Args{Shape: attention.Shape{B: 2, Hq: 1, Sq: 3, Sk: 5}, DropoutSeed: 3})
	require.NoError(t, err)
	require.Len(t, mask, 30)
	require.NotContains(t, mask, byte(0))
	_, err = attention.DropoutMask(attention.Config{HeadDim: 8}, attention.Args{})
	require.ErrorIs(t, err, attention.ErrInvalid)
}
