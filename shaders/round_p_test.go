package shaders

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// roundP is toOperandA of fragment_ops.glsl on bfloat16: P rounded to storage.
func roundP(bits uint32) uint32 { return min(bits+0x8000, 0x7f800000) & 0xffff0000 }

// In bfloat16 P of a NaN score becomes Inf, never a finite number: the row sum is then Inf,
// and the epilogues make the row NaN. exp2 on NVIDIA returns NaN as 0x7fffffff (PTX ISA,
// floating-point instructions). A NaN from 0xffff8000 on would wrap around to 0.
func TestRoundedPOfNaN(t *testing.T) {
	source, err := os.ReadFile("fragment_ops.glsl")
	require.NoError(t, err)
	require.Contains(t, string(source), "min(floatBitsToUint(x[e]) + 0x8000u, 0x7f800000u) & 0xffff0000u", "what roundP does")
	finite := func(bits uint32) bool { return bits&0x7f800000 != 0x7f800000 }
	for nan := uint32(0x7f800001); nan <= 0x7fffffff; nan++ {
		if finite(roundP(nan)) {
			t.Fatalf("NaN %#x becomes %#x", nan, roundP(nan))
		}
	}
	for nan := uint32(0xff800001); nan != 0; nan++ {
		if wraps := nan >= 0xffff8000; finite(roundP(nan)) != wraps {
			t.Fatalf("NaN %#x becomes %#x", nan, roundP(nan))
		}
	}
	for _, p := range []float32{0, 0x1p-126, 0x1p-24, 0x1.fe8p-1, 0x1.ffp-1, 1, 1.00390625, 255.9, 256} { // P is at most 2^8
		got := math.Float32frombits(roundP(math.Float32bits(p)))
		require.InDelta(t, p, got, float64(p)/256, "%v", p)
	}
}
