//go:build cgo && !windows

package simd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/half"
	"vkattn/internal/simd"
)

// Pairs have the first element or row above the second one and end with 0. Their least exponent tells whether
// products may be subnormal: rows of zeros alone have none, a subnormal number is too small for any other factor.
func TestPairsAndTheirLeastExponents(t *testing.T) {
	inf := float32(math.Inf(1))
	const never = -1000 // no other exponent makes up for it
	for _, k := range simd.Sets() {
		if !k.Pairs {
			continue
		}
		for d := 1; d < 140; d++ {
			for _, c := range []struct {
				last           float32
				inRow, inBlock int // least exponents of Pairs and RowPairs
			}{{1.5, 0, 0}, {-0x1p-20, -20, -20}, {0x1.8p-126, -126, -126}, {0x1p-127, never, never}, {0, 0, 0}, {inf, 0, never}} {
				rows := make([]float32, 3*d)
				for i := range rows {
					rows[i] = float32(1 + i%96)
				}
				rows[len(rows)-1] = c.last
				if d == 1 && c.last == 0 {
					rows[0] = 1
				}
				data := make([]byte, 2*len(rows))
				half.EncodeBF16(data, rows)
				at := []int64{0, int64(2 * d), int64(4 * d)}
				word := func(row, column int) uint32 {
					if row > 2 || column >= d {
						return 0
					}
					return uint32(half.BF16FromFloat32(rows[row*d+column]))
				}
				for _, by := range []struct {
					t       simd.Type
					n       int
					element func(i int) uint32
					least   int
				}{
					{simd.Pairs, 3 * ((d + 1) / 2), func(i int) uint32 {
						row, column := i/((d+1)/2), i%((d+1)/2)*2
						return word(row, column)<<16 | word(row, column+1)
					}, c.inRow},
					{simd.RowPairs, 2 * d, func(i int) uint32 { return word(i/d*2, i%d)<<16 | word(i/d*2+1, i%d) }, c.inBlock},
				} {
					got := make([]float32, by.n+1)
					got[by.n] = 7
					least := k.Widen(got, data, at, nil, d, by.t)
					if by.least == never {
						require.Less(t, least, never, "%v, head dim %d", c.last, d)
					} else {
						require.Equal(t, by.least, least, "%v, head dim %d, type %d", c.last, d, by.t)
					}
					for i, x := range got[:by.n] {
						require.Equal(t, by.element(i), math.Float32bits(x), "pair %d of head dim %d, type %d", i, d, by.t)
					}
					require.Equal(t, float32(7), got[by.n], "what follows the pairs")
				}
			}
		}
		zeros := make([]byte, 64)
		require.Positive(t, k.Widen(make([]float32, 32), zeros, []int64{0, 2, 4}, nil, 1, simd.Pairs))
		require.Positive(t, k.Widen(make([]float32, 32), zeros, []int64{0, 2, 4}, nil, 1, simd.RowPairs))
	}
}
