package dropout

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Known answers of Philox4x32-10, published with Random123.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, x := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, [2]uint32{math.MaxUint32, math.MaxUint32},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, x.want, Philox(x.counter, x.key))
	}
}

func TestSlotsTakeTheirWords(t *testing.T) {
	m := Mask{Seed: 0x299f31d0a4093822, Offset: 0x03707344}
	words := [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}
	require.Equal(t, words, m.Words(0x13198a2e, 0x85a308d3, 0x243f6a88))
	zero := Mask{}
	for i, word := range [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8} {
		zero.Threshold = word
		require.True(t, zero.Keeps(0, 0, uint32(i)))
		zero.Threshold = word + 1
		require.False(t, zero.Keeps(0, 0, uint32(i)))
	}
}

func TestThreshold(t *testing.T) {
	for p, want := range map[float32]uint32{
		0: 0, 1e-30: 1, 0x1p-32: 1, 0.25: 1 << 30, 0.5: 1 << 31, 1 - 0x1p-24: math.MaxUint32 - 255, 1: math.MaxUint32,
		-1: 0, float32(math.NaN()): 0, float32(math.Inf(1)): math.MaxUint32,
	} {
		require.Equal(t, want, Threshold(p), p)
	}
	require.Equal(t, 2.0, Scale(0.5))
}

// The rate of dropped slots is the probability, within five standard deviations, and rows,
// heads, seeds and offsets have masks of their own.
func TestRate(t *testing.T) {
	const rows, keys = 256, 1024
	var first []bool
	for i, m := range []Mask{Of(0.1, 1, 0), Of(0.1, 2, 0), Of(0.1, 1, 1), Of(0.1, 1<<32, 0), Of(0.5, 3, 0), Of(0.9, 4, 0)} {
		p := float64(m.Threshold) / 0x1p32
		var keep []bool
		dropped := 0
		for row := range uint32(rows) {
			for key := range uint32(keys) {
				keep = append(keep, m.Keeps(0, row, key))
				if !keep[len(keep)-1] {
					dropped++
				}
			}
		}
		n := float64(len(keep))
		require.InDelta(t, n*p, dropped, 5*math.Sqrt(n*p*(1-p)), "mask %d", i)
		if i == 0 {
			first = keep
			require.NotEqual(t, keep[:keys], keep[keys:2*keys])
			continue
		}
		same := 0
		for j := range keep {
			if keep[j] == first[j] {
				same++
			}
		}
		independent := 0.9*(1-p) + 0.1*p
		require.InDelta(t, n*independent, same, 5*math.Sqrt(n/4), "mask %d", i)
	}
}
