package attention_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// The decode kernel multiplies a NaN of float8 as a number of float16. In K it still makes the row NaN, in V its column
// alone, and of a key that the row does not attend to nothing.
func TestFloat8NaNInDecode(t *testing.T) {
	dev := openCombining(t)
	s := testdevice.Stream(t, dev, "nan")
	const keys, dim, nan = 70, 64, 0x7f
	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: dim, KeyType: attention.KVFP8, ValueType: attention.KVFP8,
		Window: attention.WindowOf(49, -1), Align: attention.BottomRight, // keys 20 and on
		FixedSplit: 2, Tier: cases.OnMatrices(dev, attention.F16).Tier})
	require.NoError(t, err)
	defer func() { require.NoError(t, op.Close()) }()
	memory := func(b []byte) *vk.Buffer { return testdevice.Upload(t, s, b)[0] }
	const one16, one8 = 0x3c00, 0x38
	ones := bytes.Repeat([]byte{one8}, keys*dim)
	scales := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, 0x3f800000), keys)
	scale := attention.Vector{Buffer: memory(scales)}
	q, o := memory(bytes.Repeat(binary.LittleEndian.AppendUint16(nil, one16), dim)), memory(make([]byte, 2*dim))
	for _, c := range []struct {
		name   string
		k, v   int // the element that is NaN, -1: none
		isNaNs func(col int) bool
	}{
		{"none", -1, -1, func(int) bool { return false }},
		{"K", 30*dim + 7, -1, func(int) bool { return true }},
		{"V", -1, 40*dim + 5, func(col int) bool { return col == 5 }},
		{"not attended to", 3 * dim, 4*dim + 9, func(int) bool { return false }},
	} {
		k, v := slices.Clone(ones), slices.Clone(ones)
		if c.k >= 0 {
			k[c.k] = nan
		}
		if c.v >= 0 {
			v[c.v] = nan | 0x80
		}
		a := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: keys}, KScale: scale, VScale: scale,
			Q: attention.Tensor{Buffer: q}, K: attention.Tensor{Buffer: memory(k)},
			V: attention.Tensor{Buffer: memory(v)}, O: attention.Tensor{Buffer: o}}
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		got := testdevice.Download(t, s, o)[0]
		for col := range dim {
			x := binary.LittleEndian.Uint16(got[2*col:])
			if c.isNaNs(col) {
				require.Greater(t, x&0x7fff, uint16(0x7c00), "%s, column %d", c.name, col)
			} else {
				require.Equal(t, uint16(one16), x, "%s, column %d", c.name, col)
			}
		}
	}
}
