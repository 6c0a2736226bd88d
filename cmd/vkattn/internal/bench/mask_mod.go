package bench

import (
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// maskCells counts the keys that a mask modifier leaves to rows. Of a mask that differs from head to head, or from
// sequence to sequence, it counts those of the first.
type maskCells struct {
	*score.Evaluator
	tables  []score.Memory
	keys    []int
	results []float64

	known  [3]int           // a block of rows, and the rows and keys of its sequence
	blocks []score.Interval // what the bounds say of the block with each block of keys
}

// A block of rows by a block of keys that the bounds decide takes no time.
const maskRows, maskKeys = 64, 256

// of counts the keys [lo, hi) that row r of a sequence attends to.
func (c *maskCells) of(p Problem, r, lo, hi, rows, keys int) (n float64) {
	mask := p.Config.MaskMod
	if c.Evaluator == nil {
		c.Evaluator = score.NewEvaluator(mask, score.Float32)
		for _, t := range p.Tables.Memory(0) {
			c.tables = append(c.tables, score.Memory{Name: t.Name, Dims: t.Dims, Data: t.Host})
		}
	}
	at := score.Slots{I: r, Row: r, Rows: rows, Keys: keys, Tables: c.tables}
	if problem.Alignment((*problem.Config)(&p.Config)) == problem.BottomRight {
		at.I += keys - rows
	}
	if known := [3]int{r/maskRows + 1, rows, keys}; c.known != known {
		c.known, c.blocks = known, c.blocks[:0]
		first := at.I - r%maskRows
		for j := 0; j < keys; j += maskKeys {
			c.blocks = append(c.blocks, mask.Bounds(score.Tile{I0: first, I1: first + maskRows - 1, J0: j, J1: j + maskKeys - 1}))
		}
	}
	for lo < hi {
		end := min(lo/maskKeys*maskKeys+maskKeys, hi)
		switch b := c.blocks[lo/maskKeys]; {
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
