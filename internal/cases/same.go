package cases

import (
	"bytes"
	"fmt"
	"math"

	"vkattn/internal/problem"
)

// SameRows compares the outputs of two calls bit by bit, in the query rows that
// attend to at most limit keys.
func (p *Problem) SameRows(a, b [][]byte, limit int) error {
	for _, i := range []int{TensorO, TensorLSE} {
		if p.layout.Slots[i].Memory < 0 {
			continue
		}
		x, err := p.Read(a, i)
		if err != nil {
			return err
		}
		y, err := p.Read(b, i)
		if err != nil {
			return err
		}
		_, _, dim := p.Sizes(i)
		row := 0
		different := 0
		var first error
		p.EachRow(i, func(batch, h, r int) {
			at := row * dim
			row++
			if p.Causal.Visible(r, p.Shape.Sq, p.Shape.Sk) > limit {
				return
			}
			for c := range dim {
				if math.Float32bits(x[at+c]) == math.Float32bits(y[at+c]) {
					continue
				}
				if different == 0 {
					first = fmt.Errorf("%s at batch %d, head %d, row %d, column %d was %v and is %v",
						TensorNames[i], batch, h, r, c, x[at+c], y[at+c])
				}
				different++
			}
		})
		if different > 0 {
			return fmt.Errorf("%d elements differ: %w", different, first)
		}
	}
	return nil
}

// Same compares the outputs of two calls bit by bit.
func (p *Problem) Same(a, b [][]byte) error {
	different := 0
	var first error
	p.eachOutput(func(which, seq, h, row int, at, n int64) {
		m := p.piece[which]
		x, y := a[m][at:at+n], b[m][at:at+n]
		if bytes.Equal(x, y) {
			return
		}
		if different == 0 {
			first = fmt.Errorf("%s of sequence %d, head %d, row %d was %v and is %v", pieceNames[which], seq, h, row,
				p.numbers(which, x), p.numbers(which, y))
		}
		different++
	})
	if different > 0 {
		return fmt.Errorf("%d rows differ: %w", different, first)
	}
	return nil
}

// numbers are the first few of some bytes of O or LSE.
func (p *Problem) numbers(which int, b []byte) []float32 {
	dtype := p.DType
	if which == pieceLSE {
		dtype = problem.F32
	}
	return decodeFloats(b[:min(len(b), 4*dtype.Size())], dtype)
}
