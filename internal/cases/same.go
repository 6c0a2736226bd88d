package cases

import (
	"bytes"
	"fmt"
	"math"

	"vkattn/internal/problem"
)

// Same compares the outputs of two calls bit by bit.
func (p *Problem) Same(a, b [][]byte) error { return p.SameRows(a, b, math.MaxInt) }

// SameRows is Same for the query rows that attend to at most limit keys by the causal mask.
func (p *Problem) SameRows(a, b [][]byte, limit int) error {
	different := 0
	var first error
	p.eachOutput(func(which, seq, h, row int, at, n int64) {
		m, dtype := p.piece[which], p.DType
		if which == pieceLSE {
			dtype = problem.F32
		}
		x, y, size := a[m][at:at+n], b[m][at:at+n], int64(dtype.Size())
		if s := p.seq(seq); bytes.Equal(x, y) || p.Causal.Visible(row, s.Rows, s.Keys) > limit {
			return
		}
		for i := int64(0); i < n; i += size {
			was, is := x[i:i+size], y[i:i+size]
			if bytes.Equal(was, is) {
				continue
			}
			if different == 0 {
				first = fmt.Errorf("%s at batch %d, head %d, row %d, column %d was %v and is %v", pieceNames[which], seq, h, row, i/size,
					decodeFloats(was, dtype)[0], decodeFloats(is, dtype)[0])
			}
			different++
		}
	})
	if different > 0 {
		return fmt.Errorf("%d elements differ: %w", different, first)
	}
	return nil
}
