package bench

import (
	"math"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// blockMap is the block mask of a problem: for each KV head the pairs of a block of rows
// and a block of keys that attend to one another. All sequences use the map of the
// longest. It depends on the problem alone, so that the work of a row is known from the
// problem.
type blockMap struct {
	rows, keys int // blocks
	on         []bool
}

func (m *blockMap) at(head, row, key int) bool { return m.on[(head*m.rows+row)*m.keys+key] }

// blockMap picks, at random, a share of the blocks of keys that each block of rows sees.
// The last one is always among them.
func (p Problem) blockMap() *blockMap {
	s, f := p.Shape, p.Options
	m := &blockMap{rows: (s.Sq-1)/f.BlockQ + 1, keys: (s.Sk-1)/f.BlockK + 1}
	m.on = make([]bool, s.KVHeads()*m.rows*m.keys)
	r := rand.New(rand.NewPCG(uint64(s.Sq), uint64(s.Sk)))
	for h := range s.KVHeads() {
		for row := range m.rows {
			lo, _ := p.sees(row*f.BlockQ, s.Sq, s.Sk)
			_, hi := p.sees(min((row+1)*f.BlockQ, s.Sq)-1, s.Sq, s.Sk)
			if lo >= hi {
				continue
			}
			first, n := lo/f.BlockK, (hi-1)/f.BlockK-lo/f.BlockK+1
			list := choose(n, max(1, int(math.Round(float64(n)*f.Blocks))), r)
			list[len(list)-1] = int32(n - 1)
			for _, b := range list {
				m.on[(h*m.rows+row)*m.keys+first+int(b)] = true
			}
		}
	}
	return m
}

// vector is the block mask as the operation takes it, for each query head.
func (m *blockMap) vector(p Problem) *attention.Blocks {
	words := (m.keys + 31) / 32
	bits := make([]int32, p.Shape.Hq*m.rows*words)
	for h := range p.Shape.Hq {
		for row := range m.rows {
			for key := range m.keys {
				if m.at(h/p.Shape.Group(), row, key) {
					bits[(h*m.rows+row)*words+key/32] |= 1 << (key % 32)
				}
			}
		}
	}
	return &attention.Blocks{Map: Ints(bits), BlockQ: p.BlockQ, BlockK: p.BlockK, Batches: 1}
}

// eachBlock visits the blocks of a sequence: for each KV head and pair of blocks the rows
// from firstRow to lastRow and the keys from lo up to, not including, hi.
func (p Problem) eachBlock(rows, keys int, visit func(head, firstRow, lastRow, lo, hi int)) {
	m := p.blockMap()
	for h := range p.Shape.KVHeads() {
		for rb := 0; rb*p.BlockQ < rows; rb++ {
			first, last := rb*p.BlockQ, min((rb+1)*p.BlockQ, rows)-1
			for kb := 0; kb*p.BlockK < keys; kb++ {
				if m.at(h, rb, kb) {
					visit(h, first, last, kb*p.BlockK, min((kb+1)*p.BlockK, keys))
				}
			}
		}
	}
}

// blockCells is the number of cells of one sequence, summed over KV heads.
func (p Problem) blockCells(rows, keys int) (n int64) {
	p.eachBlock(rows, keys, func(_, first, last, from, to int) {
		for row := first; row <= last; row++ {
			lo, hi := p.sees(row, rows, keys)
			n += int64(max(0, min(hi, to)-max(lo, from)))
		}
	})
	return n
}

// blockKeys is the number of keys of one sequence that any row attends to, summed over KV
// heads.
func (p Problem) blockKeys(rows, keys int) (n int64) {
	seen := make([]bool, p.Shape.KVHeads()*keys)
	p.eachBlock(rows, keys, func(head, first, last, from, to int) {
		lo, _ := p.sees(first, rows, keys)
		_, hi := p.sees(last, rows, keys)
		for key := max(lo, from); key < min(hi, to); key++ {
			if !seen[head*keys+key] {
				seen[head*keys+key] = true
				n++
			}
		}
	})
	return n
}

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
