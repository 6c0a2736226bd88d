package cases

import (
	"math"
	"math/rand/v2"
	"sync"

	"vkattn/internal/problem"
)

// These methods say what a row attends to and how its scores are modified. They follow
// the definitions of problem.Config and Args and use nothing but the case.

// position is a row's position among the keys of its sequence.
func (c *Case) position(b, row int) int {
	align := c.Causal
	if align == problem.CausalNone {
		align = c.Align
	}
	if align == problem.CausalNone && (c.Mods != 0 || c.Modifiers != nil) {
		align = problem.BottomRight
	}
	if align == problem.BottomRight {
		return row + c.seq(b).Keys - c.seq(b).Rows
	}
	return row
}

// seq is a sequence of the batch.
func (c *Case) seq(b int) Seq {
	if c.Seqs == nil {
		return Seq{b, c.Sq, c.Sk}
	}
	return c.Seqs[b]
}

// span is the range of keys [from, to) that length, causal mask and options allow by position.
func (c *Case) span(b, row int) (from, to int) {
	at, to := c.position(b, row), c.seq(b).Keys
	if c.Causal != problem.CausalNone {
		to = min(to, at+1)
	}
	for _, span := range spans() {
		first, end := span(c, at)
		from, to = max(from, first), min(to, end)
	}
	return from, to
}

// spans are the options that bound the keys of a row.
var spans = sync.OnceValue(func() (list []func(*Case, int) (int, int)) {
	for _, o := range options {
		if o.span != nil {
			list = append(list, o.span)
		}
	}
	return list
})

// Weight is how many times a row attends to key t.
func (p *Problem) Weight(b, h, row, t int) int {
	if from, to := p.span(b, row); t < from || t >= to {
		return 0
	}
	if p.user.Mask.Given() && !p.leaves(b, h, row, t) {
		return 0
	}
	if p.Mask.On && p.maskAt(b, h, row, t) == 0 {
		return 0
	}
	if p.BlockQ > 0 && !p.blockAt(b, h, row/p.BlockQ, t/p.BlockK) {
		return 0
	}
	if p.sparseCount != nil {
		return p.sparseCount[[3]int{b, h / p.Group(), broadcastIndex(p.PerRow, row)}][t]
	}
	return 1
}

// sieved reports whether a mask, a bitmap, a list or a modifier excludes keys within spans.
func (p *Problem) sieved() bool {
	return p.Mask.On || p.BlockQ > 0 || p.SparseRatio > 0 || p.user.Mask.Given()
}

// sees reports for each key of a sequence whether any row of a head's group attends to it.
func (p *Problem) sees(b, kv int) []bool {
	s := p.seq(b)
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

// Attended is how many keys a row attends to, in a case that excludes keys by their positions and by a mask modifier alone.
func (p *Problem) Attended(b, h, row int) (n int) {
	if !p.user.Mask.Given() {
		from, to := p.span(b, row)
		return max(to-from, 0)
	}
	for _, x := range p.unmasked(b, h, row) {
		n += cond(x != 0)
	}
	return n
}

// broadcastIndex is i, or 0 if one entry of the dimension serves all.
func broadcastIndex(each bool, i int) int {
	if each {
		return i
	}
	return 0
}

// maskAt is the byte of a slot: 0 in about a third of them, and in all of some rows.
func (c *Case) maskAt(b, h, row, t int) byte {
	id, h, row := broadcastIndex(c.Mask.Batches, c.seq(b).ID+1), broadcastIndex(c.Mask.Heads, h), broadcastIndex(c.Mask.Rows, row)
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
func (c *Case) blockAt(b, h, i, j int) bool {
	return c.Ones || c.mix(mixBlocks, broadcastIndex(c.Blocks.Batches, c.seq(b).ID+1), broadcastIndex(c.Blocks.Heads, h), i, j)%2 == 0
}

// biasAt is the bias of a slot, before it is stored.
func (c *Case) biasAt(b, h, row, t int) float32 {
	id, h, row := broadcastIndex(c.Bias.Batches, c.seq(b).ID+1), broadcastIndex(c.Bias.Heads, h), broadcastIndex(c.Bias.Rows, row)
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

func (c *Case) slope(b, h int) float32 {
	id := 0
	if c.ALiBiPerSequence {
		id = c.seq(b).ID
	}
	if c.Extremes.Slopes != nil {
		return c.Extremes.Slopes[(h+id)%len(c.Extremes.Slopes)]
	}
	return float32(math.Exp2(-8*float64(h+1)/float64(c.Hq) - float64(id%3)))
}

// sinkOf is the sink of a head. One head has -Inf, as if it had no sink.
func (c *Case) sinkOf(h int) float32 {
	if c.Extremes.Sinks != nil {
		return c.Extremes.Sinks[h%len(c.Extremes.Sinks)]
	}
	if c.Hq > 2 && h == c.Hq-2 {
		return float32(math.Inf(-1))
	}
	return float32(6*c.uniform(mixSinks, h) - 2)
}

// sparseList is the list of sparse tokens of a sequence, key head and row.
func (c *Case) sparseList(s Seq, kv, row int) (list []int32) {
	id := []int{s.ID, kv}
	if c.PerRow {
		id = append(id, row)
	}
	for t := range s.Keys {
		if c.uniform(append([]int{mixSparse}, append(id, t)...)...) < c.SparseRatio {
			list = append(list, int32(t))
		}
	}
	if c.Shuffled {
		r := rand.New(rand.NewPCG(c.seed, c.mix(append([]int{mixShuffle}, id...)...)))
		for i := range len(list) / 5 {
			list = append(list, list[5*i])
		}
		list = append(list, int32(s.Keys), int32(s.Keys+1+r.IntN(100)), math.MaxInt32, -1, math.MinInt32)
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}
