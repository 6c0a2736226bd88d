package accuracy_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// Two keys of equal weight, whose values are -127 and 10 times 0.0356.
func TestRoundedIsOfTheLargestValueByItsWeight(t *testing.T) {
	const d, scale = 32, 0.0356
	floats := func(x ...float32) []byte {
		var b []byte
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	k, v := make([]byte, 2*d), make([]byte, 2*d)
	for i := range d {
		v[i], v[d+i] = 0x81, 10
	}
	a := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 2},
		Q: attention.Tensor{Host: make([]byte, 4*d)}, K: attention.Tensor{Host: k}, V: attention.Tensor{Host: v},
		KScale: attention.Vector{Host: floats(1, 1)}, VScale: attention.Vector{Host: floats(scale, scale)}}
	all := attention.AllRows(a.Shape)
	for _, c := range []struct {
		dtype attention.DType
		want  float64
	}{{attention.F16, 0x1p-9 / 2}, {attention.BF16, 0x1p-6 / 2}} {
		rounded, err := accuracy.Rounded(attention.Config{DType: c.dtype, HeadDim: d, KV: attention.KVInt8}, a, all)
		require.NoError(t, err)
		require.Len(t, rounded, d)
		require.InDelta(t, c.want, rounded[0], c.want/100, "half a unit of 4.5, by half")
	}
	for _, cfg := range []attention.Config{{DType: attention.F32, HeadDim: d, KV: attention.KVInt8}, {HeadDim: d}} {
		rounded, err := accuracy.Rounded(cfg, a, all)
		require.NoError(t, err)
		require.Nil(t, rounded)
	}
}

func TestRoundedCountsWithHalfAUnit(t *testing.T) {
	const n = 1024
	x, ref, low, rounded := make([]float32, n), make([]float64, n), make([]float32, n), make([]float64, n)
	for i := range n {
		x[i], ref[i], low[i], rounded[i] = 1.5, 1.5, 1.5, 0x1p-11 // and half a unit is that too
	}
	l := accuracy.Forward(attention.F16)
	l.Rounded = rounded
	x[700] = 1.5 + 0x1.9p-10
	require.True(t, accuracy.Judge(l, 32, x, ref, low).Whole.MaxOK)
	x[700] = 1.5 + 0x1.1p-9
	require.False(t, accuracy.Judge(l, 32, x, ref, low).Whole.MaxOK)
	l.Rounded = nil
	x[700] = 1.5 + 0x1.9p-10
	require.False(t, accuracy.Judge(l, 32, x, ref, low).Whole.MaxOK)
}
