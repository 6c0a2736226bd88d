package cases

import (
	"math"
	"math/rand/v2"

	"vkattn/attention"
)

// What a row attends to and how its scores are modified, by the definitions of
// attention.Config and Args and from nothing but the case.

// position is where a row lies among the keys of its sequence.
func (c *OptionsCase) position(b, row int) int {
	align := c.Causal
	if align == attention.CausalNone {
		align = c.Align
	}
	if align == attention.BottomRight {
		return row + c.Seqs[b].Keys - c.Seqs[b].Rows
	}
	return row
}

// span are the keys [from, to) that length, causal mask and window leave.
func (c *OptionsCase) span(b, row int) (from, to int) {
	at, to := c.position(b, row), c.Seqs[b].Keys
	if c.Causal != attention.CausalNone {
		to = min(to, at+1)
	}
	if c.Window.Given() && c.Window.Left() >= 0 {
		from = max(from, at-c.Window.Left())
	}
	if c.Window.Given() && c.Window.Right() >= 0 {
		to = min(to, at+c.Window.Right()+1)
	}
	return from, to
}

// Weight is how many times a row attends to key t.
func (p *OptionsProblem) Weight(b, h, row, t int) int {
	if from, to := p.span(b, row); t < from || t >= to {
		return 0
	}
	if p.Mask.On && p.maskAt(b, h, row, t) == 0 {
		return 0
	}
	if p.BlockQ > 0 && !p.blockAt(b, h, row/p.BlockQ, t/p.BlockK) {
		return 0
	}
	if p.sparseCount != nil {
		return p.sparseCount[b*p.Hkv+h/p.Group()][t]
	}
	return 1
}

// sieved reports whether more than spans decides what is attended to.
func (c *OptionsCase) sieved() bool { return c.Mask.On || c.BlockQ > 0 || c.SparseRatio > 0 }

// sees reports for each key of a sequence whether a row of a head attends to it.
func (p *OptionsProblem) sees(b, kv int) []bool {
	s := p.Seqs[b]
	seen := make([]bool, s.Keys)
	for row := range s.Rows {
		from, to := p.span(b, row)
		for t := max(from, 0); t < to; t++ {
			if seen[t] || !p.sieved() {
				seen[t] = true
				continue
			}
			for h := kv * p.Group(); h < (kv+1)*p.Group(); h++ {
				seen[t] = seen[t] || p.Weight(b, h, row, t) > 0
			}
		}
	}
	return seen
}

// own is an index that stands for all where a dimension has no entries of its own.
func broadcastIndex(each bool, i int) int {
	if each {
		return i
	}
	return 0
}

// maskAt is the byte of a slot: 0 in about a third of them, and in all of some rows.
func (c *OptionsCase) maskAt(b, h, row, t int) byte {
	id, h, row := broadcastIndex(c.Mask.Batches, c.Seqs[b].ID+1), broadcastIndex(c.Mask.Heads, h), broadcastIndex(c.Mask.Rows, row)
	if c.Ones {
		return 1
	}
	if c.Mask.Rows && c.mix(mixMaskRow, id, h, row)%13 == 0 {
		return 0
	}
	switch r := c.mix(mixMask, id, h, row, t); {
	case r%3 == 0:
		return 0
	default:
		return []byte{1, 1, 2, 0x80, 0xff}[r>>8%5]
	}
}

// blockAt is the bit of a block: about half of them.
func (c *OptionsCase) blockAt(b, h, i, j int) bool {
	return c.Ones || c.mix(mixBlocks, broadcastIndex(c.Blocks.Batches, c.Seqs[b].ID+1), broadcastIndex(c.Blocks.Heads, h), i, j)%2 == 0
}

// biasAt is the bias of a slot, before it is stored.
func (c *OptionsCase) biasAt(b, h, row, t int) float32 {
	id, h, row := broadcastIndex(c.Bias.Batches, c.Seqs[b].ID+1), broadcastIndex(c.Bias.Heads, h), broadcastIndex(c.Bias.Rows, row)
	if x, ok := c.extremeBias(id, h, row, t); ok {
		return x
	}
	if c.mix(mixBias, id, h, row, t, 1)%17 == 0 {
		return float32(math.Inf(-1))
	}
	x := float32(4*c.uniform(mixBias, id, h, row, t) - 2)
	stored := encodeFloats([]float32{x}, c.Bias.DType)
	return decodeFloats(stored, c.Bias.DType)[0]
}

func (c *OptionsCase) slope(h int) float32 {
	if c.Extremes.Slopes != nil {
		return c.Extremes.Slopes[h%len(c.Extremes.Slopes)]
	}
	return float32(math.Exp2(-8 * float64(h+1) / float64(c.Hq)))
}

// sinkOf is the logit beside the scores; that of one head is -Inf, as if there
// were none.
func (c *OptionsCase) sinkOf(h int) float32 {
	if c.Extremes.Sinks != nil {
		return c.Extremes.Sinks[h%len(c.Extremes.Sinks)]
	}
	if c.Hq > 2 && h == c.Hq-2 {
		return float32(math.Inf(-1))
	}
	return float32(6*c.uniform(mixSinks, h) - 2)
}

// sparseLists are the lists of kept tokens of each (sequence, key head).
func (c *OptionsCase) sparseLists() [][]int32 {
	var lists [][]int32
	for _, s := range c.Seqs {
		for kv := range c.Hkv {
			var list []int32
			for t := range s.Keys {
				if c.uniform(mixSparse, s.ID, kv, t) < c.SparseRatio {
					list = append(list, int32(t))
				}
			}
			if c.Shuffled {
				r := rand.New(rand.NewPCG(c.seed, c.mix(mixShuffle, s.ID, kv)))
				for i := range len(list) / 5 {
					list = append(list, list[5*i])
				}
				list = append(list, int32(s.Keys), int32(s.Keys+1+r.IntN(100)), math.MaxInt32, -1, math.MinInt32)
				r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			}
			lists = append(lists, list)
		}
	}
	return lists
}
