package bench

import (
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// maskCells counts the keys that a mask modifier leaves to rows. Of a mask that differs from head to head, or from
// sequence to sequence, it counts those of the first.
type maskCells struct {
	*score.Evaluator
	keys    []int
	results []float64
}

// of counts the keys [lo, hi) that row r of a sequence attends to.
func (c *maskCells) of(mask score.Expr, r, lo, hi, rows, keys int, alignment problem.Causal) (n float64) {
	if c.Evaluator == nil {
		c.Evaluator = score.NewEvaluator(mask, score.Float32)
	}
	at := score.Slots{I: r, Row: r, Rows: rows, Keys: keys}
	if alignment == problem.BottomRight {
		at.I += keys - rows
	}
	// A range of keys that the bounds decide takes no time.
	for lo < hi {
		end := min(lo+256, hi)
		switch b := mask.Bounds(score.Tile{I0: at.I, I1: at.I, J0: lo, J1: end - 1}); {
		case b.Lo == 1:
			n += float64(end - lo)
		case b.Hi == 1:
			c.keys, c.results = c.keys[:0], c.results[:0]
			for key := lo; key < end; key++ {
				c.keys, c.results = append(c.keys, key), append(c.results, 0)
			}
			at.J = c.keys
			c.Eval(c.results, &at)
			for _, x := range c.results {
				n += x
			}
		}
		lo = end
	}
	return n
}
