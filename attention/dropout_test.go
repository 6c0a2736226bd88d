package attention_test

import (
	"encoding/binary"
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

// A state in memory moves the seed and the offset of a call. The mask is that of a call with their sums, forward and backward.
func TestDropoutStateMovesTheMask(t *testing.T) {
	for _, x := range []struct {
		seed   uint64
		offset uint32
		state  [2]uint64
		want   uint64 // seed
		moved  uint32 // offset
	}{
		{},
		{5, 7, [2]uint64{}, 5, 7},
		{5, 7, [2]uint64{1 << 40, 3}, 1<<40 + 5, 10},
		{0, 0, [2]uint64{9, 1<<33 + 2}, 11, 2},
		{1, math.MaxUint32, [2]uint64{math.MaxUint64, math.MaxUint32}, 1, math.MaxUint32 - 1},
		{0, 1, [2]uint64{4, math.MaxUint64}, 4, 0},
	} {
		c := newBackward(attention.Config{HeadDim: 16, Dropout: 0.4, Causal: attention.BottomRight}, attention.Shape{B: 2, Hq: 2, Hkv: 1, Sq: 9, Sk: 21}, layoutsByName["BSHD"], 3)
		c.DropoutSeed, c.DropoutOffset = x.want, x.moved
		mask, err := attention.DropoutMask(c.cfg, c.Args)
		require.NoError(t, err)
		reference, gradients := c.run(t), c.onCPU(t)
		words := []byte{1, 2, 3, 4}
		for _, n := range x.state {
			words = binary.LittleEndian.AppendUint64(words, n)
		}
		c.DropoutSeed, c.DropoutOffset, c.DropoutState = x.seed, x.offset, attention.Vector{Host: words, Offset: 1}
		moved, err := attention.DropoutMask(c.cfg, c.Args)
		require.NoError(t, err)
		require.Equal(t, mask, moved, "%+v", x)
		require.Equal(t, reference, c.run(t), "%+v", x)
		require.Equal(t, gradients, c.onCPU(t), "%+v", x)
		c.DropoutState.Offset = 2
		_, err = attention.DropoutMask(c.cfg, c.Args)
		require.ErrorIs(t, err, attention.ErrInvalid)
		require.ErrorContains(t, err, "DropoutState")
	}
}
