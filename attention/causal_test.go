package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// sees is the definition of the masks, one pair at a time.
func sees(c attention.Causal, row, col, sq, sk int) bool {
	switch c {
	case attention.TopLeft:
		return col <= row
	case attention.BottomRight:
		return col <= row+sk-sq
	}
	return true
}

func TestVisibleAndCellsByCounting(t *testing.T) {
	for _, c := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
		for sq := 1; sq < 12; sq++ {
			for sk := 1; sk < 12; sk++ {
				cells := uint64(0)
				for r := range sq {
					n := 0
					for col := range sk {
						if sees(c, r, col, sq, sk) {
							require.Equal(t, n, col, "a prefix")
							n++
						}
					}
					require.Equal(t, n, c.Visible(r, sq, sk), "%v row %d of %dx%d", c, r, sq, sk)
					cells += uint64(n)
				}
				require.Equal(t, cells, attention.Shape{B: 1, Hq: 1, Sq: sq, Sk: sk}.Cells(c), "%v %dx%d", c, sq, sk)
			}
		}
	}
}

func TestCellsOfTheLargestShape(t *testing.T) {
	const n = attention.MaxLength
	s := attention.Shape{B: 1, Hq: 1, Sq: n, Sk: n}
	require.Equal(t, uint64(n)*n, s.Cells(attention.CausalNone))
	require.Equal(t, uint64(n)*(n+1)/2, s.Cells(attention.TopLeft))
	require.Equal(t, uint64(n)*(n+1)/2, s.Cells(attention.BottomRight))
	s.Sk = 1
	require.Equal(t, uint64(n), s.Cells(attention.TopLeft))
	require.Equal(t, uint64(1), s.Cells(attention.BottomRight))
}
