package attention_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/host"
	"vkattn/internal/testlevel"
)

// Tier cpu has these bits on every platform: O and gradients, with AVX-512, AVX2 and FMA, NEON, and in Go. LSE takes
// a logarithm of the C library or of Go, and is rounded to half the digits here.
func TestCPUBitsAreThoseOfEveryPlatform(t *testing.T) {
	testlevel.HostOnly(t)
	if host.Kernels.Name == "plain" {
		t.Skip("a CPU without fused multiply-add has other bits")
	}
	sum := sha256.New()
	add := func(list ...[]float32) {
		for _, x := range list {
			for i := range x {
				if x[i] != x[i] {
					x[i] = 0 // a NaN may have other bits
				}
			}
			data := make([]byte, 4*len(x))
			half.EncodeF32(data, x)
			_, _ = sum.Write(data)
		}
	}
	for i, cfg := range []attention.Config{
		{DType: attention.F32, HeadDim: 64},
		{DType: attention.F16, HeadDim: 80, HeadDimV: 33, Causal: attention.BottomRight},
		{DType: attention.BF16, HeadDim: 7, Window: attention.WindowOf(50, 3), Align: attention.BottomRight, Softcap: 3},
		{DType: attention.F32, HeadDim: 24, Causal: attention.TopLeft},
	} {
		o, lse := newProblem(cfg, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 300}, attention.BHSD, uint64(i)).run(t)
		rounded := make([]byte, 2*len(lse))
		half.EncodeBF16(rounded, lse)
		half.DecodeBF16(lse, rounded)
		add(o, lse)
	}
	for i, row := range backwardShapes {
		c := newBackward(row.cfg, row.shape, attention.BHSD, uint64(i))
		if row.set != nil {
			row.set(t, c)
		}
		if c.SparseTokens != nil {
			continue // where a sum of an unsorted list ends depends on the rows of a block, and so on the lanes
		}
		g := c.onCPU(t)
		for _, x := range [][]float64{g.DQ, g.DK, g.DV} {
			y := make([]float32, len(x))
			for i := range x {
				y[i] = float32(x[i])
			}
			add(y)
		}
	}
	require.Equal(t, "8b2e417b1962780bd6a51bb1d43aeab10673a8eff29045b4fd6b9f709121536c", hex.EncodeToString(sum.Sum(nil)))
}
